"""The work that must never be done by two at once: it writes to the device all the time.

    worker.py FOLDER SIDE WHO

A script that imports nothing of ours, so that it starts fast. What the judge is given lives exactly
as long as this process and all that it starts: a lock on a file, and a connection. Both are
inherited, and the kernel ends them with the last process that has them.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from typing import Final

PACE: Final = 0.01
"""Seconds from one write to the next."""


def main(folder: str, side: str, who: str) -> None:
    """Write until the device or the judge is gone."""
    term = int(os.environ.get("INCUMBENT_LEASE_TERM", "0"))
    alone = _is_alone(f"{folder}/{side}.lock")
    try:
        judge, device = _connect(f"{folder}/judge"), _connect(f"{folder}/device")
        _tell(judge, side=side, who=who, term=term, alone=alone, at=time.monotonic())
        while True:
            began = time.monotonic()
            device.sendall(f"{side} {term}\n".encode())
            answer = device.recv(64)
            if not answer:
                return
            _tell(judge, wrote=began, taken=answer == b"taken\n")
            time.sleep(PACE)
    except ConnectionError:
        # The demo is over, or was killed.
        return


def _is_alone(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(fd, True)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.set_inheritable(True)
    return connection


def _tell(judge: socket.socket, **said: object) -> None:
    judge.sendall(json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
