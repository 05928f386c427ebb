"""Making a connection, host by host, without ever waiting longer than was allowed.

Each host gets its share of the time that is left, so that a dead one does not use up all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.postgresql.driver import DriverError, Site, Target, pq
from incumbent.stores.postgresql.errors import connect_error

__all__ = ["Dial"]

_LONGEST: Final = 3600.0
_READING: Final = pq.PollingStatus.READING
_OK: Final = pq.PollingStatus.OK
_FAILED: Final = pq.PollingStatus.FAILED
_BAD: Final = pq.ConnStatus.BAD

_now = clock.now


class _Failed(Exception):
    """One host, or one of its addresses, gave no connection."""


class Dial(ABC):
    """`ready` and `resolve` are how a side waits."""

    @abstractmethod
    async def ready(self, fd: int, until: float, *, writing: bool) -> bool:
        """Wait for a socket; whether it became ready before `until`."""

    @abstractmethod
    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """The host's addresses. Raises OSError, and TimeoutError at `until`."""

    async def connect(self, site: Site, until: float) -> Any:
        """A connection of libpq that is logged in to a server which can write.

        Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
        """
        until = min(until, _now() + _LONGEST)
        failures = []
        left = len(site.targets)
        for place, target in list(site.in_order()):
            now = _now()
            if now >= until:
                break
            try:
                connection = await self._connect_host(site, target, now + (until - now) / left)
            except _Failed as failure:
                failures.append(str(failure))
            else:
                site.best = place
                return connection
            left -= 1
        late = not failures
        raise _unavailable(site, failures, late=late)

    async def _connect_host(self, site: Site, target: Target, until: float) -> Any:
        try:
            addresses = await self._addresses(target, until)
        except OSError as error:
            said = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise _Failed(f"the host name {target.host} cannot be resolved: {said}") from error
        failure = _Failed(f"the host name {target.host} has no address")
        for step, address in enumerate(addresses):
            now = _now()
            share = now + (until - now) / (len(addresses) - step)
            try:
                return await self._attempt(site, site.conninfo(target, address), share)
            except _Failed as error:
                failure = error
        raise failure

    async def _addresses(self, target: Target, until: float) -> Sequence[str]:
        host = target.host
        if target.hostaddr or not host or host.startswith(("/", "@")):
            return [target.hostaddr]
        return await self.resolve(host, target.port or "5432", until)

    async def _attempt(self, site: Site, conninfo: bytes, until: float) -> Any:
        try:
            connection = pq.PGconn.connect_start(conninfo)
        except DriverError as error:
            raise _Failed(site.clean(str(error))) from error
        try:
            await self._log_in(site, connection, until)
        except BaseException:
            connection.finish()
            raise
        return connection

    async def _log_in(self, site: Site, connection: Any, until: float) -> None:
        while True:
            status = _FAILED if connection.status == _BAD else connection.connect_poll()
            if status == _OK:
                return
            if status == _FAILED:
                raise _Failed(site.clean(connection.get_error_message()))
            if not await self.ready(connection.socket, until, writing=status != _READING):
                raise _Failed("no connection in time")


def _unavailable(site: Site, failures: list[str], *, late: bool) -> StoreUnavailable:
    errors = [connect_error(said, site.where, proved=site.proved, late=late) for said in failures]
    if len(errors) == 1:
        return errors[0]
    said = " | ".join(failures)
    both = connect_error(said, site.where, proved=site.proved, late=late)
    # Of several hosts one may come back: only what all of them say is final.
    both.permanent = bool(errors) and all(error.permanent for error in errors)
    return both
