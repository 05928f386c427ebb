"""Leaves a daemon behind that holds the judge's lock, and notes when it is asked to end.

daemonises.py FOLDER
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time


def asked(folder: str) -> None:
    with open(f"{folder}/asked", "w", encoding="ascii") as note:  # noqa: PTH123
        note.write("TERM")
    os._exit(0)


def main(folder: str) -> None:
    judge = os.open(f"{folder}/judge", os.O_RDWR | os.O_CREAT)
    fcntl.flock(judge, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ready, told = os.pipe()
    if os.fork() > 0:
        # Its handler has to be there before anybody asks it.
        os.read(ready, 1)
        return
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: asked(folder))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.write(told, b"\0")
    until = time.monotonic() + 20
    while time.monotonic() < until and not os.path.exists(f"{folder}/stop"):  # noqa: PTH110
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
