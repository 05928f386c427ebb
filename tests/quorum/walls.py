"""Servers whose wall clock a test can set wrong, while they run."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support.servers import RedisServer

_SOURCE = Path(__file__).with_name("wall.c")


@cache
def _library() -> Path:
    library = Path(tempfile.mkdtemp(prefix="incumbent-wall-")) / "wall.so"
    command = ["cc", str(_SOURCE), "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return library


class ShiftedServer(RedisServer):
    """A redis-server whose CLOCK_REALTIME is off by `seconds`, and can be set anew."""

    def __init__(self, options: tuple[str, ...] = (), seconds: float = 0.0) -> None:
        self._wall = Path(tempfile.mkstemp(prefix="incumbent-wall-")[1])
        self.set_wall(seconds)
        super().__init__(options)

    def set_wall(self, seconds: float) -> None:
        """From now on it is wrong by so many seconds."""
        self._write(int(seconds * 1e9), 0)

    def stop_wall(self, at: int) -> None:
        """From now on it stands still at this microsecond since 1970."""
        self._write(0, at * 1000)

    def _write(self, *numbers: int) -> None:
        with self._wall.open("r+b") as file:
            file.write(struct.pack("qq", *numbers))

    def stop(self) -> None:
        super().stop()
        self._wall.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        # env(1) becomes the server: the process id stays the same.
        preload = [f"LD_PRELOAD={_library()}", f"INCUMBENT_TEST_WALL={self._wall}"]
        return ["/usr/bin/env", *preload, *super()._command()]
