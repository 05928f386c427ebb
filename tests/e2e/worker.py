"""The command under a lease: it holds the judge's file lock for as long as it, or a child, lives.

    worker.py FOLDER [--stubborn] [--orphan] [--daemon] [--stranger] [--for SECONDS]
              [--one-of 2 | --reader]

--stranger leaves a daemon with an environment of its own, for six seconds. --one-of 2: two may live
at once. --reader: others with --reader may.
Appends a line to FOLDER/log when it begins and when it ends by itself, and one more if another
worker lives at the same time. `flock` has no blind spot: the kernel drops it with the last process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time


def main(folder: str, *options: str) -> None:
    judge, alone = enter(folder, options)
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    term = os.environ["INCUMBENT_LEASE_TERM"]
    if "--stubborn" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not alone:
        os.write(log, f"overlap {term}\n".encode())
        say_how_long(judge, log)
    os.write(log, f"begin {term} {os.environ['INCUMBENT_LEASE_HOLDER']}\n".encode())
    if "--orphan" in options and os.fork() > 0:
        # The child lives on in the process group, and holds the judge's lock with us.
        return
    if "--daemon" in options and os.fork() == 0:
        become_daemon()
    if "--stranger" in options and os.fork() == 0:
        become_daemon()
        os.set_inheritable(judge, True)
        os.execve("/bin/sleep", ["sleep", "6"], {})
    seconds = float(options[options.index("--for") + 1]) if "--for" in options else 60.0
    until = time.monotonic() + seconds
    # The test's end leaves nobody behind, whatever it was about.
    while time.monotonic() < until and not os.path.exists(f"{folder}/stop"):  # noqa: PTH110
        time.sleep(0.02)
    os.write(log, f"end {term}\n".encode())


def enter(folder: str, options: tuple[str, ...]) -> tuple[int, bool]:
    """The judge's file, and whether its lock was free; where two may live, there are two files."""
    # Two and no more: of three, the places of others could change between two looks.
    places = ("judge", "judge2") if "--one-of" in options else ("judge",)
    how = fcntl.LOCK_SH if "--reader" in options else fcntl.LOCK_EX
    judge = -1
    for place in places:
        judge = os.open(f"{folder}/{place}", os.O_RDWR | os.O_CREAT)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(judge, how | fcntl.LOCK_NB)
            return judge, True
    return judge, False


def say_how_long(judge: int, log: int) -> None:
    """For people: a moment tells of a busy machine, a second of a defect."""
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(judge, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.001)
    os.write(log, f"together {time.monotonic() - began:.3f} s\n".encode())


def become_daemon() -> None:
    """Out of the process group and away from its parent, with the judge's lock in its hands."""
    os.setsid()
    if os.fork() > 0:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
