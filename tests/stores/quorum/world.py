"""Three or five independent masters, each behind a faulty network of its own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, GiveOutcome, Granted, Key, Refused, Renewal, Renewed, RenewOutcome
from incumbent.stores.base import Engine, Store
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.redis.records import Naming
from incumbent.stores.url import open_engine
from tests.support.proxy import FaultProxy, ProxiedLink, Way
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

# With everysec a write waits while an fsync lasts, so a server that is killed may have answered and
# forgotten: that is another fault than a restart with its data.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
SLOW = 0.12
WITHIN = 15.0
"""Seconds for an answer: a busy machine takes some of them."""
QUARANTINE = 2.5
"""Seconds: no ttl of these tests that a loss of data befalls is longer."""


class HalfProxy(FaultProxy):
    """A network that may also fail for some of its connections alone."""

    def __init__(self, port: int) -> None:
        self._unlucky: set[int] = set()
        self._half = False
        super().__init__(port)

    def cut_off_half(self) -> None:
        """A black hole for every second connection, of those there are and those to come."""
        with self._changed:
            self._half = True
            self._changed.notify_all()

    def tear(self) -> None:
        """Close every second connection."""
        with self._changed:
            for link in self._links:
                if self._is_unlucky(link):
                    link.cut()
            self._changed.notify_all()

    def heal(self) -> None:
        self._half = False
        super().heal()

    def _travel(self, link: ProxiedLink, way: Way) -> None:
        super()._travel(link, way)
        with self._changed:
            self._changed.wait_for(
                lambda: link.closed or not (self._half and self._is_unlucky(link))
            )

    @staticmethod
    def _is_unlucky(link: ProxiedLink) -> bool:
        return bool(id(link) // 64 % 2)


class Member:
    """One master and the way to it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.proxy = HalfProxy(server.port)
        self._end: Callable[[], None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"

    def begin(self, kind: str) -> None:
        """A trouble of the schedule begins; see tests.quorum.schedule."""
        start, end = {
            "killed": (self.server.kill, self.server.start),
            "killed and emptied": (self.server.kill, self._start_empty),
            "frozen": (self.server.freeze, self.server.thaw),
            "wiped": (lambda: self.server.cli("FLUSHALL"), _nothing),
            "cut off": (self.proxy.blackhole, self.proxy.heal),
            "refusing": (self.proxy.refuse, self.proxy.heal),
            "slow": (lambda: self.proxy.delay(SLOW), self.proxy.heal),
            "answers lost": (self.proxy.drop_replies, self.proxy.heal),
            "half cut off": (self.proxy.cut_off_half, self.proxy.heal),
            "torn": (self.proxy.tear, _nothing),
        }[kind]
        start()
        self._end = end

    def end(self) -> None:
        """What began ends."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def _start_empty(self) -> None:
        self.server.restart(empty=True)

    def close(self) -> None:
        self.proxy.close()
        self.server.stop()


class Members:
    """Some masters. They have just been started, so every URL names a `restart_wait`: QUARANTINE
    where the test does not say another."""

    def __init__(
        self, count: int = 3, make: Callable[[], RedisServer] = lambda: RedisServer(DURABLE)
    ) -> None:
        self.all: list[Member] = []
        try:
            for _ in range(count):
                self.all.append(Member(make()))
        except BaseException:
            self.close()
            raise

    def url(
        self, options: str = "", order: Sequence[int] | None = None, *, near: bool = False
    ) -> str:
        """The quorum's URL, through the networks; `near`: without them."""
        members = self.all if order is None else [self.all[at] for at in order]
        hosts = ",".join(f"127.0.0.1:{one.server.port}" if near else one.address for one in members)
        if "restart_wait" not in options:
            options += f"{'&' if options else ''}restart_wait={QUARANTINE}s"
        return f"redis+quorum://{hosts}?{options}"

    def found(self, url: str) -> None:
        """Empty, and marked as new together by one process: none of them has forgotten anything.

        A server that is connected too late, on a busy machine, is marked as one that was replaced.
        """

        def founded() -> bool:
            for one in self.all:
                one.server.cli("FLUSHALL")
            with party(url) as first:
                first.give(first.take(Ask(10.0, "first")))
            markers = [one.server.cli("GET", MARKER) for one in self.all]
            return all(marker.split()[2:3] == ["0"] for marker in markers)

        eventually(founded)

    def keys(self) -> list[set[str]]:
        """The keys of each master."""
        return [set(_keys_of(one.server)) for one in self.all]

    def close(self) -> None:
        threads = [threading.Thread(target=one.close) for one in self.all]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass
class Party:
    """One engine and a lease of its own, by the store's own operations."""

    engine: Engine
    key: Key = field(default_factory=lambda: Key("faults", secrets.token_hex(6)))
    claim: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def store(self) -> Store:
        return self.engine.store()

    def try_take(self, ask: Ask, within: float = WITHIN, claim: str = "") -> Granted | Refused:
        outcome = self.store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted | Refused)
        return outcome

    def take(self, ask: Ask, within: float = 20.0) -> Granted:
        """Try until granted: split votes, and masters that are too young, take a while."""
        give_up = clock.now() + within
        while True:
            try:
                outcome = self.try_take(ask)
            except StoreError:
                if clock.now() > give_up:
                    raise
            else:
                if isinstance(outcome, Granted):
                    return outcome
                assert clock.now() < give_up, outcome
            time.sleep(0.02)

    def refused(self, ask: Ask, within: float = 20.0) -> Refused:
        """The refusal of a lease that another has, also where connections have just ended."""
        give_up = clock.now() + within
        while True:
            try:
                outcome = self.try_take(ask, claim=secrets.token_hex(16))
            except StoreError:
                if clock.now() > give_up:
                    raise
                time.sleep(0.02)
            else:
                assert isinstance(outcome, Refused)
                return outcome

    def renew(self, granted: Granted, ttl: float, within: float = WITHIN) -> RenewOutcome:
        renewal = Renewal(self.key, granted.claim, granted.token, ttl, granted.epoch)
        (outcome,) = self.store.renew([renewal], soon(within))
        return outcome

    def give(self, granted: Granted, within: float = WITHIN) -> GiveOutcome:
        return self.store.give(self.key, granted.claim, granted.token, soon(within))


