"""A wall clock that a test can set wrong, for processes that it starts, while they run."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall.c")


@cache
def _library() -> Path:
    library = Path(tempfile.mkdtemp(prefix="incumbent-wall-")) / "wall.so"
    command = ["cc", str(_SOURCE), "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return library


class Wall:
    """The wall clock of the processes that get `environment`; CLOCK_BOOTTIME stays true."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._path = Path(tempfile.mkstemp(prefix="incumbent-wall-")[1])
        self.set(seconds)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment."""
        return {"LD_PRELOAD": str(_library()), "INCUMBENT_TEST_WALL": str(self._path)}

    def set(self, seconds: float) -> None:
        """From now on it is wrong by so many seconds."""
        self._write(int(seconds * 1e9), 0)

    def stop(self, at: int) -> None:
        """From now on it stands still at this microsecond since 1970."""
        self._write(0, at * 1000)

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _write(self, *numbers: int) -> None:
        with self._path.open("r+b") as file:
            file.write(struct.pack("qq", *numbers))
