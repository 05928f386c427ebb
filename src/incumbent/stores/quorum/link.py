"""One blocking connection to a node of a quorum, which may owe answers that nobody waits for."""

from __future__ import annotations

from typing import Any

from incumbent.clock import now as _now
from incumbent.model import Key
from incumbent.stores.quorum.dialect import as_eval
from incumbent.stores.redis.errors import Broken
from incumbent.stores.redis.exchange import is_forgotten
from incumbent.stores.redis.wire import Wire

__all__ = ["LAG_MOST", "NOT_YET", "Link"]

LAG_MOST = 1.5
"""Seconds for which a node may owe an answer before its connection is given up."""
NOT_YET = (BlockingIOError, TimeoutError)
_AT_ONCE = 0.0
_TO_THE_SLOW = 0.005


class Link(Wire):
    """See redis.wire. A node that answers late is not waited for: its answers are skipped later."""

    __slots__ = ("blank", "lag", "lag_since", "owed_undo", "pull", "push", "took")

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.push, self.pull, self.took = self._send, self._recv, self._feed
        """The socket's own `send` and `recv`, and where to put what was received by it."""
        self.blank = False
        """Whether the node had no marker when the connection was made."""
        self.lag = 0
        """Answers that will come first and are for nobody."""
        self.lag_since = 0.0
        self.owed_undo: list[tuple[Key, str, int]] = []
        """Votes whose taking back is among these answers; told again if they never come."""

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def post(self, request: bytes, until: float) -> None:
        """Send. Raises Broken; after that it can no longer be used."""
        if self.lag:
            until = min(until, _now() + _TO_THE_SLOW)
        self.send(request, until)

    def push_on(self, request: bytes, sent: int, error: OSError | None, until: float) -> None:
        """Go on after a `push` that took only so much, or raised. Raises Broken."""
        if error is not None and not isinstance(error, NOT_YET):
            raise Broken(str(error), sent=False) from error
        self._send_rest(request, sent, until)

    def hear(self, answers: int) -> list[Any] | None:
        """The answers, if they are there within a glance; None: not yet. Raises Broken."""
        try:
            if self.lag:
                self.skip()
            found = [self.read(_AT_ONCE) for _ in range(answers)]
        except Broken as error:
            if error.late:
                return None
            raise
        return found

    def skip(self) -> None:
        """Hear what is for nobody. Raises Broken; late if it is not there yet."""
        while self.lag:
            self.read(_AT_ONCE)
            self.lag -= 1
        self.owed_undo.clear()

    def fall_behind(self, answers: int) -> None:
        """Nobody waits for these answers any more."""
        if not self.lag:
            self.lag_since = _now()
        self.lag += answers

    def settle(self, answers: list[Any], request: bytes, until: float) -> list[Any]:
        """Once more with the script in it, where the server had forgotten it. Raises Broken."""
        if len(answers) == 1 and is_forgotten(answers[0]):
            self.send(as_eval(request), until)
            return [self.read(until)]
        return answers
