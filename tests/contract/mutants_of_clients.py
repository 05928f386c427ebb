"""Clients of the wired store, each with a rule about clocks, connections or writing broken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from incumbent import clock
from incumbent.errors import OutcomeUnknown
from incumbent.model import Ask, Key, Renewal, RenewOutcome, TakeOutcome
from incumbent.stores.memory import MemoryTable
from tests.contract.wired import AsyncWireStore, WireClient, WireEngine, WireStore


class _NowOfTheClient(WireClient):
    client_now = staticmethod(clock.wall)


class CountsOnItsOwnClock(WireEngine):
    """The client tells the server what time it is."""

    class Blocking(_NowOfTheClient, WireStore):
        pass

    class Async(_NowOfTheClient, AsyncWireStore):
        pass


class ChildUsesItsParentsConnections(WireEngine):
    """So does the threaded side, which uses the connections of the blocking one."""

    class Blocking(WireStore):
        def forget_parents(self) -> None:
            pass


class _KeepsAll(WireClient):
    def after(self, connection: Any, *, answered: bool) -> None:
        super().after(connection, answered=True)


class UsesInterruptedConnectionsAgain(WireEngine):
    class Blocking(_KeepsAll, WireStore):
        pass

    class Async(_KeepsAll, AsyncWireStore):
        pass


class RenewsOneByOne(WireEngine):
    """A request for each lease."""

    class Blocking(WireStore):
        def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            return [self._ask("renew", [one], until)[0] for one in renewals]

    class Async(AsyncWireStore):
        async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            return [(await self._ask("renew", [one], until))[0] for one in renewals]


class RepeatsByItself(WireEngine):
    """A request without an answer is sent again, and the second answer counts."""

    class Blocking(WireStore):
        def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
            try:
                return super()._ask(operation, *arguments, **settings)
            except OutcomeUnknown:
                return super()._ask(operation, *arguments, **settings)

    class Async(AsyncWireStore):
        async def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
            try:
                return await super()._ask(operation, *arguments, **settings)
            except OutcomeUnknown:
                return await super()._ask(operation, *arguments, **settings)


class TakesAnInterruptionForAnOutage(WireEngine):
    class Blocking(WireStore):
        def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
            try:
                return super()._ask(operation, *arguments, **settings)
            except Exception as error:
                raise OutcomeUnknown(str(error)) from error

    class Async(AsyncWireStore):
        async def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
            try:
                return await super()._ask(operation, *arguments, **settings)
            except asyncio.CancelledError as error:
                raise OutcomeUnknown("cancelled") from error


class ResolvesWithoutADeadline(WireEngine):
    class Blocking(WireStore):
        def _connect(self, until: float) -> socket.socket:
            socket.getaddrinfo(self.host, self.port)
            return super()._connect(until)

    class Async(AsyncWireStore):
        async def _connect(self, until: float) -> Any:
            await asyncio.to_thread(socket.getaddrinfo, self.host, self.port)
            return await super()._connect(until)


def _taken(loaded: tuple[Any, str], key: Key, claim: str, ask: Ask) -> tuple[TakeOutcome, Any]:
    """What a take makes of a record: its outcome and the record that is to be written."""
    record, epoch = loaded
    table = MemoryTable()
    table.epoch = epoch
    if record is not None:
        table._kept[key] = record
    outcome = table.take(key, claim, ask, clock.now(), clock.wall())
    return outcome, table._kept.get(key)


class ReadsThenWrites(WireEngine):
    """A take in two requests, and nothing that compares in the second."""

    class Blocking(WireStore):
        def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
            outcome, record = _taken(self._ask("load", key, until), key, claim, ask)
            self._ask("save", key, record, until)
            return outcome

    class Async(AsyncWireStore):
        async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
            outcome, record = _taken(await self._ask("load", key, until), key, claim, ask)
            await self._ask("save", key, record, until)
            return outcome
