"""Programs that refuse to run as root, run by an unprivileged user: who must be able to read them.

Not root: everything is one's own, and nothing changes hands.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.servers import SERVERS, ServerFailed, find_server

GONE_WITHIN = 10.0
UNPRIVILEGED = "nobody"
RUN = "TEST_RUN_FOLDER"
"""The variable that names the folder of a run; the workers of pytest-xdist inherit it."""
MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes of memory that must be free before data folders are made there."""


def start(command: Sequence[str | Path], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **_as_user()
    )


def run(command: Sequence[str | Path], said: str = "") -> None:
    done = subprocess.run(
        command,
        check=False,
        input=said,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
        **_as_user(),
    )
    if done.returncode:
        raise ServerFailed(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")


def _as_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": UNPRIVILEGED, "group": _group(), "extra_groups": []}


@functools.cache
def _group() -> int:
    import pwd

    return pwd.getpwnam(UNPRIVILEGED).pw_gid


def give_away(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, UNPRIVILEGED, _group())


def private_folder(where: Path | None = None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="incumbent-postgresql-", dir=where))
    give_away(folder)
    return folder


def memory() -> Path | None:
    """Where files are memory, if there is room: a data folder is hundreds of small files."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return None
    return MEMORY


@functools.cache
def program(name: str) -> Path:
    # Through the links of scripts/servers.sh: the unprivileged user may not see the checkout.
    found = find_server(name).resolve()
    try:
        run([found, "--version"])
    except PermissionError:
        return _readable_copy() / "bin" / name
    return found


def _readable_copy() -> Path:
    """What was unpacked into a checkout that only root may enter, where all may."""

    def make(goal: Path) -> None:
        goal.mkdir()
        for part in ("bin", "root"):
            copy(SERVERS.parent / part, goal / part)

    return once_a_run("servers", make)


@functools.cache
def run_folder() -> Path:
    """A folder for what all workers of a run use. The process that makes it removes it."""
    if RUN in os.environ:
        return Path(os.environ[RUN])
    folder = private_folder()
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def once_a_run(name: str, make: Callable[[Path], None]) -> Path:
    """A part of the run's folder; the first worker that needs it makes it, the others wait."""
    made, unfinished = run_folder() / name, run_folder() / f"{name}.new"
    with (run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(made)
    return made


def copy(source: Path, goal: Path) -> None:
    subprocess.run(["cp", "-a", source, goal], check=True)


# -- processes


def children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            # "pid (name) state ppid ...", where the name may hold blanks.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.name.isdigit() and int(fields[1]) == parent:
                yield int(entry.name)


def wait_until_gone(pids: Iterable[int]) -> None:
    """They hold the shared memory of the server that comes next."""
    give_up = time.monotonic() + GONE_WITHIN
    for pid in pids:
        while _alive(pid) and time.monotonic() < give_up:
            time.sleep(0.005)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
