"""The same kinds of faults for the plain loop, at the same time, before the same judge."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import Final

from incumbent.demo.accounts import Account, writes_beside
from incumbent.demo.acts import ALL, FOR_LONG, TTL, Acts, hold
from incumbent.demo.stage import Missed, Stage
from incumbent.demo.timeline import spell

__all__ = ["SIDE", "WHO", "Plain"]

SIDE: Final = "plain"
WHO: Final = ("four", "five", "six")
_SEEN: Final = 0.5
_BESIDE: Final = 0.8
_SILENCES: Final = 2
_SILENT_FOR: Final = (TTL + 0.3, TTL + 1.0)
"""Drawn anew each time: what follows depends on where in its period of renewals the loop is."""


class Plain:
    """Three plain loops and what happens to them. Accounts are read once the judge has rested."""

    def __init__(self, stage: Stage, acts: Acts) -> None:
        self._stage, self._acts = stage, acts
        self._store = stage.folder / "plain.db"
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._frozen: tuple[Account, Account] | None = None
        self._silent: list[tuple[Account, Account]] = []

    def start(self) -> None:
        """Start the contenders."""
        for who in WHO:
            command = ["--", *self._stage.worker(SIDE, who)]
            module = [sys.executable, "-m", "incumbent.demo.naive"]
            words = [*module, str(self._store), who, str(TTL), *command]
            self._running[who] = self._stage.start(who, words)

    def play(self) -> None:
        """All scenes; one that missed its end is said by `Acts.missed`."""
        try:
            self._play()
        except Missed as missed:
            self._acts.missed = str(missed)

    def _play(self) -> None:
        first = self._stage.next(SIDE, None, FOR_LONG)
        hold(_SEEN)
        second = self._freeze(first)
        self._thaw(first)
        leader = second
        for _ in range(_SILENCES):
            leader = self._silence(leader)
            hold(_SEEN)

    def _freeze(self, leader: Account) -> Account:
        self._acts.mark(leader.who, "S")
        self._running[leader.who].send_signal(signal.SIGSTOP)
        following = self._stage.next(SIDE, leader, FOR_LONG)
        hold(_BESIDE)
        self._frozen = (leader, following)
        return following

    def _thaw(self, leader: Account) -> None:
        self._acts.mark(leader.who, "C")
        self._running[leader.who].send_signal(signal.SIGCONT)
        self._stage.gone(leader, FOR_LONG)
        hold(_SEEN)

    def _silence(self, leader: Account) -> Account:
        with self._stage.silence(self._store):
            at = self._acts.mark(ALL, "S")
            hold(random.uniform(*_SILENT_FOR))
            back = self._acts.mark(ALL, "C")
        self._acts.silent.append((at, back))
        following = self._stage.next(SIDE, leader, FOR_LONG)
        self._stage.gone(leader, FOR_LONG)
        self._silent.append((leader, following))
        return following

    def tell(self) -> None:
        """Say what the judge has measured; to be called after its rest."""
        by_number = {account.number: account for account in self._stage.accounts(SIDE)}
        if self._frozen is not None:
            old, new = (by_number[account.number] for account in self._frozen)
            self._acts.say(f"the supervisor of {old.who} is frozen, then thawed", _shared(old, new))
        for pair, (at, back) in zip(self._silent, self._acts.silent, strict=False):
            old, new = (by_number[account.number] for account in pair)
            wrote = max(0.0, min(old.last or at, back) - at)
            self._acts.say(
                "the store is silent, then back",
                f"{old.who} wrote for {spell(wrote)} of {spell(back - at)} without an answer;"
                f" then {_shared(old, new)}",
            )


def _shared(old: Account, new: Account) -> str:
    seconds = writes_beside(old, new)
    if seconds <= 0:
        return "no overlap this time"
    return f"{old.who} and {new.who} both wrote for {spell(seconds)}"