def take_everywhere(members: Sequence[Member], one: Party, ask: Ask) -> Granted:
    """A lease that each master has: a take is content with most of them, a busy machine asks the
    others later, and they have it with a renewal."""
    granted = one.take(ask)

    def all_have_it() -> bool:
        assert isinstance(one.renew(granted, ask.ttl), Renewed)
        return all(_keeps(member.server, one.claim) for member in members)

    eventually(all_have_it)
    return granted


def soon(seconds: float = WITHIN) -> float:
    return clock.now() + seconds


@contextmanager
def party(url: str) -> Iterator[Party]:
    """An engine at `url`, closed at the end."""
    engine = open_engine(url)
    try:
        yield Party(engine)
    finally:
        engine.store().close()


def where_kept(members: Members, secret: str) -> list[int]:
    """The masters that keep anything of a claim under a key of a lease."""
    return [at for at, one in enumerate(members.all) if _keeps(one.server, secret)]


# What is kept for people (history, floors) may outlive a lease; a lease is a string.
_LOOK = """
local found = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'string' then
    local value = redis.call('GET', key)
    if value and string.find(value, ARGV[1], 1, true) then found = found + 1 end
  end
end
return found
"""


def _keeps(server: RedisServer, secret: str) -> bool:
    return server.cli("EVAL", _LOOK, "0", secret) != "0"


def _keys_of(server: RedisServer) -> list[str]:
    said = server.cli("EVAL", "return table.concat(redis.call('KEYS', '*'), ' ')", "0")
    return said.split()


def _nothing() -> None:
    pass


def channel_of(key: Key) -> str:
    """Where each server tells that something changed: the key of the floor."""
    return Naming(None).of(key).record[:-1] + "b"
