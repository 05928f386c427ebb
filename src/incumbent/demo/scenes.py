"""The scenes of both sides: `incumbent lead`, and a plain loop beside it.

No process outlives the demo: it ends its children, a KILL of the demo itself ends them
(Linux's parent-death signal), and workers end with the judge.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from incumbent.demo.judge import Account
from incumbent.supervise.kernel import below, die_with_parent, pidfds, readable

PATIENCE: Final = 15.0
"""Seconds that a scene waits for an expected event."""
_SOCKET_PATH_MAX: Final = 60
_POLL_INTERVAL: Final = 0.01

T = TypeVar("T")


class Missed(Exception):
    """An event that a scene waited for did not happen."""


class Stage:
    """A context manager: the folder, the judge, and every process that is started there.

    Use it in the main thread; other threads may only wait and ask.
    """

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._signal = 0

    def __enter__(self) -> Self:
        for signum in (signal.SIGINT, signal.SIGTERM):
            # Shells start background processes with INT ignored.
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)
        # The path of a unix socket may have 107 bytes.
        parent = None if len(tempfile.gettempdir()) <= _SOCKET_PATH_MAX else "/tmp"  # noqa: S108
        self.folder = Path(tempfile.mkdtemp(prefix="incumbent-demo-", dir=parent))
        self._judge = self.folder / "judge"
        try:
            self.start("judge", [sys.executable, "-m", "incumbent.demo.judge", str(self._judge)])
            self.wait_for(self._judge.exists, "the judge did not start")
        except BaseException:
            # `with` does not leave what it could not enter, and the judge may be running by now.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- waiting ---------------------------------------------------------------------------------

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        # Raise nothing here: a process that is being started would leak.
        self._signal = signum

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. Raises SystemExit if the demo has to end meanwhile (INT, TERM)."""
        # In short steps: the handler only notes the signal, and a sleep goes on after it (PEP 475).
        until = time.monotonic() + seconds
        while True:
            if self._signal:
                raise SystemExit(128 + self._signal)
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, _POLL_INTERVAL))

    def wait_for(self, condition: Callable[[], T | None], failure: str) -> T:
        """Poll `condition` until it is true and return its value. Raises Missed."""
        until = time.monotonic() + PATIENCE
        while not (found := condition()):
            if time.monotonic() > until:
                raise Missed(f"{failure} within {PATIENCE:g} s")
            self.sleep(_POLL_INTERVAL)
        return found

    # -- processes -------------------------------------------------------------------------------

    def start(self, who: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a file in the folder."""
        # Leave the user's own settings out, so that the demo is the same on every machine.
        environ = {key: os.environ[key] for key in os.environ if not key.startswith("INCUMBENT_")}
        with (self.folder / f"{who}.log").open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A killed process leaves its temporary files: they are removed with the folder.
                env={**environ, "TMPDIR": str(self.folder)},
                cwd=self.folder,
                # ^C reaches the demo alone.
                process_group=0,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - it only makes system calls
            )
        self._started.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """KILL a process and everything that it started."""
        fds = []
        with suppress(OSError):
            # pidfds: a pid that is free again may belong to another process by now.
            fds = pidfds(below(process.pid)) if process.poll() is None else []
        # Before what it started: it must not see that end, and start another in the meantime.
        process.kill()
        for fd in fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in fds:
            # They are not our children, so only their pidfds tell when they have ended.
            readable(fd, within=2.0)
            os.close(fd)
        process.wait()

    def last_words(self, who: str) -> str:
        """The last line of a contender's output, or "nothing"."""
        log = (self.folder / f"{who}.log").read_text(errors="replace")
        return next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")

    # -- the judge -------------------------------------------------------------------------------

    def worker(self, side: str, who: str) -> list[str]:
        """The command line of a worker."""
        script = Path(__file__).with_name("worker.py")
        # Without site-packages: it starts faster, and its start is part of each measured gap.
        return [sys.executable, "-I", "-S", str(script), str(self._judge), side, who]

    def ask(self, **message: Any) -> Any:
        """The judge's answer to one message (see judge.py)."""
        with socket.socket(socket.AF_UNIX) as judge:
            judge.settimeout(PATIENCE)
            judge.connect(str(self._judge))
            judge.sendall(json.dumps(message).encode())
            with judge.makefile() as answers:
                return json.loads(answers.readline())


# -- the scenes ------------------------------------------------------------------------------------


TTL: Final = 1.2
"""The ttl of both sides, in seconds."""
STORE: Final = "store"
_SEEN: Final = 0.5
"""Seconds that a leader leads undisturbed, so that there is something to see."""


class Scene(NamedTuple):
    """The title of an event, and the times that were measured."""

    number: int
    title: str
    measured: str


class DemoSide:
    """Three contenders and the faults that happen to them; `show` gets each scene at its end."""

    name: ClassVar[str]
    contenders: ClassVar[tuple[str, ...]]

    def __init__(self, stage: Stage, show: Callable[[Scene], object]) -> None:
        self.stage = stage
        self.store = stage.folder / f"{self.name}.db"
        self.marks: dict[str, list[tuple[float, str]]] = {}
        self.silences: list[tuple[float, float]] = []
        self.missed = ""
        """Why the scenes were broken off; "" if they were not."""
        self._show = show
        self._scenes = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, who: str) -> list[str]:
        """The command line of a contender, without the interpreter."""
        raise NotImplementedError

    def play(self) -> None:
        """Play all scenes. Raises Missed."""
        raise NotImplementedError

    def run(self) -> None:
        """Play all scenes; `missed` tells the event that did not happen."""
        try:
            self.play()
        except Missed as missed:
            self.missed = str(missed)

    def start(self, *names: str) -> None:
        """Start contenders. Use the main thread: the kernel ends them with the thread."""
        for who in names:
            words = [sys.executable, "-m", *self.command(who)]
            self._running[who] = self.stage.start(who, words)

    def accounts(self) -> list[Account]:
        """The present accounts of this side's workers, in the order of their beginnings."""
        return [Account(**facts) for facts in self.stage.ask(accounts=self.name)]

    def scene(self, title: str, measured: str) -> None:
        """Show what was measured, and let the present leader lead for a moment."""
        self._scenes += 1
        self._show(Scene(self._scenes, title, measured))
        self.stage.sleep(_SEEN)

    def _mark(self, who: str, sign: str) -> float:
        """Note an event at this instant: K killed, S frozen or silent, C goes on, T asked to leave.

        The drawing shows the signs (see story._LEGEND).
        """
        now = time.monotonic()
        self.marks.setdefault(who, []).append((now, sign))
        return now

    def _signal(self, leader: Account, sign: str, signum: int) -> float:
        # Before the signal is sent: a reaction must not come out faster than it was.
        at = self._mark(leader.who, sign)
        self._running[leader.who].send_signal(signum)
        return at

    def _wait_for_account(self, wanted: Callable[[Account], object], failure: str) -> Account:
        return self.stage.wait_for(lambda: next(filter(wanted, self.accounts()), None), failure)

    def _wait_for_leader(self, before: Account | None = None) -> Account:
        """Wait for the first worker that began after `before` and has written."""
        number = -1 if before is None else before.number
        failure = "nobody took the lead"
        return self._wait_for_account(lambda a: a.number > number and a.first_write, failure)

    def _wait_for_end(self, account: Account) -> Account:
        """Wait until no process of that worker lives."""
        failure = f"the worker of {account.who} was not stopped"
        return self._wait_for_account(lambda a: a.number == account.number and a.ended, failure)

    @contextmanager
    def _silence(self) -> Iterator[float]:
        """Keep the store's only write transaction open, so that nobody else can write to it."""
        with closing(sqlite3.connect(self.store, PATIENCE, isolation_level=None)) as connection:
            # IMMEDIATE: a plain BEGIN takes no lock before it writes, so the store would not be
            # silent.
            connection.execute("BEGIN IMMEDIATE")
            at = self._mark(STORE, "S")
            yield at
            # Before the transaction ends: the way back may come out slower than it was, but not
            # faster.
            self.silences.append((at, self._mark(STORE, "C")))


