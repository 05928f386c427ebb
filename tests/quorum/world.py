"""A world in which ballots are cast: true time, masters, processes, and a network that fails.

Everything happens in one thread, in the order of one heap, from one seed. Processes are coroutines
that yield what they want (`Round`, `Nap`) and get what came of it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, TypeAlias

from tests.quorum.node import Data, Node
from tests.quorum.wiring import serve

UNIX: Final = 1_800_000_000.0
LOOK: Final = "what a node says when a connection is made"
Request: TypeAlias = Any
Answer: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Round:
    """Requests to several masters at once; resumes with the answers that came in time.

    `enough`: whether the answers so far will do. None waits for all, or for `within` seconds.
    """

    requests: dict[int, Request]
    within: float
    enough: Callable[[dict[int, Answer]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Nap:
    """Resumes after so many seconds of the process's clock."""

    seconds: float


Script: TypeAlias = "Generator[Any, Any, None] | Coroutine[Any, Any, None]"


@dataclass(frozen=True, slots=True)
class Profile:
    """How bad it is: chances of a message, and rates of what befalls masters and processes."""

    lost: float = 0.0
    slow: float = 0.0
    pauses: float = 0.0
    wipes: float = 0.0
    restarts: float = 0.0
    rollbacks: float = 0.0
    freezes: float = 0.0
    outages: float = 0.0
    newcomers: float = 0.0
    """The chance that a claim is a new process's, which knows the clocks it can hear then."""
    skew: float = 0.0
    stale: float = 0.0
    length: float = 4.0
    calm: float = 4.5
    masters: tuple[int, ...] = (3, 3, 3, 5)
    lists: int = 1
    one_at_a_time: bool = True
    slowness: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 2.0)
    holds: tuple[float, ...] = (0.05, 0.3, 1.0, 3.0)
    naps: tuple[float, ...] = (0.02, 0.1, 0.3)
    contenders: int = 3
    tokens_grow: bool = True
    new: bool = False
    beside: float = 0.6
    """The chance that slots are used, and a log beside the lease is written."""


class Heap:
    """True time, and what will happen."""

    def __init__(self, seed: object) -> None:
        self.dice = random.Random(repr(seed))
        self.time = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._heap, (self.time + seconds, next(self._order), do))

    def run(self, until: float) -> None:
        """Let it all happen."""
        while self._heap and self._heap[0][0] <= until:
            self.time, _, do = heapq.heappop(self._heap)
            do()
        self.time = until


@dataclass
class Machine:
    """One master: its process (`epoch`), its clock, and the node whose scripts it runs."""

    heap: Heap
    at: int
    node: Node
    skew: float = 0.0
    rate: float = 1.0
    down: bool = False
    epoch: int = 0
    frozen_until: float = 0.0
    cut_off_until: float = 0.0
    started: float = 0.0
    snapshot: Data = field(default_factory=Data)

    def __post_init__(self) -> None:
        self.started = self.now() - 1000.0

    def now(self) -> float:
        """Its TIME, in seconds."""
        return UNIX + self.heap.time * self.rate + self.skew

    def handle(self, envelope: Request, answer: Callable[[Answer], None]) -> None:
        """Carry it out as soon as it can, if the connection is still one to this process."""
        epoch, request = envelope
        if self.down or epoch not in (None, self.epoch) or self.heap.time < self.cut_off_until:
            return
        wait = self.frozen_until - self.heap.time
        if wait > 0:
            self.heap.after(wait, lambda: self.handle(envelope, answer))
            return
        now = int(self.now() * 1_000_000)
        if request is LOOK:
            said: Answer = (now, self.node.data.marker is None)
        else:
            said = serve(self.node, request, now)
        # As INFO says it: whole seconds.
        answer((self.epoch, int(self.now()) - int(self.started), said))

    # -- what befalls it

    def wipe(self) -> None:
        """FLUSHALL: the process goes on."""
        self.node.data = Data()

    def restart(self, data: Data, down_for: float) -> None:
        """It ends, and another process begins with `data`."""
        self.epoch += 1
        self.down = True
        epoch = self.epoch

        def start() -> None:
            if self.epoch != epoch:
                # It ended again before it was up: what it would bring back is older by now.
                return
            self.down = False
            self.node.data, self.started = data, self.now()

        self.heap.after(down_for, start)


class Network:
    """Delays, loses and reorders what goes to and from the masters."""

    def __init__(self, heap: Heap, profile: Profile) -> None:
        self.heap, self.profile = heap, profile
        self.calm = False

    def send(self, machine: Machine, request: Request, answer: Callable[[Answer], None]) -> None:
        """Its answer may come late, or never, whether it was carried out or not."""
        there = self._travel()
        if there is None:
            return

        def reply(said: Answer) -> None:
            back = self._travel()
            if back is not None:
                self.heap.after(back, lambda: answer(said))

        self.heap.after(there, lambda: machine.handle(request, reply))

    def _travel(self) -> float | None:
        dice, profile = self.heap.dice, self.profile
        if self.calm:
            return dice.uniform(0.0005, 0.003)
        if dice.random() < profile.lost:
            return None
        if dice.random() < profile.slow:
            return dice.choice(profile.slowness) * dice.uniform(0.5, 1.5)
        return dice.uniform(0.0005, 0.01)


@dataclass
class Process:
    """One contender's process: runs its script, on a clock of its own rate, unless it is paused."""

    heap: Heap
    network: Network
    name: str
    rate: float = 1.0
    paused_until: float = 0.0
    round: int = 0
    script: Script | None = field(default=None, repr=False)

    running: ClassVar[Process]
    """Whose clock the code that runs now asks."""

    def now(self) -> float:
        """Its boot clock: true to within the bound of drift."""
        return self.heap.time * self.rate

    def start(self, script: Script) -> None:
        """Run it from now on."""
        self.script = script
        self._resume(None)

    def _resume(self, value: Any) -> None:
        wait = self.paused_until - self.heap.time
        if wait > 0:
            self.heap.after(wait, lambda: self._resume(value))
            return
        if self.script is None:
            return
        Process.running = self
        try:
            wanted = self.script.send(value)
        except StopIteration:
            self.script = None
            return
        if isinstance(wanted, Nap):
            self.heap.after(wanted.seconds / self.rate, lambda: self._resume(None))
        else:
            self._begin(wanted)

    def _begin(self, wanted: Round) -> None:
        self.round += 1
        mine = self.round
        answers: dict[int, Answer] = {}

        def done() -> None:
            if self.round == mine:
                self.round += 1
                self._resume(answers)

        def answered(at: int, said: Answer) -> None:
            if self.round != mine:
                return
            answers[at] = said
            if len(answers) == len(wanted.requests) or (wanted.enough and wanted.enough(answers)):
                done()

        for at, (machine, *envelope) in wanted.requests.items():
            self.network.send(machine, tuple(envelope), partial(answered, at))
        self.heap.after(wanted.within / self.rate, done)
