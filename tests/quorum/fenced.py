"""A holder that waits between looking at its lease and writing: for the tests of fencing.

    python -m tests.quorum.fenced URL NAME TTL FILE

It takes the lease and says {"token"}. Then it looks at the lease, says {"looked"}, and writes when
a line comes, however late that is: what a process does that was stopped between the two.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

from incumbent import Lock


class FencedFile:
    """A file that takes what comes with a token as large as the largest so far."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, token: int, text: str) -> bool:
        """Whether it was taken."""
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = [json.loads(line) for line in file]
            if known and token < max(one["token"] for one in known):
                return False
            file.write(json.dumps({"token": token, "text": text}) + "\n")
            return True

    @property
    def texts(self) -> list[str]:
        """What was taken."""
        with self._path.open(encoding="utf-8") as file:
            return [json.loads(line)["text"] for line in file]


def main() -> None:
    """See above."""
    url, name, ttl, path = sys.argv[1:]
    lease = Lock(name, store=url, ttl=float(ttl)).acquire(timeout=40)
    _say({"token": lease.fencing_token})
    lease.check()
    _say({"looked": True})
    sys.stdin.readline()
    taken = FencedFile(Path(path)).write(lease.fencing_token, "the late write")
    _say({"taken": taken, "valid": lease.valid})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
