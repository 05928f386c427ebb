"""The nodes as one blocking operation sees them. No threads but for making connections.

Requests are written to all sockets first, then heard one after the other, and with poll where that
takes longer than a glance.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from math import ceil
from typing import Any, Final

import hiredis

from incumbent.clock import now as _now
from incumbent.model import Key
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.dialect import as_eval
from incumbent.stores.quorum.dialing import Dialer
from incumbent.stores.quorum.link import LAG_MOST, NOT_YET, Link
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Panel, Reply
from incumbent.stores.redis.errors import Broken, exchange_error
from incumbent.stores.redis.resp import Step

__all__ = ["SyncPanel"]

_TRUSTED: Final = 0.1
"""Connections unused for longer are looked at before a request is sent on them."""
_SLICE: Final = 0.25
_LITTLE: Final = 448
"""Bytes that are received at once where a short answer is expected: a small object of Python's."""
_FAILURES: Final = (Broken, hiredis.ProtocolError)


class SyncPanel(Panel):
    """See panel.Panel. One connection to each node, for one operation at a time."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer, self.quorum = dialer, dialer.quorum
        self.links: list[Link | None] = [None] * len(dialer.nodes)
        self.used = 0.0
        self.whole = False
        """All nodes are connected, and none owes an answer."""
        self.oldest = 0.0
        """The instant since which all their servers run."""

    @property
    def born(self) -> list[float | None]:
        """See Panel.born."""
        return [None if link is None else link.born for link in self.links]

    @property
    def blank(self) -> bool:
        """See Panel.blank."""
        return all(link is not None and link.blank for link in self.links)

    async def open(self, until: float) -> None:
        """See Panel.open."""
        self.prepare(until)

    def prepare(self, until: float) -> None:
        """The same at once."""
        now = _now()
        self.whole = False
        for node, link in enumerate(self.links):
            if link is not None and not self._is_usable(link, now):
                self._drop(node)
        if None in self.links:
            self._dialer.fill(self.links, until)
        self.used = _now()
        for node, link in enumerate(self.links):
            if link is not None:
                link.used = self.used
                self._pay(node, link)

    def _is_usable(self, link: Link, now: float) -> bool:
        if link.lag:
            return self._has_caught_up(link) or now - link.lag_since < LAG_MOST
        return now - self.used < _TRUSTED or not link.is_stale(trust=False)

    @staticmethod
    def _has_caught_up(link: Link) -> bool:
        if not link.is_stale(trust=False):
            return False
        try:
            link.skip()
        except _FAILURES as error:
            if not isinstance(error, Broken) or not error.late:
                link.lag_since = float("-inf")
            return False
        return True

    def _pay(self, node: int, link: Link) -> None:
        """Tell it which votes were taken back while it could not be told."""
        owed = self._dialer.nodes[node].take_owed()
        if not owed:
            return
        dialect = self.quorum.dialect
        # With the script, for nobody reads the answers: it may be one that was forgotten.
        payload = b"".join(
            as_eval(dialect.revoke(key, claim, ballot)) for key, claim, ballot in owed
        )
        try:
            link.post(payload, _now() + 0.05)
        except Broken as error:
            self._broken(node, error)
            return
        link.fall_behind(len(owed))
        link.owed_undo += owed

    async def rest(self, seconds: float) -> None:
        """See Panel.rest."""
        time.sleep(seconds)  # noqa: ASYNC251 - the blocking side blocks

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """See Panel.owe."""
        link = self.links[node]
        if link is not None and link.lag:
            link.owed_undo.append((key, claim, ballot))
        else:
            self._dialer.nodes[node].owes(key, claim, ballot)

    # -- one round ----------------------------------------------------------------------------

    def ask_identical(
        self, request: bytes, wanted: bytes, until: float, enough: Enough
    ) -> list[Reply] | None:
        """One request to all nodes of a whole panel: None if all answered nothing but `wanted`.

        Otherwise what `ask` would return.
        """
        # Written out, for a lease costs little more than these calls.
        links: Any = self.links
        size, at = len(request), 0
        try:
            for link in links:
                if (sent := link.push(request)) != size:
                    return self._finish_slow(request, until, enough, at, sent, None)
                at += 1
        except OSError as error:
            return self._finish_slow(request, until, enough, at, 0, error)
        # From the last one on: where all share a core, the others have answered by then.
        try:
            for link in reversed(links):
                at -= 1
                if (data := link.pull(_LITTLE)) != wanted:
                    return self._fall_back(request, wanted, until, enough, at, data)
        except OSError as error:
            return self._fall_back(request, wanted, until, enough, at, error)
        return None

    def _finish_slow(
        self,
        request: bytes,
        until: float,
        enough: Enough,
        at: int,
        sent: int,
        error: OSError | None,
    ) -> list[Reply]:
        """Go on with `ask` where one node did not take all of the request at once."""
        self.whole = False
        step = Step(request, 1)
        steps: list[Step | None] = [step] * len(self.links)
        heard: list[Reply | None] = [None] * len(steps)
        link: Any = self.links[at]
        try:
            link.push_on(request, sent, error, until)
        except Broken as broken:
            heard[at] = self._broken(at, broken)
        for node in range(at + 1, len(steps)):
            heard[node] = self._post(node, step, until)
        self._hear_all(heard, steps, until, enough)
        return self._all(heard, steps)

    def _fall_back(
        self,
        request: bytes,
        wanted: bytes,
        until: float,
        enough: Enough,
        at: int,
        said: bytes | OSError,
    ) -> list[Reply]:
        """Go on with `ask` after the first node (from the last) that said something else."""
        self.whole = False
        steps: list[Step | None] = [Step(request, 1)] * len(self.links)
        heard: list[Reply | None] = [None] * len(steps)
        for node in range(at + 1, len(steps)):
            heard[node] = [_read(wanted)]
        late = -1
        if isinstance(said, NOT_YET):
            late = at
        elif isinstance(said, OSError) or not said:
            why = str(said) if said else "the server closed the connection"
            heard[at] = self._broken(at, Broken(why, sent=True))
        else:
            link: Any = self.links[at]
            link.took(said)
        self._hear_all(heard, steps, until, enough, late)
        return self._all(heard, steps)

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """See Panel.ask."""
        self.used = _now()
        heard: list[Reply | None] = [
            self._post(node, step, until) for node, step in enumerate(steps)
        ]
        self._hear_all(heard, steps, until, enough)
        return self._all(heard, steps)

    def _post(self, node: int, step: Step | None, until: float) -> Silent | None:
        link = self.links[node]
        if link is None:
            return self._dialer.nodes[node].silent()
        if step is None or until <= link.used:
            return NOT_ASKED
        try:
            link.post(step.payload, until)
        except Broken as error:
            return self._broken(node, error)
        return None

    def _hear_all(
        self,
        heard: list[Reply | None],
        steps: Sequence[Step | None],
        until: float,
        enough: Enough | None,
        late: int = -1,
    ) -> None:
        """Those who are not late yet (as the node `late` is) for a glance each, then all."""
        for node, it in enumerate(heard):
            link = self.links[node]
            if it is None and node != late and link is not None and not link.lag:
                heard[node] = self._hear(node, steps[node], until)
        while None in heard and not (enough is not None and enough(heard)):
            left = until - _now()
            if left <= 0:
                return
            for node in self._ready([n for n, it in enumerate(heard) if it is None], left):
                heard[node] = self._hear(node, steps[node], until)

    def _hear(self, node: int, step: Step | None, until: float) -> Reply | None:
        link = self.links[node]
        if link is None or step is None:
            return NOT_ASKED
        try:
            answers = link.hear(step.answers)
            return answers if answers is None else link.settle(answers, step.payload, until)
        except _FAILURES as error:
            return self._broken(node, error)

    def _ready(self, nodes: Sequence[int], left: float) -> list[int]:
        """Those of the nodes that have something to say."""
        poll, by_fd = select.poll(), dict[int, int]()
        for node in nodes:
            link = self.links[node]
            if link is not None:
                by_fd[link.fileno()] = node
                poll.register(link.fileno(), select.POLLIN)
        found = poll.poll(ceil(min(left, _SLICE) * 1000))
        # TLS may have read more than it gave: after a while everybody is heard anyway.
        return [by_fd[fd] for fd, _ in found] or list(nodes)

    def _all(self, heard: Sequence[Reply | None], steps: Sequence[Step | None]) -> list[Reply]:
        return [
            self._late(node, steps[node]) if it is None else it for node, it in enumerate(heard)
        ]

    def _late(self, node: int, step: Step | None) -> Silent:
        """Nobody waits for this node any more."""
        link = self.links[node]
        if link is not None and step is not None:
            link.fall_behind(step.answers)
        where = self._dialer.nodes[node].site.where
        return Silent(exchange_error(Broken("no answer in time", sent=True), where), sent=True)

    # -- after it -----------------------------------------------------------------------------

    def _broken(self, node: int, error: Exception) -> Silent:
        self._drop(node)
        sent = not isinstance(error, Broken) or error.sent
        return Silent(exchange_error(error, self._dialer.nodes[node].site.where), sent=sent)

    def _drop(self, node: int) -> None:
        link, self.links[node] = self.links[node], None
        if link is not None:
            link.close()
            for key, claim, ballot in link.owed_undo:
                self._dialer.nodes[node].owes(key, claim, ballot)

    def rested(self) -> None:
        """The operation is over: look whether the next one can be swift."""
        self.whole = all(link is not None and not link.lag for link in self.links)
        if self.whole:
            self.oldest = max(link.born for link in self.links if link is not None)

    def close(self) -> None:
        """Give the descriptors back; nothing is written."""
        self.whole = False
        for node in range(len(self.links)):
            self._drop(node)


def _read(answer: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(answer)
    return reader.gets()