class Ours(DemoSide):
    """`incumbent lead`. `late`: the device's answer to the late write; the judge is the device."""

    name = "ours"
    contenders = ("one", "two", "three")
    late = ""

    def command(self, who: str) -> list[str]:
        options = ["lead", "switch-7", "--ttl", f"{TTL}s", "--holder", who]
        worker = self.stage.worker(self.name, who)
        return ["incumbent", "-s", f"sqlite:///{self.store}", *options, "--", *worker]

    def play(self) -> None:
        first = self._wait_for_leader()
        self.stage.sleep(_SEEN)
        second = self._kill(first)
        third = self._freeze(second)
        self._thaw(second)
        fourth = self._silence_store(third)
        self._hand_over(fourth)

    def _kill(self, leader: Account) -> Account:
        at = self._mark(leader.who, "K")
        self.stage.kill(self._running[leader.who])
        following = self._wait_for_leader(leader)
        self.scene(
            f"{leader.who} is killed, its whole tree",
            f"{following.who} leads {_after(at, following.first_write)} later",
        )
        self.start(leader.who)  # A service manager would restart it, too.
        return following

    def _freeze(self, leader: Account) -> Account:
        at = self._signal(leader, "S", signal.SIGSTOP)
        stopped = self._wait_for_end(leader)
        following = self._wait_for_leader(leader)
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
            stopped = self._wait_for_end(leader)
            # Past the ttl: whoever would lead without the store would have begun by now.
            self.stage.sleep(at + TTL + 0.6 - time.monotonic())
            nobody = self.accounts()[-1].number == leader.number
        self.scene(
            "the store is silent",
            f"{leader.who} is stopped {_after(at, stopped.last_write)} later;"
            f" {'nobody leads' if nobody else 'ANOTHER LED'} until it is back",
        )
        following = self._wait_for_leader(leader)
        back = self.silences[-1][1]
        self.scene(
            "the store is back",
            f"{following.who} leads {_after(back, following.first_write)} later",
        )
        return following

    def _hand_over(self, leader: Account) -> None:
        at = self._signal(leader, "T", signal.SIGTERM)
        stopped = self._wait_for_end(leader)
        following = self._wait_for_leader(leader)
        self.scene(
            f"{leader.who} is asked to leave (TERM)",
            f"{following.who} leads {_after(stopped.last_write, following.first_write)} after its"
            f" last write, {_after(at, following.first_write)} after TERM",
        )


