"""The nodes of a quorum as one operation sees them: what it needs of either transport.

An operation opens a panel and asks all its nodes, in rounds. `rounds` is written for this; `sync`
and `aio` have one each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.scripts import LOADS
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.resp import Step, pack
from incumbent.stores.redis.server import Facts, greeting

__all__ = ["NOT_ASKED", "Enough", "Heard", "Node", "Panel", "Welcome", "welcome"]

Heard: TypeAlias = "list[Any] | Silent"
"""The answers to a step, or why there are none."""
Enough: TypeAlias = "Callable[[Sequence[Heard | None]], bool]"
"""Whether the answers that are there (None: not yet) suffice."""

NOT_ASKED: Final = Silent(StoreUnavailable("it was not asked"), sent=False)
_OWED_MAX: Final = 4096
_RETRY_MOST: Final = 0.5
"""Seconds between tries to connect to a node that others can do without."""


class Panel(Protocol):
    """One operation's way to all nodes, in their order."""

    @property
    def born(self) -> Sequence[float | None]:
        """Of each node, since when its server certainly runs; None: there is no connection."""

    @property
    def blank(self) -> bool:
        """Whether all nodes are connected, and none had a marker when that was done."""

    async def open(self, until: float) -> None:
        """Connect as far as it goes. Never raises: a node that cannot be reached is Silent."""

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Heard]:
        """Write each node's step (None: nothing for it) to all, then hear them, by `until`.

        Without `enough` all that can still be heard is waited for. A node that has not answered by
        then is Silent; what it says later is never taken for another answer.
        """

    async def rest(self, seconds: float) -> None:
        """Wait."""

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """This node did not confirm that a vote was taken back: tell it when it answers again."""


@dataclass(slots=True)
class Node:
    """One member, for all operations of a process."""

    index: int
    site: Site
    failures: int = 0
    retry_at: float = 0.0
    why: StoreError | None = None
    met: bool = False
    owed: dict[tuple[Key, str], int] = field(default_factory=dict)

    def failed(self, error: StoreError) -> None:
        """A connection could not be made: the next try is not before a while."""
        self.why = error
        self.failures += 1
        self.retry_at = _now() + min(_RETRY_MOST, 0.01 * 2.0 ** min(self.failures, 10))

    def answered(self) -> None:
        """It is there."""
        self.failures, self.retry_at, self.why, self.met = 0, 0.0, None, True
        self.site.proved = True

    def silent(self) -> Silent:
        """Why there is no connection."""
        error = self.why or StoreUnavailable(f"{self.site.where} has not answered yet")
        return Silent(error, sent=False)

    def owes(self, key: Key, claim: str, ballot: int) -> None:
        """See Panel.owe."""
        if len(self.owed) >= _OWED_MAX:
            self.owed.clear()
        self.owed[key, claim] = max(ballot, self.owed.get((key, claim), 0))

    def take_owed(self) -> list[tuple[tuple[Key, str], int]]:
        """What it has to be told."""
        owed, self.owed = self.owed, {}
        return list(owed.items())


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a node says when a connection is made: its facts, and its time (unix us).

    `marker`: the node's; None if it is blank.
    """

    facts: Facts
    unix_us: int
    marker: bytes | None


def welcome(site: Site) -> Generator[Step, list[Any], Welcome]:
    """Look at a node and leave the scripts there. Raises StoreUnavailable for an unfit one."""
    facts = yield from greeting(site.where, allow_eviction=site.allow_eviction, proved=site.proved)
    step = Step(b"".join((*LOADS, pack("TIME"), pack("GET", MARKER))), len(LOADS) + 2)
    *_, time, marker = yield step
    for answer in (time, marker):
        if isinstance(answer, Exception):
            raise answered_error(str(answer), site.where, proved=site.proved)
    return Welcome(facts, int(time[0]) * 1_000_000 + int(time[1]), marker)
