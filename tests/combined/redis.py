"""Combined faults on a real Redis with a replica, behind an address that follows the master.

Each party has a network of its own before it. Addresses forward bytes, as a TCP load balancer
does: a connection that is there stays with the server that it was made to.
"""

from __future__ import annotations

import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from incumbent import Client
from incumbent.clock import now
from incumbent.stores.names import make_key
from incumbent.stores.redis.records import Naming
from tests.combined.plan import Fault, Plan
from tests.history.checker import Broken, check
from tests.history.events import GivenUp, Grant, History, Removed, Stands, Witness, from_line
from tests.quorum.fleet import Contender
from tests.quorum.walls import ShiftedServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

PLAYS: Final = frozenset(
    {
        *("skew", "step", "wipe", "restart empty", "unreplicated", "record deleted"),
        *("cut one way", "held bytes", "surviving connection", "slow"),
        *("switchover", "there and back", "failover"),
        *("frozen", "killed", "cancelled", "starved", "store frozen"),
        *("ttls differ", "rolling change"),
    }
)
TTL: Final = 3.0
KINDS: Final = ("sync", "sync", "sync", "async")
TIMES: Final = (1, 1, 2, 3)
"""How often one kind befalls a fleet: real time is dear."""
_AFTER: Final = 2.0
"""Seconds that a fleet goes on after its last fault and the wait that follows a change of role."""
_SKEW: Final = 30.0
_FIRST_WITHIN: Final = 20.0
_NAME: Final = "job"
_RECORD: Final = Naming(None).of(make_key("default", _NAME)).lease
_SYNC_WITHIN: Final = 2.0
_CLOCKS: Final = frozenset({"skew", "step"})


class Pair:
    """A master and its replica. `at`: who is the master, 0 or 1."""

    def __init__(self, *, clocks: bool) -> None:
        self._stack = ExitStack()
        kind: Callable[..., RedisServer] = ShiftedServer if clocks else RedisServer
        options = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
        self.servers = [self._stack.enter_context(kind(options)) for _ in range(2)]
        self.links = [self._stack.enter_context(FaultProxy(one.port)) for one in self.servers]
        """What each is replicated through."""
        self.at = 0
        self.follow(1, 0)

    @property
    def master(self) -> RedisServer:
        """Who is written to."""
        return self.servers[self.at]

    def follow(self, who: int, whom: int) -> None:
        """Become its replica."""
        self.servers[who].cli("REPLICAOF", "127.0.0.1", str(self.links[whom].port))

    @property
    def both_run(self) -> bool:
        """Whether there is one to switch to."""
        return all(server.is_running for server in self.servers)

    def synced(self) -> bool:
        """Whether the replica has a link to the master."""
        with suppress(OSError):
            return "master_link_status:up" in self.servers[1 - self.at].cli("INFO", "replication")
        return False

    def switch(self) -> None:
        """The replica becomes the master, and the other its replica."""
        old, self.at = self.at, 1 - self.at
        self.servers[self.at].cli("REPLICAOF", "NO", "ONE")
        with suppress(OSError):
            self.follow(old, self.at)

    def close(self) -> None:
        """End both."""
        self._stack.close()


class Listener:
    """What the parties said, as a history. A belief that nobody ended lasts as it was proved."""

    def __init__(self) -> None:
        self.told = History()
        self._lock = threading.Lock()
        self._open: dict[str, Grant] = {}
        self._working: dict[str, dict[str, Any]] = {}
        self._killed: dict[str, float] = {}
        self.granted = 0

    def hear(self, line: dict[str, Any]) -> None:
        """One line of a party."""
        if "event" not in line:
            return
        with self._lock:
            if line["event"] == "Working":
                self._working[line["who"]] = line
                return
            event = from_line(line)
            if isinstance(event, Grant):
                self.granted += event.claim not in self._open
                self._open[event.claim] = event
                if line.get("proved"):
                    return
                del self._open[event.claim]
            elif isinstance(event, Witness):
                self._working.pop(event.who, None)
            self.told.tell(event)

    def died(self, who: str, at: float) -> None:
        """A party was killed."""
        with self._lock:
            self._killed[who] = at

    def end(self) -> History:
        """All of it."""
        for grant in self._open.values():
            died = self._killed.get(grant.who.partition("-")[0], grant.until)
            self.told.tell(replace(grant, until=min(grant.until, died)))
        return self.told