class Plain(DemoSide):
    """The plain loop: a leader is frozen and thawed, then the store is silent twice."""

    name = "plain"
    contenders = ("four", "five", "six")

    def command(self, who: str) -> list[str]:
        worker = self.stage.worker(self.name, who)
        return ["incumbent.demo.naive", str(self.store), str(TTL), *worker]

    def play(self) -> None:
        first = self._wait_for_leader()
        self.stage.sleep(_SEEN)
        leader = self._freeze(first)
        for _ in range(2):
            leader = self._silence_store(leader)

    def _freeze(self, leader: Account) -> Account:
        self._signal(leader, "S", signal.SIGSTOP)
        following = self._wait_for_leader(leader)
        self.stage.sleep(0.8)
        self._signal(leader, "C", signal.SIGCONT)
        stopped = self._wait_for_end(leader)
        self.scene(
            f"the supervisor of {leader.who} is frozen, then thawed",
            _describe_overlap(stopped, following),
        )
        return following

    def _silence_store(self, leader: Account) -> Account:
        with self._silence() as at:
            # Drawn at random: the result depends on where in its interval the renewing thread is.
            self.stage.sleep(random.uniform(TTL + 0.3, TTL + 1.0))
        back = self.silences[-1][1]
        following = self._wait_for_leader(leader)
        stopped = self._wait_for_end(leader)
        wrote = max(0.0, min(stopped.last_write or at, back) - at)
        self.scene(
            "the store is silent, then back",
            f"{leader.who} wrote for {spell(wrote)} of {spell(back - at)} without an answer;"
            f" then {_describe_overlap(stopped, following)}",
        )
        return following


def spell(seconds: float) -> str:
    """A measured time with about two significant digits."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def _after(begin: float | None, end: float | None) -> str:
    return "never" if begin is None or end is None else spell(end - begin)


def _describe_overlap(old: Account, new: Account) -> str:
    # `new` is as it was at its first write, and has gone on since.
    ends, begins = old.last_write, new.first_write
    seconds = 0.0 if ends is None or begins is None else ends - begins
    if seconds <= 0:
        return "no overlap this time"
    return f"{old.who} and {new.who} both wrote for {spell(seconds)}"
