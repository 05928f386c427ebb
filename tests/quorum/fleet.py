"""Contenders in processes of their own, and a schedule that befalls them and their masters."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from incumbent.clock import now
from tests.quorum.judge import Sight
from tests.quorum.schedule import CONTENDERS, OF_CONTENDERS, TTL, Schedule, Trouble
from tests.stores.quorum.world import Members
from tests.support.servers import ROOT

GRANT_WITHIN = 40.0
"""Seconds: new masters vote only when they have been up for a while."""
DONE_WITHIN = 30.0
_LOOK_EVERY = 0.01
_SLOWED_BY = 5
"""Where a nap takes that much longer than it should, a request takes more than it is given."""


class ContenderDied(RuntimeError):
    """A contender ended by itself: what came after that was not judged."""


class NobodyLed(AssertionError):
    """Nobody got the lease although all masters were well."""


class Starved(RuntimeError):
    """The machine did not run the processes: what came of that was not judged."""


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule. `recovery`: seconds from the last trouble to the next grant."""

    schedule: Schedule
    sight: Sight
    recovery: float
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def wrong(self) -> list[str]:
        return self.sight.wrong

    @property
    def report(self) -> str:
        said = "\n  ".join(self.wrong) or f"{len(self.sight.spans)} leases, nothing wrong"
        return f"seed {self.schedule.seed}: {self.schedule.text}\n  {said}"


class Contender:
    """One process of tests.quorum.contender; what it says goes to `hear`."""

    def __init__(self, url: str, kind: str, program: str = "tests.quorum.contender") -> None:
        self._command = [sys.executable, "-m", program, url, kind]
        self.hear: Callable[[dict[str, Any]], None] = lambda said: None
        self._idle = threading.Event()
        self._ready = threading.Event()
        self._ending = False
        self.start()

    def start(self) -> None:
        self._ending = False
        self._ready.clear()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def order(self, order: dict[str, Any]) -> None:
        self._idle.clear()
        self._write(json.dumps(order))

    def rest(self) -> None:
        """Contend no more, give back, and say so."""
        self._write("{}")

    def wait(self) -> None:
        if not self._idle.wait(DONE_WITHIN):
            self.look()
            if not self._ready.is_set():
                raise Starved("a contender did not start")
            raise NobodyLed("a contender did not come to rest")

    def await_start(self) -> None:
        """Return once it hears orders: that is nothing that a store has to answer for."""
        if not self._ready.wait(DONE_WITHIN):
            self.look()
            raise Starved("a contender did not start")

    def send(self, signum: int) -> None:
        self._process.send_signal(signum)

    def look(self) -> None:
        """Raise if it ended although nobody ended it."""
        if not self._ending and self._process.poll() is not None:
            raise ContenderDied(f"a contender ended with {self._process.returncode}")

    def kill(self) -> None:
        self._ending = True
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._close()

    def close(self) -> None:
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _write(self, line: str) -> None:
        # Killed just now: it is started again with the next order.
        with suppress(OSError):
            self._process.stdin.write(line + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            said = json.loads(line)
            self.hear(said)
            if "ready" in said:
                self._ready.set()
            if "done" in said:
                self._idle.set()


class Fleet:
    """Masters and contenders that live through one schedule after another."""

    def __init__(self, members: int, program: str = "tests.quorum.contender") -> None:
        self.members = Members(members)
        url = self.members.url()
        self.contenders = [Contender(url, kind, program) for kind in CONTENDERS]
        self._lock = threading.Lock()

    def run(self, schedule: Schedule) -> Outcome:
        """Let it befall them."""
        sight, errors = Sight(), Counter[str]()
        order = {"name": f"seed-{schedule.seed}-{secrets.token_hex(4)}", "ttl": TTL}
        orders = [{**order, "seed": schedule.seed * 10 + at} for at in range(len(self.contenders))]
        for contender in self.contenders:
            contender.await_start()
        for at, contender in enumerate(self.contenders):
            contender.hear = self._listener(sight, errors, f"contender {at}")
            contender.order(orders[at])
        try:
            self._await_grant(sight, 0.0)
            self._befall(schedule, orders)
            calm = now()
            recovery = self._await_grant(sight, calm) - calm
        finally:
            for contender in self.contenders:
                contender.rest()
        for contender in self.contenders:
            contender.wait()
        return Outcome(schedule, sight, recovery, dict(errors))

    def _listener(
        self, sight: Sight, errors: Counter[str], who: str
    ) -> Callable[[dict[str, Any]], None]:
        def hear(said: dict[str, Any]) -> None:
            with self._lock:
                if "token" in said:
                    sight.hear(who, said)
                errors.update(said.get("done", {}))

        return hear

    def _await_grant(self, sight: Sight, after: float) -> float:
        give_up, looks = now() + GRANT_WITHIN, 0
        while now() < give_up:
            with self._lock:
                begun = [span.begin for span in sight.spans if span.begin > after]
            if begun:
                return min(begun)
            for contender in self.contenders:
                contender.look()
            time.sleep(_LOOK_EVERY)
            looks += 1
        if looks < GRANT_WITHIN / _LOOK_EVERY / _SLOWED_BY:
            raise Starved(f"no grant within {GRANT_WITHIN} s, and only {looks} looks")
        raise NobodyLed(f"no grant within {GRANT_WITHIN} s")

    def _befall(self, schedule: Schedule, orders: list[dict[str, Any]]) -> None:
        start = now()
        events = sorted(
            [(one.at, 1, one) for one in schedule.troubles]
            + [(one.at + one.lasts, 2, one) for one in schedule.troubles],
            key=lambda event: event[:2],
        )
        for at, what, trouble in events:
            time.sleep(max(0.0, start + at - now()))
            self._turn(trouble, orders, begins=what == 1)

    def _turn(self, trouble: Trouble, orders: list[dict[str, Any]], *, begins: bool) -> None:
        if trouble.kind in OF_CONTENDERS:
            self._turn_contender(trouble, orders[trouble.who], begins=begins)
        elif begins:
            self.members.all[trouble.who].begin(trouble.kind)
        else:
            self.members.all[trouble.who].end()

    def _turn_contender(self, trouble: Trouble, order: dict[str, Any], *, begins: bool) -> None:
        contender = self.contenders[trouble.who]
        if trouble.kind == "contender stopped":
            contender.send(signal.SIGSTOP if begins else signal.SIGCONT)
        elif begins:
            contender.kill()
        else:
            contender.start()
            contender.order(order)

    def close(self) -> None:
        for contender in self.contenders:
            contender.close()
        self.members.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
