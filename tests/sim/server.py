"""The one store of a world: the executable specification behind a clock and a fragile process."""

from __future__ import annotations

from collections.abc import Sequence

from incumbent.errors import StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Granted,
    Key,
    Parting,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.rules.notices import PAUSE, RESIGN, encode_notice
from incumbent.stores.base import Give, Take
from incumbent.stores.memory import MemoryTable
from tests.sim.judge import Judge
from tests.sim.setting import Setting
from tests.sim.tasks import Task

__all__ = ["Server"]

_WALL = 1_700_000_000.0


class Server:
    """Applies one operation at a time; the judge sees what it answered."""

    def __init__(self, world: Setting, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self.clock = world.store_clock
        self.wall_offset = _WALL
        # As short as it may be where all ask for the same ttl.
        wait = world.profile.restart_wait
        self.restart_wait = world.policy.kept_for if wait is None else wait
        self.table = MemoryTable()
        # The harder world: the protocols must do with a store that remembers no dead claim.
        self.table.late_kept = 0.0
        self.down = False
        self.frozen_until = 0.0
        self.last_grant: Granted | None = None
        self._listeners: list[tuple[Task, int, Key]] = []

    def now(self) -> float:
        """The clock that counts ttls."""
        return self.clock.at(self._world.now)

    def wall(self) -> float:
        """The clock that starts tokens."""
        return self.wall_offset + self.now()

    # -- operations --------------------------------------------------------------------------

    def take(self, key: Key, claim: str, ask: Ask) -> TakeOutcome:
        now = self.now()
        outcome = self.table.take(key, claim, ask, now, self.wall(), self.restart_wait)
        if isinstance(outcome, Granted):
            self.last_grant = outcome
            self._judge.granted(key, claim, ask, outcome, now)
        else:
            self._judge.denied(key, claim, now)
        return outcome

    def take_all(self, takes: Sequence[Take]) -> list[TakeOutcome]:
        return [self.take(*each) for each in takes]

    def give_all(self, gives: Sequence[Give]) -> list[GiveOutcome]:
        return [self.give(*each, PLAIN) for each in gives]

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
        now = self.now()
        outcomes = []
        for renewal in renewals:
            outcome = self.table.renew(renewal, now)
            self._judge.renewed(renewal, outcome, now, self.table.epoch)
            outcomes.append(outcome)
        return outcomes

    def give(self, key: Key, claim: str, token: int | None, parting: Parting) -> GiveOutcome:
        now = self.now()
        outcome = self.table.give(key, claim, token, now, self.wall(), parting)
        self._judge.given(key, claim, outcome, now, parting.closed_for)
        self._hint(key)
        return outcome

    # -- hints -------------------------------------------------------------------------------

    def listen(self, task: Task, key: Key, seen: str) -> None:
        """Wake the task at the next change, or soon if it is late already."""
        # The task wishes for its nap right after this, so the nap will have the next number.
        entry = (task, task.serial, key)
        if self.table.seen(key) != seen:
            self._tell(entry)
        else:
            self._listeners.append(entry)

    def _hint(self, key: Key) -> None:
        if self._listeners:
            told = [entry for entry in self._listeners if entry[2] == key]
            self._listeners = [entry for entry in self._listeners if entry[2] != key]
            for entry in told:
                self._tell(entry)

    def _tell(self, entry: tuple[Task, int, Key]) -> None:
        world, rng = self._world, self._world.rng
        if rng.random() >= world.profile.lost_hints:
            task, serial, _ = entry
            world.at(world.now + world.quick(), task.resume, serial)

    # -- its own life ------------------------------------------------------------------------

    def crash(self) -> None:
        """No connection is answered until it is back."""
        self.down = True

    def come_back(self, *, empty: bool) -> None:
        """A new incarnation, with its data or without."""
        self.down = False
        self.table.restart(self.now(), empty=empty)
        self._judge.restarted(empty=empty)

    def freeze(self, seconds: float) -> None:
        """Requests and answers wait in its buffers meanwhile."""
        self.frozen_until = self._world.now + seconds

    def refuse_if_down(self) -> None:
        """Raise what a client gets while nobody listens."""
        if self.down:
            raise StoreUnavailable("connection refused")

    # -- operators ---------------------------------------------------------------------------

    def pause(self, key: Key, *, on: bool) -> None:
        """Somebody throws the switch, or puts it back."""
        value = encode_notice(who="operator") if on else None
        self.table.put(key, PAUSE, value, None, self.now())
        self._judge.paused(key, on=on)
        self._hint(key)

    def resign(self, key: Key) -> None:
        """Somebody asks the present holder to go."""
        holdings = self.table.read(key, self.now()).holdings
        if holdings:
            value = encode_notice(who="operator", token=holdings[0].token)
            self.table.put(key, RESIGN, value, None, self.now())

    def break_by_force(self, key: Key) -> None:
        """Somebody removes the record under its holder."""
        holdings = self.table.read(key, self.now()).holdings
        if holdings:
            self._judge.forced(key, holdings[0].claim)
            self.table.give(key, holdings[0].claim, None, self.now(), self.wall())
            self._hint(key)

    def jump(self, seconds: float) -> None:
        """Its clock is set, and with it every ttl that it counts."""
        self.clock.offset += seconds
