"""The scenes of `incumbent lead`, one fault after the other."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from incumbent.demo.accounts import Account
from incumbent.demo.acts import ALL, FOR_LONG, TTL, Acts, hold
from incumbent.demo.stage import Stage
from incumbent.demo.timeline import spell

__all__ = ["NAME", "SIDE", "WHO", "Ours"]

SIDE: Final = "ours"
NAME: Final = "switch-7"
WHO: Final = ("one", "two", "three")
_SEEN: Final = 0.5
_SILENT_FOR: Final = TTL + 0.6


class Ours:
    """Three contenders and what happens to them. `late` is the device's answer to a late write."""

    def __init__(self, stage: Stage, acts: Acts) -> None:
        self._stage, self._acts = stage, acts
        self.store: Path = stage.folder / "leases.db"
        self._running: dict[str, subprocess.Popen[str]] = {}
        self.late = ""

    def words(self, who: str) -> list[str]:
        """Its command line, without the interpreter."""
        options = ["lead", NAME, "--ttl", f"{TTL}s", "--holder", who]
        return ["-s", f"sqlite:///{self.store}", *options, "--", *self._stage.worker(SIDE, who)]

    def start(self, *names: str) -> None:
        """Start contenders."""
        for who in names:
            words = [sys.executable, "-m", "incumbent", *self.words(who)]
            self._running[who] = self._stage.start(who, words)

    def play(self) -> None:
        """All scenes. Raises Missed."""
        first = self._stage.next(SIDE, None, FOR_LONG)
        hold(_SEEN)
        second = self._kill(first)
        hold(_SEEN)
        third = self._freeze(second)
        self._thaw(second)
        fourth = self._silence(third)
        hold(_SEEN)
        self._hand_over(fourth)
        hold(_SEEN)

    def last_words(self) -> None:
        """Say what the contenders said last, for whoever looks for the reason."""
        for who in WHO:
            self._acts.say(f"{who} said last", self._stage.last_words(who) or "nothing")

    def _next(self, before: Account) -> Account:
        return self._stage.next(SIDE, before, FOR_LONG)

    def _kill(self, leader: Account) -> Account:
        at = self._acts.mark(leader.who, "K")
        self._stage.kill(self._running[leader.who])
        following = self._next(leader)
        self._acts.say(
            f"{leader.who} is killed, its whole tree",
            f"{following.who} leads {_after(at, following.first)} later",
        )
        # As whatever runs it in earnest would.
        self.start(leader.who)
        return following

    def _freeze(self, leader: Account) -> Account:
        at = self._acts.mark(leader.who, "S")
        self._running[leader.who].send_signal(signal.SIGSTOP)
        stopped = self._stage.gone(leader, FOR_LONG)
        following = self._next(leader)
        self._acts.say(
            f"the supervisor of {leader.who} is frozen",
            f"its worker is stopped {_after(at, stopped.last)} later, and"
            f" {_after(stopped.last, following.first)} after its last write {following.who} leads",
        )
        hold(_SEEN)
        return following

    def _thaw(self, late: Account) -> None:
        self._acts.mark(late.who, "C")
        self._running[late.who].send_signal(signal.SIGCONT)
        self.late = self._write(late.term)
        self._acts.say(
            f"{late.who} is thawed; a late write with its term {late.term}",
            f"{self.late} by the device",
        )
        hold(_SEEN)

    def _write(self, term: int) -> str:
        with socket.socket(socket.AF_UNIX) as device:
            device.settimeout(FOR_LONG)
            device.connect(str(self._stage.folder / "device"))
            device.sendall(f"{SIDE} {term}\n".encode())
            return device.recv(64).decode().strip()

    def _silence(self, leader: Account) -> Account:
        with self._stage.silence(self.store):
            at = self._acts.mark(ALL, "S")
            stopped = self._stage.gone(leader, FOR_LONG)
            hold(max(0.0, at + _SILENT_FOR - time.monotonic()))
            back = self._acts.mark(ALL, "C")
            nobody = not [a for a in self._stage.accounts(SIDE) if a.at > leader.at]
        self._acts.silent.append((at, back))
        self._acts.say(
            "the store is silent",
            f"{leader.who} is stopped {_after(at, stopped.last)} later;"
            f" {'nobody leads' if nobody else 'ANOTHER LED'} until it is back",
        )
        following = self._next(leader)
        self._acts.say(
            "the store is back", f"{following.who} leads {_after(back, following.first)} later"
        )
        return following

    def _hand_over(self, leader: Account) -> None:
        at = self._acts.mark(leader.who, "T")
        self._running[leader.who].terminate()
        stopped = self._stage.gone(leader, FOR_LONG)
        following = self._next(leader)
        self._acts.say(
            f"{leader.who} is asked to leave (TERM)",
            f"{following.who} leads {_after(stopped.last, following.first)} after its last write,"
            f" {_after(at, following.first)} after TERM",
        )


def _after(begin: float | None, end: float | None) -> str:
    return "never" if begin is None or end is None else spell(end - begin)
