"""Programs that refuse to run as root, run by an unprivileged user: who must be able to read them.

Not root: everything is one's own, and nothing changes hands.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.servers import SERVERS, ServerFailed, find_server

GONE_WITHIN = 10.0
UNPRIVILEGED = "nobody"


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


def private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="incumbent-postgresql-"))
    give_away(folder)
    return folder


@functools.cache
def program(name: str) -> Path:
    # Through the links of scripts/servers.sh: the unprivileged user may not see the checkout.
    found = find_server(name).resolve()
    try:
        run([found, "--version"])
    except PermissionError:
        return _readable_copy() / "bin" / name
    return found


@functools.cache
def _readable_copy() -> Path:
    """What was unpacked into a checkout that only root may enter, where all may."""
    folder = session_folder()
    for part in ("bin", "root"):
        copy(SERVERS.parent / part, folder / part)
    return folder


def session_folder() -> Path:
    folder = private_folder()
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
