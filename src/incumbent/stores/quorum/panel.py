"""Asking all nodes over real connections: written once for both sides.

A step is written to all nodes first. Then the replies are read as they come, until they suffice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from incumbent.clock import now as _now
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.dialect import as_eval
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Node, Panel, Quorum, Reply
from incumbent.stores.redis.errors import Broken, exchange_error
from incumbent.stores.redis.exchange import is_forgotten
from incumbent.stores.redis.resp import Step

__all__ = ["ConnectedPanel"]

_GLANCE: Final = 0.01
"""Seconds for which the other nodes are waited for once the replies suffice."""


class ConnectedPanel(Panel):
    """See Panel."""

    connections: Sequence[Any | None]

    def __init__(self, quorum: Quorum, nodes: Sequence[Node]) -> None:
        self.quorum, self.nodes = quorum, nodes

    @abstractmethod
    def _write(self, node: int, step: Step, until: float) -> Silent | None:
        """Write a step to a node that is connected; why not, if that failed."""

    @abstractmethod
    async def _read_some(
        self,
        replies: list[Reply | None],
        missing: Sequence[int],
        steps: Sequence[Step | None],
        by: float,
        until: float,
    ) -> bool:
        """Wait for replies that are missing, and put them in; False if none came by `by`."""

    @abstractmethod
    def _is_slow(self, node: int) -> bool:
        """Whether nobody waited for its last reply, which has not come yet."""

    @abstractmethod
    def _leave(self, node: int, step: Step | None) -> None:
        """Nobody waits for this reply any more."""

    @property
    def born(self) -> list[float | None]:
        return [None if each is None else each.born for each in self.connections]

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        return await self._read_all(self._write_all(steps, until), steps, until, enough)

    def _write_all(self, steps: Sequence[Step | None], until: float) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for node, step in enumerate(steps):
            if self.connections[node] is None:
                replies.append(self.nodes[node].silent())
            else:
                replies.append(NOT_ASKED if step is None else self._write(node, step, until))
        return replies

    async def _read_all(
        self,
        replies: list[Reply | None],
        steps: Sequence[Step | None],
        until: float,
        enough: Enough | None,
        late: int = -1,
    ) -> list[Reply]:
        """`late`: a node that has had its glance already."""
        by = until
        while None in replies:
            missing = [node for node, reply in enumerate(replies) if reply is None]
            if enough is not None and len(missing) < len(replies) and enough(replies):
                if all(node == late or self._is_slow(node) for node in missing):
                    break
                by = min(until, _now() + _GLANCE) if by == until else by
            if not await self._read_some(replies, missing, steps, by, until):
                break
        return [
            self._late(node, steps[node]) if reply is None else reply
            for node, reply in enumerate(replies)
        ]

    def _late(self, node: int, step: Step | None) -> Silent:
        self._leave(node, step)
        return self._failed(node, Broken("no answer in time", sent=True))

    def _failed(self, node: int, error: Exception) -> Silent:
        """The connection brought no reply."""
        sent = not isinstance(error, Broken) or error.sent
        return Silent(exchange_error(error, self.nodes[node].site.where), sent=sent)

    def _replied(self, node: int, step: Step, reply: list[Any], until: float) -> Reply | None:
        """The reply; or None after the step was sent again with the script that was forgotten."""
        if step.answers != 1 or not is_forgotten(reply[0]):
            return reply
        return self._write(node, Step(as_eval(step.payload), 1), until)
