"""The members of a store with several servers, as this process finds them.

While a majority of a quorum, or of an etcd cluster, is up, leases go on, and nobody notices the
first member that dies: the second then ends everything. So a member that gives no answer is logged
once, with how many are left, and once more when it works again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.meters import Sample

_log = logging.getLogger("incumbent.store")

SAID_AFTER: Final = 2.0
"""Seconds without an answer after which it is logged: a restart may take less."""


class MemberDown(NamedTuple):
    """A member that gives no answer. `since`: an instant of the steady clock; `why`: in words."""

    since: float
    why: str


class Members:
    """What this process knows of each member. `where`: the store's URL for messages.

    `asks_all`: each request goes to all members, so that a member is known to be up or down. If
    not, one that gave no answer is asked again only when the others give none: then its failure is
    logged at once, and there is no metric.
    """

    def __init__(self, where: str, names: Sequence[str], need: int, *, asks_all: bool) -> None:
        self.names = tuple(names)
        self.down: dict[str, MemberDown] = {}
        self._where, self._need, self._asks_all = where, need, asks_all
        self._said: set[str] = set()

    def note_failed(self, name: str, error: Exception) -> None:
        """Note that a member gave no answer."""
        now = clock.now()
        # Of several threads the first says since when.
        down = self.down.setdefault(name, MemberDown(now, str(error)))
        silent_for = now - down.since
        if name in self._said or (self._asks_all and silent_for < SAID_AFTER):
            return
        # Before it is logged, so that no other thread says it too.
        self._said.add(name)
        up = len(self.names) - len(self.down)
        how_long = f" for {say_seconds(silent_for)}" if silent_for else ""
        _log.warning(
            "%s: member %s has failed%s: %s. %d of %d members are left, and %d are needed:"
            " bring it back before another one fails",
            *(self._where, name, how_long, error, up, len(self.names), self._need),
        )

    def note_answered(self, name: str) -> None:
        """Note that a member answered."""
        if name not in self.down:
            return
        down = self.down.pop(name, None)
        if name in self._said and down is not None:
            self._said.discard(name)
            after = say_seconds(clock.now() - down.since)
            _log.warning("%s: member %s works again, after %s", self._where, name, after)

    def samples(self) -> Iterator[Sample]:
        """The metric of each member."""
        if self._asks_all:
            for name in self.names:
                yield Sample(
                    "incumbent_store_member_up", (("member", name),), name not in self.down
                )
