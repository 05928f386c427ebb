"""The scenes of both sides: `incumbent lead`, and a plain loop beside it."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import ClassVar, Final, NamedTuple

from incumbent.demo.judge import Account, writes_beside
from incumbent.demo.stage import PATIENCE, Missed, Stage

TTL: Final = 1.2
"""Seconds; of both sides."""
STORE: Final = "store"
_SEEN: Final = 0.5
"""Seconds that a leader leads undisturbed, so that there is something to see."""


class Scene(NamedTuple):
    """What happened, and what was measured."""

    number: int
    title: str
    measured: str


class Side:
    """Three contenders and the faults that happen to them; `show` gets each scene at its end."""

    name: ClassVar[str]
    contenders: ClassVar[tuple[str, ...]]

    def __init__(self, stage: Stage, show: Callable[[Scene], object]) -> None:
        self.stage = stage
        self.store = stage.folder / f"{self.name}.db"
        self.marks: dict[str, list[tuple[float, str]]] = {}
        self.silences: list[tuple[float, float]] = []
        self.missed = ""
        """Why it was broken off."""
        self._show = show
        self._scenes = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, who: str) -> list[str]:
        """The command line of a contender, without the interpreter."""
        raise NotImplementedError

    def play(self) -> None:
        """All scenes. Raises Missed."""
        raise NotImplementedError

    def run(self) -> None:
        """All scenes; `missed` says which did not come to its end."""
        try:
            self.play()
        except Missed as missed:
            self.missed = str(missed)

    def start(self, *names: str) -> None:
        """Start contenders. In the main thread: the kernel ends them with the thread."""
        for who in names:
            words = [sys.executable, "-m", *self.command(who)]
            self._running[who] = self.stage.start(who, words)

    def accounts(self) -> list[Account]:
        """The workers of this side as they are now, in the order of their beginnings."""
        return [Account(**facts) for facts in self.stage.ask(accounts=self.name)]

    def scene(self, title: str, measured: str) -> None:
        """Show what was measured, and let the present leader lead for a moment."""
        self._scenes += 1
        self._show(Scene(self._scenes, title, measured))
        self.stage.hold(_SEEN)

    def _mark(self, who: str, sign: str) -> float:
        now = time.monotonic()
        self.marks.setdefault(who, []).append((now, sign))
        return now

    def _signal(self, leader: Account, sign: str, signum: int) -> float:
        at = self._mark(leader.who, sign)
        self._running[leader.who].send_signal(signum)
        return at

    def _first(self, wanted: Callable[[Account], object], failure: str) -> Account:
        return self.stage.until(lambda: next(filter(wanted, self.accounts()), None), failure)

    def _next(self, before: Account | None = None) -> Account:
        """The first worker that writes, of those that began after `before`."""
        number = -1 if before is None else before.number
        return self._first(lambda a: a.number > number and a.first_write, "nobody took the lead")

    def _ended(self, account: Account) -> Account:
        """The account once nothing of that worker lives."""
        failure = f"the worker of {account.who} was not stopped"
        return self._first(lambda a: a.number == account.number and a.ended, failure)

    @contextmanager
    def _silence(self) -> Iterator[float]:
        """Keep the one write transaction of the store open: nobody else can write to it."""
        with closing(sqlite3.connect(self.store, PATIENCE, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            at = self._mark(STORE, "S")
            yield at
            self.silences.append((at, self._mark(STORE, "C")))


class Ours(Side):
    """`incumbent lead`. `late` is the device's answer to the late write."""

    name = "ours"
    contenders = ("one", "two", "three")
    late = ""

    def command(self, who: str) -> list[str]:
        options = ["lead", "switch-7", "--ttl", f"{TTL}s", "--holder", who]
        worker = self.stage.worker(self.name, who)
        return ["incumbent", "-s", f"sqlite:///{self.store}", *options, "--", *worker]

    def play(self) -> None:
        first = self._next()
        self.stage.hold(_SEEN)
        second = self._kill(first)
        third = self._freeze(second)
        self._thaw(second)
        fourth = self._silence_store(third)
        self._hand_over(fourth)

    def _kill(self, leader: Account) -> Account:
        at = self._mark(leader.who, "K")
        self.stage.kill(self._running[leader.who])
        following = self._next(leader)
        self.scene(
            f"{leader.who} is killed, its whole tree",
            f"{following.who} leads {_after(at, following.first_write)} later",
        )
        self.start(leader.who)  # As a service manager would.
        return following

    def _freeze(self, leader: Account) -> Account:
        at = self._signal(leader, "S", signal.SIGSTOP)
        stopped = self._ended(leader)
        following = self._next(leader)
        self.scene(
            f"the supervisor of {leader.who} is frozen",
            f"its worker is stopped {_after(at, stopped.last_write)} later, and"
            f" {_after(stopped.last_write, following.first_write)} after its last write"
            f" {following.who} leads",
        )
        return following

    def _thaw(self, frozen: Account) -> None:
        self._signal(frozen, "C", signal.SIGCONT)
        self.late = self.stage.ask(write=frozen.term, side=self.name)
        self.scene(
            f"{frozen.who} is thawed; a late write with its term {frozen.term}",
            f"{self.late} by the device",
        )

    def _silence_store(self, leader: Account) -> Account:
        with self._silence() as at:
            stopped = self._ended(leader)
            self.stage.hold(at + TTL + 0.6 - time.monotonic())
            nobody = self.accounts()[-1].number == leader.number
        self.scene(
            "the store is silent",
            f"{leader.who} is stopped {_after(at, stopped.last_write)} later;"
            f" {'nobody leads' if nobody else 'ANOTHER LED'} until it is back",
        )
        following = self._next(leader)
        back = self.silences[-1][1]
        self.scene(
            "the store is back",
            f"{following.who} leads {_after(back, following.first_write)} later",
        )
        return following

    def _hand_over(self, leader: Account) -> None:
        at = self._signal(leader, "T", signal.SIGTERM)
        stopped = self._ended(leader)
        following = self._next(leader)
        self.scene(
            f"{leader.who} is asked to leave (TERM)",
            f"{following.who} leads {_after(stopped.last_write, following.first_write)} after its"
            f" last write, {_after(at, following.first_write)} after TERM",
        )


