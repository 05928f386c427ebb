"""The work that two processes must never do at once: it writes to the device all the time.

    worker.py SOCKET SIDE WHO

A script that imports nothing of this package, so that it starts fast. All processes that it starts
inherit its connection to the judge (see judge.py).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Final

PACE: Final = 0.01
"""Seconds from one write to the next."""


def main(path: str, side: str, who: str) -> None:
    """Write until the judge is gone."""
    term = int(os.environ.get("INCUMBENT_LEASE_TERM", "0"))
    judge = socket.socket(socket.AF_UNIX)
    judge.set_inheritable(True)
    try:
        judge.connect(path)
        _ask(judge, begin={"side": side, "who": who, "term": term})
        while _ask(judge, write=term, side=side):
            time.sleep(PACE)
    except OSError:
        return  # The demo is over, or was killed.


def _ask(judge: socket.socket, **message: Any) -> bytes:
    judge.sendall(json.dumps(message).encode())
    return judge.recv(64)


if __name__ == "__main__":
    main(*sys.argv[1:])