class Fleet:
    """Parties that live through one plan after another."""

    def __init__(self) -> None:
        self.parties = [Contender("", kind, "tests.combined.party") for kind in KINDS]

    def run(self, plan: Plan) -> History:
        """Let it befall them."""
        with Run(self, plan) as run:
            return run.live_through()

    def close(self) -> None:
        """End the parties."""
        for party in self.parties:
            party.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Run:
    """One plan on one pair of servers."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self.parties, self.plan = fleet.parties, plan
        self.listener = Listener()
        self.surviving = "surviving connection" in plan.kinds
        self._stack = ExitStack()
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="incumbent-combined-")
        )
        self.folder = Path(folder)
        self.pair = Pair(clocks=bool(_CLOCKS & plan.kinds))
        self._stack.callback(self.pair.close)
        port = self.pair.master.port
        self.wires = [self._stack.enter_context(FaultProxy(port)) for _ in self.parties]
        self.orders = [self._order(at) for at in range(len(self.parties))]
        self._played: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _order(self, at: int) -> dict[str, Any]:
        before = after = TTL
        for fault in self.plan.faults:
            if fault.kind == "ttls differ" and at % 2:
                before = after = _long(fault)
            if fault.kind == "rolling change":
                before = _long(fault)
        return {
            "url": f"{self.wires[at].url}?restart_wait={max(before, after, self._longest())}",
            "name": _NAME,
            "who": f"p{at}",
            "ttls": (before, after),
            "change_at": float("inf"),
            "slots": self.plan.seed % 3 == 0,
            "folder": str(self.folder),
            "seed": f"{self.plan.seed} {at}",
            "cancels": "cancelled" in self.plan.kinds,
            "starves": 0,
            "starves_until": 0.0,
        }

    def _longest(self) -> float:
        kinds = ("ttls differ", "rolling change")
        return max([TTL, *(_long(one) for one in self.plan.faults if one.kind in kinds)])

    # -- the run -----------------------------------------------------------------------------

    def live_through(self) -> History:
        """Faults, and a little while after; then what is left in the store."""
        self._set_clocks()
        self._await(self.pair.synced, _FIRST_WITHIN)
        for party in self.parties:
            party.await_start()
        self._start()
        try:
            self._await(lambda: self.listener.granted > 0, _FIRST_WITHIN)
            self._befall()
            time.sleep(self._longest() + _AFTER)
        finally:
            self._heal()
            for party in self.parties:
                party.rest()
        for party in self.parties:
            party.wait()
        self._look()
        return self.listener.end()

    def _start(self) -> None:
        begin = now()
        for at, party in enumerate(self.parties):
            party.hear = self.listener.hear
            for fault in self.plan.faults:
                if fault.kind == "rolling change":
                    self.orders[at]["change_at"] = begin + fault.at * TTL + 0.3 * at
                if fault.kind == "starved" and fault.who % len(self.parties) == at:
                    self.orders[at] |= {"starves": 2, "starves_until": begin + fault.lasts * TTL}
            party.order(self.orders[at])

    @staticmethod
    def _await(condition: Callable[[], bool], within: float) -> None:
        give_up = now() + within
        while not condition() and now() < give_up:
            time.sleep(0.01)

    def _befall(self) -> None:
        begin = now()
        for at, act in sorted(self._acts(), key=lambda act: act[0]):
            time.sleep(max(0.0, begin + at * TTL - now()))
            with suppress(OSError, ConnectionError):
                act()

    def _acts(self) -> Iterator[tuple[float, Callable[[], object]]]:
        for fault in self.plan.faults:
            name = "_" + fault.kind.replace(" ", "_")
            begin = getattr(self, name, None)
            if begin is not None:
                yield fault.at, partial(begin, fault)
            end = getattr(self, name + "_ends", None)
            if end is not None:
                yield fault.at + _lasts(fault), partial(end, fault)

    def _look(self) -> None:
        """After the last claim that was given up has had its time."""
        given = list(self.listener.told.of(GivenUp))
        if given:
            time.sleep(max(0.0, max(one.after for one in given) - now() + 0.1))
        with Client(f"{self.pair.master.url}?restart_wait=0") as client:
            record = client.read(_NAME, timeout=3.0)
        for holding in record.holdings:
            self.listener.told.tell(Stands(_NAME, holding.holder, now()))
        for slot in record.slots:
            self.listener.told.tell(Stands(_NAME, slot, now(), slot))

    def _heal(self) -> None:
        for server in self.pair.servers:
            with suppress(Exception):
                server.thaw()
        for wire in [*self.wires, *self.pair.links]:
            wire.heal()
        for party in self.parties:
            party.send(signal.SIGCONT)

    def _wire(self, fault: Fault) -> FaultProxy:
        return self.wires[fault.who % len(self.wires)]

    # -- each kind ---------------------------------------------------------------------------

    def _set_clocks(self) -> None:
        for fault in self.plan.faults:
            if fault.kind == "skew":
                server = self.pair.servers[fault.who % 2]
                assert isinstance(server, ShiftedServer)
                server.set_wall(_SKEW * fault.size)

    def _step(self, fault: Fault) -> None:
        server = self.pair.servers[fault.who % 2]
        assert isinstance(server, ShiftedServer)
        server.set_wall(_SKEW * fault.size)

    def _wipe(self, _: Fault) -> None:
        self._removed()
        self.pair.master.cli("FLUSHALL")

    def _restart_empty(self, _: Fault) -> None:
        self._removed()
        self.pair.master.restart(empty=True)

    def _record_deleted(self, _: Fault) -> None:
        self._removed()
        self.pair.master.cli("DEL", _RECORD)

    def _removed(self) -> None:
        with Client(f"{self.pair.master.url}?restart_wait=0") as client:
            for holding in client.read(_NAME).holdings:
                self.listener.told.tell(Removed(_NAME, holding.holder, now() + 0.05))

    def _unreplicated(self, _: Fault) -> None:
        self.pair.links[self.pair.at].blackhole()

    def _unreplicated_ends(self, _: Fault) -> None:
        for link in self.pair.links:
            link.heal()

    def _cut_one_way(self, fault: Fault) -> None:
        wire = self._wire(fault)
        wire.drop_requests() if fault.size < 0 else wire.drop_replies()

    def _held_bytes(self, fault: Fault) -> None:
        self._wire(fault).blackhole()

    def _slow(self, fault: Fault) -> None:
        self._wire(fault).delay(0.05 + 0.1 * abs(fault.size))

    def _heals(self, fault: Fault) -> None:
        self._wire(fault).heal()

    _cut_one_way_ends = _held_bytes_ends = _slow_ends = _heals

    def _switchover(self, _: Fault) -> None:
        if not self.pair.both_run:
            return
        if "unreplicated" not in self.plan.kinds:
            self._await(self.pair.synced, _SYNC_WITHIN)
        self.pair.switch()
        self._move()

    def _there_and_back(self, fault: Fault) -> None:
        self._switchover(fault)

    _there_and_back_ends = _switchover

    def _failover(self, _: Fault) -> None:
        if not self.pair.both_run:
            return
        dead = self.pair.master
        dead.kill()
        self.pair.switch()
        self._move()

    def _failover_ends(self, _: Fault) -> None:
        for at, server in enumerate(self.pair.servers):
            if not server.is_running:
                server.start()
                self.pair.follow(at, self.pair.at)

    def _move(self) -> None:
        """The address is the new master's; what is connected stays where it is, or is cut."""
        for wire in self.wires:
            wire.target = ("127.0.0.1", self.pair.master.port)
            if not self.surviving:
                wire.cut()

    def _frozen(self, fault: Fault) -> None:
        self.parties[fault.who % len(self.parties)].send(signal.SIGSTOP)

    def _frozen_ends(self, fault: Fault) -> None:
        self.parties[fault.who % len(self.parties)].send(signal.SIGCONT)

    def _killed(self, fault: Fault) -> None:
        at = fault.who % len(self.parties)
        self.parties[at].kill()
        self.listener.died(f"p{at}", now())
        self.parties[at].start()
        self.orders[at]["seed"] += secrets.token_hex(2)
        self.parties[at].order(self.orders[at])

    def _store_frozen(self, _: Fault) -> None:
        self.pair.master.freeze()

    def _store_frozen_ends(self, _: Fault) -> None:
        for server in self.pair.servers:
            if server.is_running:
                server.thaw()


def _lasts(fault: Fault) -> float:
    """An interim master is one for long, or so shortly that only some connections notice."""
    return fault.lasts * (0.1 if fault.kind == "there and back" else 1.0)


def _long(fault: Fault) -> float:
    return round(TTL * (1.5 + 1.5 * abs(fault.size)), 2)


def excused(plan: Plan) -> frozenset[str]:
    """Rules that nobody can keep under these faults; docs/failures.md has each of them."""
    kinds = plan.kinds
    both = frozenset({"belief", "witness"})
    if kinds & {"record deleted", "step"}:
        # Who hears late that it was granted may work after a later holder: a fence refuses it.
        return both | {"tokens"}
    if "frozen" in kinds:
        # It looks at its lease before, and works on after: nothing but a fence, or a guard, helps.
        return frozenset({"witness"})
    return frozenset()


def judge(plan: Plan, history: History) -> list[Broken]:
    """What the plan's history breaks."""
    return check(history, but=excused(plan))


def play(plan: Plan) -> list[Broken]:
    """On a fleet of its own."""
    with Fleet() as fleet:
        return judge(plan, fleet.run(plan))
