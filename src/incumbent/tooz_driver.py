"""A driver for tooz, OpenStack's coordination library: its locks and elections, on leases.

Write `incumbent+` before the URL of a store, `incumbent+redis://localhost:6379`. Two options of the
URL are the driver's own: `lock_timeout`, the ttl of locks and leaderships (15 s), and `namespace`
("default"). docs/cookbook/tooz.md says what differs from other drivers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qs, quote_from_bytes, unquote_to_bytes

import tooz
from tooz import coordination, locking
from tooz.coordination import Characteristics

from incumbent import clock
from incumbent.durations import parse_duration
from incumbent.errors import Error, NotAcquired, OutcomeUnknown, StoreUnavailable
from incumbent.locks.callers import ByCaller
from incumbent.locks.clients import Client
from incumbent.locks.elections import Election, Term
from incumbent.locks.leases import Lease, release_unless_lost
from incumbent.locks.options import LockSettings
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.notices import BREAK, RESIGN, notice_to
from incumbent.runtime.link import link_for
from incumbent.stores.names import make_key, safe_name

__all__ = ["Driver", "Lock"]

_log = logging.getLogger("incumbent")
_OPTIONS = ("lock_timeout", "namespace")
_WITHIN, _LOOK_EVERY = 1.0, 0.1
"""Seconds: to send a notice to the holder, and between two checks whether it lost the lock."""


class Lock(locking.Lock):
    """tooz's lock, made by `Driver.get_lock`.

    Threads that share it each have a lock of their own. A thread that never acquires may release a
    lock that another thread left to it; one that does, only the lock of a thread that ended.
    """

    def __init__(self, driver: Driver, name: bytes | str) -> None:
        super().__init__(name)  # type: ignore[arg-type]  # its other drivers take texts too
        self._driver = driver
        self._leased = safe_name(_text(name))
        self._leases = ByCaller[Lease]()

    @property
    def lease(self) -> Lease | None:
        """The lease of this lock (`check()`, `fencing_token`); None while it is not acquired."""
        return self._leases.own()

    @property
    def acquired(self) -> bool:
        """Whether the lock is proved to be held here at this instant; no request is sent."""
        lease = self.lease
        return lease is not None and lease.valid

    def is_still_owner(self) -> bool:
        """The same as `acquired`. So is `heartbeat`, because a background thread renews."""
        return self.acquired

    heartbeat = is_still_owner

    def acquire(
        self, blocking: bool | float = True, shared: bool = False, timeout: float | None = None
    ) -> bool:
        """Wait (`blocking`: a number of seconds; False: try once); False if another had the lock.

        `timeout`: seconds to wait where `blocking` is True. Raises ToozConnectionError,
        OperationTimedOut, and NotImplemented for `shared`.
        """
        if shared:
            raise tooz.NotImplemented("this driver has no shared locks: acquire it without shared")
        wait = timeout if blocking is True else float(blocking)
        self._leases.note_attempt()
        with _as_tooz_says(), suppress(NotAcquired):
            lease = self._driver.client.lock(self._leased).acquire(wait)
            self._leases.keep(lease)
            self._driver.leases.add(lease)
            return True
        return False

    def release(self) -> bool:
        """Release the lock; False if it was lost before, or if the store did not confirm it."""
        lease = self.lease
        if lease is None:
            return False
        self._leases.drop(lease)
        self._driver.leases.discard(lease)
        return release_unless_lost(lease)

    def break_(self) -> bool:
        """Make the holder lose the lock; True once it has, False if nobody held the lock.

        The holder learns of it with its next renewal. Its lease ends when it releases the lock, or
        with its ttl. This waits for up to two ttls; False if the holder has the lock even then.
        """
        driver, name = self._driver, self._leased
        link, key = link_for(driver.client), make_key(driver.namespace, name)
        with _as_tooz_says():
            holdings = driver.client.read(name).holdings
            if not holdings or (holding := holdings[0]).foreign:
                return False
            notice = notice_to(holding, who=driver.holder, kind=BREAK)
            link.store.put(key, RESIGN, notice, None, clock.now() + _WITHIN)
            for _ in range(int(2 * (holding.ttl or TTL_DEFAULT) / _LOOK_EVERY)):
                if holding.token not in [now.token for now in driver.client.read(name).holdings]:
                    return True
                time.sleep(_LOOK_EVERY)
        return False

    def __exit__(self, *error: object) -> None:
        if self.lease is not None and not self.release():
            _log.warning("%s: lost, or its release not confirmed, after its body", self._leased)


class Driver(coordination.CoordinationDriver):
    """tooz's coordinator, made by `get_coordinator`, with locks and leaders, but without groups."""

    CHARACTERISTICS: tuple[Characteristics, ...] = (
        Characteristics.DISTRIBUTED_ACROSS_THREADS,
        Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(
        self, member_id: bytes | str, parsed_url: SplitResult, options: dict[str, list[Any]]
    ) -> None:
        super().__init__(member_id, parsed_url, options)  # type: ignore[arg-type]  # as for names
        self.requires_beating = False  # `heartbeat` need not be called.
        self._url, own = _read_url(parsed_url, options)
        if self._url.startswith("sqlite:"):
            self.CHARACTERISTICS = self.CHARACTERISTICS[:2]
        self.namespace = own.get("namespace", "default")
        with _as_tooz_says():
            self._ttl = parse_duration(own.get("lock_timeout", TTL_DEFAULT), "lock_timeout")
        data = member_id.encode() if isinstance(member_id, str) else member_id
        self.holder = quote_from_bytes(data, safe="/:@+,=")
        self.leases: set[Lease] = set()
        """Leases that are kept until they are released, also if their locks were dropped."""
        self._candidates: dict[str, Election] = {}
        self._terms: dict[str, Term] = {}

    @property
    def client(self) -> Client:
        """The client of the store. Raises ToozError if the coordinator is not started."""
        if not self._started:
            raise tooz.ToozError("this coordinator is not started: call start() first")
        return self._client

    def _start(self) -> None:
        settings = LockSettings(ttl=self._ttl, holder=self.holder)
        with _as_tooz_says():
            self._client = Client(self._url, namespace=self.namespace, **settings)
            self._client.lock("tooz")  # Settings that cannot work are refused here.
            self._client.read("tooz")

    def _stop(self) -> None:
        for lease in (*self.leases, *self._terms.values()):
            release_unless_lost(lease)
        for kept in (self.leases, self._candidates, self._terms):
            kept.clear()
        self.client.close()

    def heartbeat(self) -> float:
        """Seconds until the next call. It renews nothing, because a background thread does."""
        return self._ttl

    def get_lock(self, name: bytes | str) -> Lock:
        """A lock on the name, which is bytes or text."""
        return Lock(self, name)

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        """Campaign once for each watched group; return the results of the callbacks."""
        answers: list[Any] = []
        for group_id, callbacks in list(self._hooks_elected_leader.items()):
            candidate = self._candidate(group_id)
            if not callbacks or candidate.is_leader:
                continue
            with _as_tooz_says(), suppress(NotAcquired):
                self._terms[candidate.name] = candidate.campaign(0)
            if candidate.term is not None:
                answers += callbacks.run(coordination.LeaderElected(group_id, self._member_id))
        return answers

    def run_elect_coordinator(self) -> None:
        """The same as `run_watchers`."""
        self.run_watchers()

    def _candidate(self, group_id: bytes | str) -> Election:
        name = safe_name("leader", _text(group_id))
        if name not in self._candidates:
            self._candidates[name] = self.client.election(name)
        return self._candidates[name]

    def get_term(self, group_id: bytes | str) -> Term | None:
        """This member's leadership while it is proved: its `number` is the fencing token."""
        return self._candidate(group_id).term

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        """Release the leadership; False if this member had none or the store did not confirm."""
        term = self._terms.pop(self._candidate(group_id).name, None)
        return term is not None and release_unless_lost(term)

    def get_leader(self, group_id: bytes) -> coordination.CoordAsyncResult[bytes]:
        """The leader, None if there is none. The store is asked now, not when `get` is called.

        This member is named only while its own leadership is proved. Raises as `Lock.acquire`.
        """
        with _as_tooz_says():
            leader, term = self._candidate(group_id).leader(), self.get_term(group_id)
        # The record may still have an earlier process of the same name, which does not lead now.
        ours = leader and term and term.number == leader.term
        known = leader if leader and (ours or leader.holder != self.holder) else None
        future: Future[Any] = Future()
        future.set_result(known and unquote_to_bytes(known.holder))
        return coordination.CoordinatorResult(future)

    def _no_groups(self, *_: object, **__: object) -> NoReturn:
        raise tooz.NotImplemented("no groups of members: leave out create_group and join_group")

    create_group = get_groups = delete_group = join_group = leave_group = _no_groups
    get_members = get_members_with_capabilities = get_member_capabilities = _no_groups
    get_member_info = update_capabilities = watch_join_group = watch_leave_group = _no_groups


@contextmanager
def _as_tooz_says() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise coordination.ToozConnectionError(str(error), error) from error
    except OutcomeUnknown as error:
        raise coordination.OperationTimedOut(str(error), error) from error
    except Error as error:
        raise tooz.ToozError(str(error), error) from error


def _text(name: bytes | str) -> str:
    """The name as text; different bytes give different texts, even if they are not UTF-8."""
    data = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
    return data.decode("utf-8", "surrogateescape")


def _read_url(url: SplitResult, options: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The URL of the store, and the driver's own options; the last of each counts."""
    if options != parse_qs(url.query):
        raise tooz.ToozError("incumbent takes no keywords: its options stand in the URL")
    own: dict[str, str] = {name: options[name][-1] for name in _OPTIONS if name in options}
    place = f"//{url.netloc}{url.path}" if url.netloc or url.path else ""
    parts = [part for part in url.query.split("&") if part.partition("=")[0] not in own]
    rest = ("?" + "&".join(parts) if any(parts) else "") + ("#" + url.fragment).rstrip("#")
    return f"{url.scheme.removeprefix('incumbent+')}:{place}{rest}", own
