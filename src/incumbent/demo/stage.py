"""The processes of the demo: started here, ended here by their pids; their folder goes with them.

Nothing outlives the demo: it ends what it started, `KILL` of the demo itself ends its children
(Linux's parent-death signal), and workers end when the judge is gone.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Self

from incumbent.demo.accounts import Account
from incumbent.demo.leaving import Leaving
from incumbent.supervise.kernel import die_with_parent, pidfds

__all__ = ["Missed", "Stage"]

_SOCKET_PATH_MAX: Final = 60
_LOOK_EVERY: Final = 0.005
_GONE_WITHIN: Final = 2.0


class Missed(Exception):
    """What a scene waited for did not come."""


class Stage:
    """A context manager: the folder, the judge, the device, and all that is started on it."""

    def __init__(self, leaving: Leaving) -> None:
        self._leaving = leaving
        self._started: list[subprocess.Popen[str]] = []
        self._accounts: dict[int, Account] = {}
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._over = False

    def __enter__(self) -> Self:
        # The path of a unix socket may have 107 bytes.
        within = None if len(tempfile.gettempdir()) <= _SOCKET_PATH_MAX else "/tmp"  # noqa: S108
        self.folder = Path(tempfile.mkdtemp(prefix="incumbent-demo-", dir=within))
        try:
            self._judge = self._serve("judge")
            self._serve("device")
            self._wait_for_sockets()
        except BaseException:
            self.__exit__()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._over = True
        for process in reversed(self._started):
            self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- processes -------------------------------------------------------------------------------

    def start(self, who: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """A contender; what it says goes to a file in the folder. From the main thread only."""
        with (self.folder / f"{who}.log").open("a", encoding="utf-8") as log:
            return self._start(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def helper(self, module: str, *words: str) -> subprocess.Popen[str]:
        """A process of this package, which ends with its standard input."""
        command = [sys.executable, "-m", f"incumbent.demo.{module}", *words]
        return self._start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)

    def worker(self, side: str, who: str) -> list[str]:
        """The command line of a worker."""
        script = Path(__file__).with_name("worker.py")
        return [sys.executable, "-I", "-S", str(script), str(self.folder), side, who]

    def kill(self, process: subprocess.Popen[str]) -> None:
        """KILL it and all that it started."""
        # pidfds: a pid that is free again by now may be somebody else's.
        fds = pidfds(_tree(process.pid)) if process.poll() is None else []
        process.kill()
        for fd in fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in fds:
            select.select([fd], [], [], _GONE_WITHIN)
            os.close(fd)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def last_words(self, who: str) -> str:
        """The last line that a contender said; empty if none."""
        log = self.folder / f"{who}.log"
        lines = (
            log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
        )
        return next((line for line in reversed(lines) if line.strip()), "")

    @contextmanager
    def silence(self, store: Path) -> Iterator[None]:
        """While this is open nobody can write to `store`."""
        holder = self.helper("silence", str(store))
        if holder.stdout is None or holder.stdout.readline() != "silent\n":
            raise Missed("the store could not be made silent")
        try:
            yield
        finally:
            end_of_input(holder)

    def _serve(self, module: str) -> subprocess.Popen[str]:
        return self.helper(module, str(self.folder / module))

    def _start(
        self,
        words: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[str],
        stderr: int | IO[str] | None,
    ) -> subprocess.Popen[str]:
        with self._leaving.later(), self._starting:
            if self._over:
                raise Missed("the demo is over")
            process = self._popen(words, stdin, stdout, stderr)
            self._started.append(process)
        return process

    def _popen(
        self, words: Sequence[str], stdin: int, stdout: int | IO[str], stderr: int | IO[str] | None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=_environment(os.environ, self.folder),
            cwd=self.folder,
            # ^C is ours to handle, and reaches nobody else.
            process_group=0,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - it only makes system calls
        )

    def _wait_for_sockets(self) -> None:
        until = time.monotonic() + _GONE_WITHIN * 2
        while not all((self.folder / name).exists() for name in ("judge", "device")):
            if time.monotonic() > until:
                raise Missed("the judge did not start")
            time.sleep(_LOOK_EVERY)

    # -- what the judge says ---------------------------------------------------------------------

    def _read(self) -> None:
        lines = self._judge.stdout
        for line in lines or ():
            account = Account(**json.loads(line))
            with self._changed:
                self._accounts[account.number] = account
                self._changed.notify_all()

    def accounts(self, side: str) -> list[Account]:
        """All of a side, by their beginning."""
        with self._changed:
            found = [account for account in self._accounts.values() if account.side == side]
        return sorted(found, key=lambda account: account.at)

    def next(self, side: str, after: Account | None, within: float) -> Account:
        """The next one that writes, of those that began after `after`. Raises Missed."""

        def look() -> Account | None:
            later = (a for a in self._accounts.values() if after is None or a.at > after.at)
            return next((a for a in later if a.side == side and a.first is not None), None)

        return self._await(look, within, "nobody took the lead")

    def gone(self, account: Account, within: float) -> Account:
        """The account as it is once nothing of that worker lives. Raises Missed."""

        def look() -> Account | None:
            known = self._accounts[account.number]
            return known if known.gone is not None else None

        return self._await(look, within, f"the worker of {account.who} was not stopped")

    def _await(self, look: Callable[[], Account | None], within: float, failed: str) -> Account:
        until = time.monotonic() + within
        with self._changed:
            while (found := look()) is None:
                left = until - time.monotonic()
                if left <= 0:
                    raise Missed(f"{failed} within {within:g} s")
                self._changed.wait(left)
        return found

    def rest(self) -> None:
        """Have the judge give its last account of everybody. Nothing may be started after it."""
        end_of_input(self._judge)
        self._reader.join(_GONE_WITHIN)


def end_of_input(process: subprocess.Popen[str]) -> None:
    """Close a helper's standard input, and wait until it has ended."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_GONE_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Without the user's own settings: the demo shows the same on every machine."""
    kept = {name: value for name, value in environ.items() if not name.startswith("INCUMBENT_")}
    # Who is killed cannot remove its temporary files: they go with our folder.
    return {**kept, "TMPDIR": str(folder)}


def _tree(pid: int) -> list[int]:
    """The descendants of a process, where the system lists them."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [*found, *(below for child in found for below in _tree(child))]
