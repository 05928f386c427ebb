"""Renewals that are sent again and again, prepared once: see model.Batch. No I/O.

An answer says of which state of the cluster it is. If that is the state of which a look at keys was
answered before, none of them can have changed: it need not be taken again. So while nobody writes,
thousands of leases cost the look at a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from incumbent.stores.etcd.answers import AsOf
from incumbent.stores.etcd.dialect import BATCH, Dialect
from incumbent.stores.etcd.incarnation import Born
from incumbent.stores.etcd.memory import Memory, Mine, Session, Together

__all__ = ["Look", "Prepared", "prepare"]

_FIRST: Final = 8
"""Leases of the first look of several, which tells whether the others are needed."""


class Look:
    """Whether some leases are there and unpaused. `as_of`: the state that last said yes."""

    __slots__ = ("as_of", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.as_of: AsOf | None = None


class Prepared:
    """Leases of one ttl and one session, all of which were renewed."""

    __slots__ = ("_together", "_ttl", "born", "looks", "session")

    def __init__(
        self, born: Born, session: Session, ttl: float, looks: list[Look], together: Together
    ) -> None:
        self.session = session
        self.looks = looks
        self.born = born
        self._ttl = ttl
        self._together = together

    def holds(self, memory: Memory, now: float) -> bool:
        """Whether all is as it was when this was prepared."""
        session, together = self.session, self._together
        return (
            together.whole
            and together.due > now
            and not session.gone
            and session.ttl >= self._ttl
            and memory.by_id.get(session.id) is session
            and memory.born is self.born
        )

    def extend(self, sent: float) -> None:
        """They are renewed by what is about to be sent."""
        self._together.due = max(self._together.due, sent + self._ttl)


def prepare(memory: Memory, dialect: Dialect, mines: Sequence[Mine], ttl: float) -> Prepared | None:
    """For leases that were just renewed; None if they cannot be renewed in one go."""
    session, born = mines[0].session, memory.born
    if born is None or any(mine.session is not session for mine in mines):
        return None
    together = Together(min(mine.ends for mine in mines))
    for mine in mines:
        mine.join(together)
    newest = max(mines, key=lambda mine: mine.revision)
    looks = [Look(dialect.all_quiet(some, born, newest)) for some in _shares(mines)]
    return Prepared(born, session, ttl, looks, together)


def _shares(mines: Sequence[Mine]) -> list[Sequence[Mine]]:
    if len(mines) <= BATCH // 2:
        return [mines]
    starts = [0, *range(_FIRST, len(mines), BATCH), len(mines)]
    return [mines[start:end] for start, end in pairwise(starts)]
