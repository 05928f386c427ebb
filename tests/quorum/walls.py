"""Servers whose wall clock a test can set wrong, while they run."""

from __future__ import annotations

from tests.support.servers import RedisServer
from tests.support.wall import Wall


class ShiftedServer(RedisServer):
    """A redis-server whose CLOCK_REALTIME is off by `seconds`, and can be set anew."""

    def __init__(self, options: tuple[str, ...] = (), seconds: float = 0.0) -> None:
        self._wall = Wall(seconds)
        super().__init__(options)

    def set_wall(self, seconds: float) -> None:
        """From now on it is wrong by so many seconds."""
        self._wall.set(seconds)

    def stop_wall(self, at: int) -> None:
        """From now on it stands still at this microsecond since 1970."""
        self._wall.stop(at)

    def stop(self) -> None:
        super().stop()
        self._wall.close()

    def _command(self) -> list[str]:
        # env(1) becomes the server: the process id stays the same.
        preload = [f"{name}={value}" for name, value in self._wall.environment.items()]
        return ["/usr/bin/env", *preload, *super()._command()]
