"""Renewing leases on a majority, and planting a lease again on a node that has lost it.

A node's renewal counts if the node has the claim with exactly its token. Only in a round in which a
majority renewed may the lease be planted again on a node that is free and votes (otherwise a
rolling restart of all nodes would end every lease). A planted lease counts from the next round on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from incumbent.model import Gone, Renewal, Renewed, RenewOutcome, Unproved
from incumbent.rules.notices import PAUSE, RESIGN, notices_for
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.changes import field_entry, last_entries
from incumbent.stores.quorum.nodes import Panel, Reply, no_majority, silent_of, strangers
from incumbent.stores.redis.resp import RequestBatch

_BATCH: Final = 500
_PLANTED_AT_ONCE: Final = 200
_RENEWED: Final = Renewed()
_UNPROVED: Final = Unproved()


async def renew(panel: Panel, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
    """See Store.renew. Raises StoreError if no outcome is known of any renewal."""
    outcomes: list[RenewOutcome] = []
    for start in range(0, len(renewals), _BATCH):
        outcomes += await _QuorumRound(panel, renewals[start : start + _BATCH], until).run()
    return outcomes


class _QuorumRound:
    """One request to each node, and the outcomes by the nodes' replies.

    `words`: for each node, its word on each lease (see node.lua); None without a usable reply.
    """

    def __init__(self, panel: Panel, batch: Sequence[Renewal], until: float) -> None:
        self.panel, self.quorum, self.batch, self.until = panel, panel.quorum, batch, until
        self.request, self.echo = self.quorum.dialect.renew(batch)
        self.words: list[list[Any] | None] = []

    async def run(self) -> list[RenewOutcome]:
        quorum = self.quorum
        replies = await self.panel.ask_all(self.request, self.until, self._enough)
        self.words = [self._words_of(node, reply) for node, reply in enumerate(replies)]
        outcomes = [
            self._outcome([words and words[at] for words in self.words])
            for at in range(len(self.batch))
        ]
        if outcomes and all(outcome is _UNPROVED for outcome in outcomes):
            silent = [
                silent_of(reply, name) if words is None else None
                for reply, name, words in zip(replies, quorum.names, self.words, strict=True)
            ]
            perhaps = any(each is None or each.sent for each in silent)
            raise no_majority(quorum, silent, perhaps=perhaps)
        for at, outcome in enumerate(outcomes):
            if outcome is _RENEWED:
                outcomes[at] = await self._with_notices(at)
        await self._plant(outcomes)
        return outcomes

    def _words_of(self, node: int, reply: Reply | None) -> list[Any] | None:
        if reply is None or isinstance(reply, Silent) or not isinstance(reply[0], list):
            return None
        if _is_strange(reply):
            raise strangers(self.quorum, node, reply[0][1])
        echo, *words = reply[0]
        return words if len(words) == len(self.batch) and echo == self.echo else None

    def _enough(self, replies: Sequence[Reply | None]) -> bool:
        """Whether a majority has renewed each lease, or a node is not of this quorum."""
        if any(_is_strange(reply) for reply in replies):
            return True
        present = [
            words for at, reply in enumerate(replies) if (words := self._words_of(at, reply))
        ]
        need = self.quorum.need
        if len(present) < need:
            return False
        return all(sum(map(_confirms, column)) >= need for column in zip(*present, strict=True))

    def _outcome(self, words: Sequence[Any]) -> RenewOutcome:
        confirmed = sum(map(_confirms, words))
        if confirmed >= self.quorum.need:
            return _RENEWED
        # Those who did not answer may have it: it is gone only if they are too few as well.
        silent = sum(word is None for word in words)
        return _UNPROVED if confirmed + silent >= self.quorum.need else Gone()

    async def _with_notices(self, at: int) -> Renewed:
        confirmed = [words[at] for words in self.words if words and _confirms(words[at])]
        if all(word == 1 for word in confirmed):
            return _RENEWED
        renewal, entries = self.batch[at], confirmed[0]
        if any(word != entries for word in confirmed):
            # The nodes differ: some node missed a change, perhaps the last one.
            names = [field_entry(PAUSE), field_entry(RESIGN)]
            entries = await last_entries(self.panel, renewal.key, names, self.until)
        pause, resign = (None if raw is None else raw.partition(b" ")[2] for raw in entries)
        return Renewed(notices_for(renewal.token, pause, resign))

    # -- planting -----------------------------------------------------------------------------

    async def _plant(self, outcomes: Sequence[RenewOutcome]) -> None:
        """Plant leases that are missing at voting nodes; the next renewal retries failures."""
        missing = [
            (at, node)
            for node, words in enumerate(self.words)
            for at, word in enumerate(words or ())
            if type(word) is bytes and isinstance(outcomes[at], Renewed)
        ][:_PLANTED_AT_ONCE]
        if not missing:
            return
        values = await self._values(sorted({at for at, _ in missing}))
        requests: list[list[bytes]] = [[] for _ in self.words]
        for at, node in missing:
            if (value := values.get(at)) is not None:
                # By this floor the node notices if it voted for another claim since it replied.
                floor = (self.words[node] or [])[at][1:]
                requests[node].append(self.quorum.dialect.plant(self.batch[at], value, floor))
        steps = [_together(each) for each in requests]
        if any(steps):
            await self.panel.ask(steps, self.until)

    async def _values(self, wanted: Sequence[int]) -> dict[int, bytes]:
        """The values to plant, each from a node that has just confirmed the lease."""
        by_node: list[list[int]] = [[] for _ in self.words]
        for at in wanted:
            node = next(n for n, words in enumerate(self.words) if words and _confirms(words[at]))
            by_node[node].append(at)
        value = self.quorum.dialect.value
        steps = [_together([value(self.batch[at].key) for at in indexes]) for indexes in by_node]
        replies = await self.panel.ask(steps, self.until)
        values: dict[int, bytes] = {}
        for indexes, reply in zip(by_node, replies, strict=True):
            if isinstance(reply, Silent):
                continue
            for at, raw in zip(indexes, reply, strict=True):
                renewal = self.batch[at]
                head = b"incumbent1 %b %d " % (renewal.claim.encode(), renewal.token)
                if isinstance(raw, bytes) and raw.startswith(head):
                    values[at] = raw
        return values


def _together(requests: Sequence[bytes]) -> RequestBatch | None:
    return RequestBatch(b"".join(requests), len(requests)) if requests else None


def _is_strange(reply: Reply | None) -> bool:
    """Whether the node replied that it belongs to another quorum."""
    return isinstance(reply, list) and isinstance(reply[0], list) and reply[0][:1] == [b"members"]


def _confirms(word: Any) -> bool:
    return word == 1 or type(word) is list
