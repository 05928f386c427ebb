"""What a term needs of ours, so that a candidate can have it before it is elected.

Nothing of CMD runs yet: the guard lets nothing begin before the first proof.
"""

from __future__ import annotations

from typing import Self

from incumbent.supervise.answers import LeaseSocket
from incumbent.supervise.guarding import Guard
from incumbent.supervise.launch import new_launch

__all__ = ["Ready"]


class Ready:
    """A socket and a process under the guard, for one term; `ttl` and `leave`: see `Guard.cover`.

    Raises ConfigError if there is no folder for the socket, GuardFault if the guard does not
    answer.
    """

    def __init__(self, guard: Guard, ttl: float, *, leave: bool = False) -> None:
        self._guard = guard
        self.socket = LeaseSocket()
        # From here on somebody knows of it who outlives our KILL.
        guard.litter(self.socket.path)
        try:
            self.launch = new_launch(guard, ttl, leave=leave)
        except BaseException:
            self._close_socket()
            raise

    def close(self) -> None:
        """The term is over, or never came."""
        self.launch.end()
        self.launch.cover.end()
        self._close_socket()

    def _close_socket(self) -> None:
        self.socket.close()
        self._guard.litter("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
