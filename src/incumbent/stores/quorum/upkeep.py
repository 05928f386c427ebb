"""Renewing on a majority, and planting again what a node has lost.

A renewal counts where the node has the claim with exactly its token. Only in a round in which a
majority said so may the lease be planted again on a node that is free and votes (else a rolling
restart of all nodes would end every term); the plant counts from the next round on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from incumbent.model import Gone, Renewal, Renewed, RenewOutcome, Unproved
from incumbent.stores.notices import PAUSE, RESIGN, notices_for
from incumbent.stores.quorum.ballots import Answer, Silent
from incumbent.stores.quorum.fields import field_entry, last_entries
from incumbent.stores.quorum.group import Quorum, no_majority, silent_of, strangers
from incumbent.stores.quorum.panel import Heard, Panel
from incumbent.stores.quorum.scripts import as_eval
from incumbent.stores.redis.exchange import is_forgotten
from incumbent.stores.redis.resp import Step

__all__ = ["renew"]

_BATCH: Final = 500
_PLANTED_AT_ONCE: Final = 200
_RENEWED: Final = Renewed()
_GONE: Final = Gone()
_UNPROVED: Final = Unproved()


async def renew(
    quorum: Quorum, panel: Panel, renewals: Sequence[Renewal], until: float
) -> list[RenewOutcome]:
    """See Store.renew. Raises StoreError if nothing was learnt of any of them."""
    outcomes: list[RenewOutcome] = []
    for start in range(0, len(renewals), _BATCH):
        batch = renewals[start : start + _BATCH]
        outcomes += await _Round(quorum, panel, batch, until).run()
    return outcomes


class _Round:
    """One request for each node, and what its answers come to."""

    def __init__(
        self, quorum: Quorum, panel: Panel, batch: Sequence[Renewal], until: float
    ) -> None:
        self.quorum, self.panel, self.batch, self.until = quorum, panel, batch, until
        self.request, self.echo = quorum.dialect.renew(batch)

    async def run(self) -> list[RenewOutcome]:
        quorum = self.quorum
        heard = await self.panel.ask(
            [Step(self.request, 1)] * len(quorum.names), self.until, self._enough
        )
        said = [self._said(node, it) for node, it in enumerate(heard)]
        outcomes = [
            self._outcome([answers and answers[at] for answers in said])
            for at in range(len(self.batch))
        ]
        if outcomes and all(it is _UNPROVED for it in outcomes):
            mute: list[Answer] = [
                silent_of(it, name)
                for it, name, answers in zip(heard, quorum.names, said, strict=True)
                if answers is None
            ]
            sent = any(it.sent for it in mute if isinstance(it, Silent))
            raise no_majority(quorum, mute, perhaps=sent or any(it is not None for it in said))
        await self._tell_notices(outcomes, said)
        await self._plant(outcomes, said)
        return outcomes

    def _said(self, node: int, heard: Heard | None) -> list[Any] | None:
        """A node's answers, one a lease; None if it gave none that can be used."""
        if heard is None or isinstance(heard, Silent) or not isinstance(heard[0], list):
            return None
        answers = heard[0]
        if _is_strange(heard):
            raise strangers(self.quorum, node, answers[1])
        if len(answers) != len(self.batch) + 1 or answers[0] != self.echo:
            return None
        return answers[1:]

    def _enough(self, heard: Sequence[Heard | None]) -> bool:
        """A majority has renewed each of them, or one has to be refused."""
        if any(_is_strange(it) for it in heard):
            return True
        present = [said for node, it in enumerate(heard) if (said := self._said(node, it))]
        need = self.quorum.need
        if len(present) < need:
            return False
        return all(sum(map(_confirms, column)) >= need for column in zip(*present, strict=True))

    def _outcome(self, answers: Sequence[Any]) -> RenewOutcome:
        confirmed = sum(map(_confirms, answers))
        if confirmed >= self.quorum.need:
            return _RENEWED
        silent = sum(it is None for it in answers)
        return _UNPROVED if confirmed + silent >= self.quorum.need else _GONE

    # -- notices ------------------------------------------------------------------------------

    async def _tell_notices(
        self, outcomes: list[RenewOutcome], said: Sequence[list[Any] | None]
    ) -> None:
        for at, renewal in enumerate(self.batch):
            words = [it[at] for it in said if it is not None and _confirms(it[at])]
            if outcomes[at] is not _RENEWED or all(it == 1 for it in words):
                continue
            outcomes[at] = Renewed(await self._notices(renewal, words))

    async def _notices(self, renewal: Renewal, words: Sequence[Any]) -> Any:
        if all(it == words[0] for it in words):
            last = words[0]
        else:
            # The nodes are not of one mind: somebody missed a word, perhaps the last one.
            names = [field_entry(PAUSE), field_entry(RESIGN)]
            last = await last_entries(self.quorum, self.panel, renewal.key, names, self.until)
        pause, resign = (None if raw is None else raw.partition(b" ")[2] for raw in last)
        return notices_for(renewal.token, pause, resign)

    # -- planting -----------------------------------------------------------------------------

    async def _plant(
        self, outcomes: Sequence[RenewOutcome], said: Sequence[list[Any] | None]
    ) -> None:
        """Where one is missing at a node that votes; what fails is tried at the next renewal."""
        missing = [
            (at, node)
            for node, answers in enumerate(said)
            for at, answer in enumerate(answers or ())
            if type(answer) is bytes and isinstance(outcomes[at], Renewed)
        ][:_PLANTED_AT_ONCE]
        if not missing:
            return
        values = await self._values(sorted({at for at, _ in missing}), said)
        requests: list[list[bytes]] = [[] for _ in said]
        for at, node in missing:
            if (value := values.get(at)) is not None:
                floor = (said[node] or [])[at][1:]
                requests[node].append(self.quorum.dialect.plant(self.batch[at], value, floor))
        steps = [Step(b"".join(it), len(it)) if it else None for it in requests]
        if not any(steps):
            return
        heard = await self.panel.ask(steps, self.until)
        # Who may not load scripts sends one with the first; then the node knows it.
        with_script = [
            Step(as_eval(it[0]) + b"".join(it[1:]), len(it)) if it and _has_forgotten(of) else None
            for it, of in zip(requests, heard, strict=True)
        ]
        if any(with_script):
            await self.panel.ask(with_script, self.until)

    async def _values(
        self, wanted: Sequence[int], said: Sequence[list[Any] | None]
    ) -> dict[int, bytes]:
        """What is planted: the value at a node that has just confirmed it."""
        places: list[list[int]] = [[] for _ in said]
        for at in wanted:
            node = next(n for n, it in enumerate(said) if it is not None and _confirms(it[at]))
            places[node].append(at)
        steps = [
            Step(b"".join(self.quorum.dialect.value(self.batch[at].key) for at in it), len(it))
            if it
            else None
            for it in places
        ]
        heard = await self.panel.ask(steps, self.until)
        values: dict[int, bytes] = {}
        for node, it in enumerate(heard):
            if isinstance(it, Silent):
                continue
            for at, value in zip(places[node], it, strict=True):
                renewal = self.batch[at]
                head = b"incumbent1 %b %d " % (renewal.claim.encode(), renewal.token)
                if isinstance(value, bytes) and value.startswith(head):
                    values[at] = value
        return values


def _has_forgotten(heard: Heard) -> bool:
    return not isinstance(heard, Silent) and is_forgotten(heard[0])


def _is_strange(heard: Heard | None) -> bool:
    """Whether the node says that it is not of this quorum."""
    return isinstance(heard, list) and isinstance(heard[0], list) and heard[0][:1] == [b"members"]


def _confirms(answer: Any) -> bool:
    return answer == 1 or type(answer) is list
