"""A forked child in which the parent's connections are traps: what is written to one is found."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress

from incumbent import clock
from incumbent.net.dial import is_ready

__all__ = ["CAN_FORK", "used_by_child"]

CAN_FORK = hasattr(os, "fork")
_CHILD_WITHIN = 30.0
_DESCRIPTORS = 4096


def used_by_child(work: Callable[[], None]) -> str:
    """Run `work` in a forked child; what went wrong there, or "".

    Before `work`, each connection that the child inherits is replaced by one end of a socket pair:
    nobody answers there, the parent's peers hear nothing, and bytes at the other end are proof that
    the child used its parent's connection, whatever the protocol.
    """
    # Else the child has a copy of what waits, and writes it a second time.
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Of forks beside threads: that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _be_the_child(work, write)
    os.close(write)
    try:
        return _said(read)
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _be_the_child(work: Callable[[], None], write: int) -> None:
    """Never returns: the child must not run the rest of the tests."""
    problem = "the child ended without a word"
    try:
        traps = _trap_connections()
        problem = ""
        try:
            work()
        except BaseException:  # noqa: BLE001 - it is told to the parent
            problem = traceback.format_exc()
        if found := [sent for trap in traps if (sent := _caught(trap))]:
            problem = f"the child wrote to its parent's connections: {found}\n{problem}"
    finally:
        os.write(write, problem.encode()[:60_000])
        os._exit(0)


def _trap_connections() -> list[socket.socket]:
    traps = []
    for number in range(_DESCRIPTORS):
        if _is_connection(number):
            ours, theirs = socket.socketpair()
            os.dup2(theirs.fileno(), number, inheritable=False)
            theirs.close()
            ours.setblocking(False)
            traps.append(ours)
    return traps


def _is_connection(number: int) -> bool:
    """Whether it is a socket with a peer that has an address: event loops have pairs, too."""
    try:
        sock = socket.socket(fileno=os.dup(number))
    except OSError:
        return False
    with sock:
        try:
            return bool(sock.getpeername())
        except OSError:
            return False


def _caught(trap: socket.socket) -> bytes:
    try:
        return trap.recv(200)
    except OSError:
        return b""


def _said(read: int) -> str:
    said, give_up = b"", clock.now() + _CHILD_WITHIN
    while is_ready(read, writing=False, seconds=max(0.0, give_up - clock.now())):
        chunk = os.read(read, 65_536)
        if not chunk:
            return said.decode(errors="replace")
        said += chunk
    return f"the child did not end within {_CHILD_WITHIN:g} s"