class Plain(Side):
    """The plain loop: a leader is frozen and thawed, then the store is silent twice."""

    name = "plain"
    contenders = ("four", "five", "six")

    def command(self, who: str) -> list[str]:
        worker = self.stage.worker(self.name, who)
        return ["incumbent.demo.naive", str(self.store), str(TTL), *worker]

    def play(self) -> None:
        first = self._next()
        self.stage.hold(_SEEN)
        leader = self._freeze(first)
        for _ in range(2):
            leader = self._silence_store(leader)

    def _freeze(self, leader: Account) -> Account:
        self._signal(leader, "S", signal.SIGSTOP)
        following = self._next(leader)
        self.stage.hold(0.8)
        self._signal(leader, "C", signal.SIGCONT)
        stopped = self._ended(leader)
        self.scene(
            f"the supervisor of {leader.who} is frozen, then thawed", _shared(stopped, following)
        )
        return following

    def _silence_store(self, leader: Account) -> Account:
        with self._silence() as at:
            # Drawn at random: the result depends on where in its interval the renewing thread is.
            self.stage.hold(random.uniform(TTL + 0.3, TTL + 1.0))
        back = self.silences[-1][1]
        following = self._next(leader)
        stopped = self._ended(leader)
        wrote = max(0.0, min(stopped.last_write or at, back) - at)
        self.scene(
            "the store is silent, then back",
            f"{leader.who} wrote for {spell(wrote)} of {spell(back - at)} without an answer;"
            f" then {_shared(stopped, following)}",
        )
        return following


def spell(seconds: float) -> str:
    """A measured time with two digits that mean something."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def _after(begin: float | None, end: float | None) -> str:
    return "never" if begin is None or end is None else spell(end - begin)


def _shared(old: Account, new: Account) -> str:
    seconds = writes_beside(old, new)
    if seconds <= 0:
        return "no overlap this time"
    return f"{old.who} and {new.who} both wrote for {spell(seconds)}"
