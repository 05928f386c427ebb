"""The processes of the demo, in a folder of their own.

Nothing outlives the demo: it ends what it started, a KILL of the demo itself ends its children
(Linux's parent-death signal), and workers end with the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeVar

from incumbent.supervise.kernel import below, die_with_parent, pidfds, readable

PATIENCE: Final = 6.0
"""Seconds that a scene waits for what must happen."""
_SOCKET_PATH_MAX: Final = 60
_LOOK_EVERY: Final = 0.01

T = TypeVar("T")


class Missed(Exception):
    """Something that a scene waited for did not happen."""


class Stage:
    """A context manager: the folder, the judge, and everything that is started in it.

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
        within = None if len(tempfile.gettempdir()) <= _SOCKET_PATH_MAX else "/tmp"  # noqa: S108
        self.folder = Path(tempfile.mkdtemp(prefix="incumbent-demo-", dir=within))
        self._judge = self.folder / "judge"
        try:
            self.start("judge", [sys.executable, "-m", "incumbent.demo.judge", str(self._judge)])
            self.until(self._judge.exists, "the judge did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- waiting ---------------------------------------------------------------------------------

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        # Only noted: an exception could come while a process is being started, which then leaks.
        self._signal = signum

    def hold(self, seconds: float) -> None:
        """Wait. Raises SystemExit if the demo is asked to end meanwhile (INT, TERM)."""
        until = time.monotonic() + seconds
        while True:
            if self._signal:
                raise SystemExit(128 + self._signal)
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, _LOOK_EVERY))

    def until(self, look: Callable[[], T | None], failure: str) -> T:
        """Wait for `look` to return something true, and return it. Raises Missed."""
        until = time.monotonic() + PATIENCE
        while not (found := look()):
            if time.monotonic() > until:
                raise Missed(f"{failure} within {PATIENCE:g} s")
            self.hold(_LOOK_EVERY)
        return found

    # -- processes -------------------------------------------------------------------------------

    def start(self, who: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a file in the folder."""
        # The user's own settings stay outside: the demo is the same on every machine.
        environ = {key: os.environ[key] for key in os.environ if not key.startswith("INCUMBENT_")}
        with (self.folder / f"{who}.log").open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A killed process cannot remove its temporary files: they go with the folder.
                env={**environ, "TMPDIR": str(self.folder)},
                cwd=self.folder,
                # ^C is for the demo alone.
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
        process.kill()
        for fd in fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in fds:
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
        return [sys.executable, "-I", "-S", str(script), str(self._judge), side, who]

    def ask(self, **message: Any) -> Any:
        """The judge's answer to one message (see judge.py)."""
        with socket.socket(socket.AF_UNIX) as judge:
            judge.settimeout(PATIENCE)
            judge.connect(str(self._judge))
            judge.sendall(json.dumps(message).encode())
            with judge.makefile() as answers:
                return json.loads(answers.readline())
