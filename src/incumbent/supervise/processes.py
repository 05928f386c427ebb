"""The processes of this host, read from /proc: descendants, namespaces, marked ones.

Zombies do not count unless a function says so: they hold nothing and do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress


def send(pids: Iterable[int], signum: int) -> None:
    """Send a signal to all that still exist and belong to this user."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - read for every process
        return file.read()


def _living() -> Iterator[tuple[int, int]]:
    """Process, parent; none where the system does not list them."""
    pids: list[int] = []
    with suppress(OSError):
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208
    for pid in pids:
        with suppress(OSError, ValueError):
            # The name may hold blanks and brackets; what follows its last bracket is regular.
            state, parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                yield pid, int(parent)


def descendants(ancestor: int, but: Iterable[int] = ()) -> list[int]:
    """The living below `ancestor`, without `but` and what is below those."""
    below: dict[int, list[int]] = {}
    for pid, parent in _living():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    spared, open_ = set(but), [ancestor]
    while open_:
        new = [pid for pid in below.get(open_.pop(), ()) if pid not in spared]
        found += new
        open_ += new
    return found


def children(parent: int = 0) -> list[int] | None:
    """The direct children of a main thread (0: ours), zombies included; None if not listed.

    Orphans become children of the main thread of their new parent. The list may miss a child while
    others end, but it is never empty while there are any (proc(5)).
    """
    pid = parent or os.getpid()
    try:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        return None


def below(ancestor: int) -> list[int]:
    """Its descendants, zombies included, without reading every process; OSError if not listed."""
    found: list[int] = []
    open_ = [ancestor]
    while open_:
        new = _children_of_all_threads(open_.pop())
        found += new
        open_ += new
    return found


def _children_of_all_threads(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:
        # An ended process has no children. Otherwise this system does not list them.
        if os.path.exists(f"/proc/{pid}/stat"):  # noqa: PTH110
            raise
    return found


def namespace_members(inode: int) -> list[int]:
    """The living whose PID namespace has this inode number."""
    found: list[int] = []
    for pid, _ in _living():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/pid").st_ino == inode:  # noqa: PTH116
                found.append(pid)
    return found


def marked(mark: bytes) -> list[int]:
    """The living with `mark` in the environment that they were started with, but ourselves."""
    found: list[int] = []
    for pid, _ in _living():
        with suppress(OSError):
            if pid != os.getpid() and mark in _read(f"/proc/{pid}/environ").split(b"\0"):
                found.append(pid)
    return found
