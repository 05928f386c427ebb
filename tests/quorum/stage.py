"""A quorum on which a test says exactly who hears what, and when: for the histories that chance is
too slow to find."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Renewal, Renewed
from incumbent.stores.plan import run_blocking
from incumbent.stores.quorum.ballots import BallotClock, Silent
from incumbent.stores.quorum.dialect import SCRIPTS, QuorumDialect
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Panel, Quorum, Reply
from incumbent.stores.quorum.renew import renew
from incumbent.stores.quorum.take import give, take
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.resp import RequestBatch
from tests.quorum.bugs import Bugs
from tests.quorum.claimant import SPAN, TTL, StaleClock
from tests.quorum.node import LONGEST, SECOND, Node
from tests.quorum.wiring import marker_of, serve
from tests.quorum.world import UNIX, Heap, Network, Process, Profile

T = TypeVar("T")
KEY = Key("stage", "one")
BORN_LONG_AGO = ("m", 0, LONGEST)


class Stage:
    """Some nodes and the true time. `Process.running` is whoever acts, for the patched clocks.

    `ahead`: by how many seconds the clock of each node is.
    """

    def __init__(self, count: int, bugs: Bugs, ahead: Sequence[float] = ()) -> None:
        self.heap = Heap("stage")
        self.ahead = tuple(ahead) or (0.0,) * count
        self.nodes = [Node(bugs.of_node) for _ in range(count)]
        for node in self.nodes:
            node.data.marker = BORN_LONG_AGO
        Process.running = Process(self.heap, Network(self.heap, Profile()), "stage")

    @property
    def unix_us(self) -> int:
        return int((UNIX + self.heap.time) * SECOND)

    def clock_of(self, at: int) -> int:
        """Unix us by the clock of one node."""
        return self.unix_us + int(self.ahead[at] * SECOND)

    def wait_until(self, seconds: float) -> None:
        self.heap.time = seconds

    def wipe(self, *places: int) -> None:
        """These lose everything; whoever touches them next stamps their birth."""
        for at in places:
            self.nodes[at].data.marker = ("m", self.clock_of(at), LONGEST)
            self.nodes[at].data.lease = self.nodes[at].data.floor = None


@dataclass
class Actor(Panel):
    """One process. `reach`: whom it reaches; `unheard`: those whose answers it does not get.

    `hears`: the nodes whose clocks it knows (all of them if None).
    """

    stage: Stage
    name: str
    late_by: float = 0.0
    hears: Iterable[int] | None = None
    ttl: float = TTL
    restart_wait: float | None = TTL
    rounds_made: int = 0
    reach: set[int] = field(default_factory=set)
    unheard: set[int] = field(default_factory=set)
    deaf_to: str = ""
    """The script whose requests reach nobody."""
    late: str = ""
    """The script whose requests are on their way until `arrive`."""
    on_their_way: list[tuple[int, bytes]] = field(default_factory=list)
    believes_until: float = 0.0
    granted: Granted | None = None
    refused_for: float | None = None

    def __post_init__(self) -> None:
        count = len(self.stage.nodes)
        dialect = QuorumDialect(Naming(None), "m", self.restart_wait, "the quorum")
        clock: BallotClock = StaleClock(count, int(-self.late_by * SECOND))
        for at in range(count) if self.hears is None else self.hears:
            clock.learn(at, self.stage.clock_of(at), self.stage.heap.time)
            dialect.learn_marker(marker_of(self.stage.nodes[at]))
        names = tuple(map(str, range(count)))
        self.quorum = Quorum(dialect, clock, names, "the quorum")
        self.claim = f"claim-of-{self.name}"

    # -- what it does

    def take(self, reach: Iterable[int], unheard: Iterable[int] = ()) -> int:
        """The token; 0 if it did not get it."""
        self.reach, self.unheard = set(reach), set(unheard)
        sent = self.stage.heap.time
        try:
            ask = Ask(self.ttl, self.name)
            outcome = self.run(take(self, KEY, self.claim, ask, sent + 0.1))
            if isinstance(outcome, Granted):
                self.granted, self.believes_until = outcome, sent + SPAN / TTL * self.ttl
                return outcome.token
        except StoreError as error:
            self.refused_for = error.retry_after
        return 0

    def renew(self, reach: Iterable[int]) -> bool:
        """Whether it may go on."""
        assert self.granted is not None
        self.reach, self.unheard = set(reach), set()
        sent = self.stage.heap.time
        renewal = Renewal(KEY, self.claim, self.granted.token, TTL, self.granted.epoch)
        with suppress(StoreError):
            (outcome,) = self.run(renew(self, [renewal], sent + 0.1))
            if isinstance(outcome, Renewed) and sent < self.believes_until:
                self.believes_until = sent + SPAN
                return True
        return False

    def give(self, reach: Iterable[int]) -> None:
        """Release, whatever the ballot is at each of them."""
        self.reach, self.unheard = set(reach), set()
        until = self.stage.heap.time + 0.1
        with suppress(StoreError):
            self.run(give(self, KEY, self.claim, None, until))

    def arrive(self) -> None:
        """What was on its way does so."""
        for at, payload in self.on_their_way:
            serve(self.stage.nodes[at], payload, self.stage.clock_of(at))

    @property
    def believes(self) -> bool:
        """Now."""
        return self.stage.heap.time < self.believes_until

    @staticmethod
    def run(coroutine: Awaitable[T]) -> T:
        return run_blocking(coroutine)  # type: ignore[arg-type]

    # -- see Panel

    @property
    def born(self) -> list[float | None]:
        """All are up for long."""
        return [-1e6] * len(self.stage.nodes)

    @property
    def blank(self) -> bool:
        """None is new."""
        return False

    async def open(self, until: float) -> None:
        """It is."""

    async def ask(
        self, steps: Sequence[RequestBatch | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """At once, for those in reach."""
        self.rounds_made += 1
        return [NOT_ASKED if step is None else self._one(at, step) for at, step in enumerate(steps)]

    def _one(self, at: int, step: RequestBatch) -> Reply:
        deaf = self.deaf_to and SCRIPTS[self.deaf_to].sha in step.payload
        if deaf or at not in self.reach:
            return Silent(StoreUnavailable("out of reach"), sent=False)
        if self.late and SCRIPTS[self.late].sha in step.payload:
            self.on_their_way.append((at, step.payload))
            return Silent(OutcomeUnknown("not heard"), sent=True)
        answers = serve(self.stage.nodes[at], step.payload, self.stage.clock_of(at))
        if at in self.unheard:
            return Silent(OutcomeUnknown("not heard"), sent=True)
        return answers

    async def rest(self, seconds: float) -> None:
        """Time passes."""
        self.stage.heap.time += seconds

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """Nobody is told later: what stays is what the rules are for."""
