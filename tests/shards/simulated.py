"""A thousand shards over fifty members in virtual time: the product's protocols, its own judge.

Members are processes of tests/sim; what they attend to and how they divide is the product's. The
judge of tests/sim sees every grant and every belief of every shard. On top of it, this looks at how
long shards are vacant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from incumbent.model import Ask, Guard, Key, PutOutcome, Record
from incumbent.policy import Policy
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.release import release
from incumbent.protocol.roster import Division, Roster, attend, shards_of
from tests.sim.judge import Judge
from tests.sim.judge import _believes as believes
from tests.sim.network import Network
from tests.sim.process import Process, SimPort
from tests.sim.profiles import Fate, Profile
from tests.sim.server import Server
from tests.sim.setting import Setting
from tests.sim.tasks import Exchange, Task, wish

__all__ = ["CALM", "LOSSY", "World"]

GROUP = Key("sim", "orders")
CALM = Profile("shards", "members come, go and die", ttls=(15.0,), lost_hints=0.1)
LOSSY = Profile(
    "lossy shards",
    "and requests and answers are lost, late and slow, members are frozen and cut off",
    ttls=(15.0,),
    lost_hints=0.3,
    faults=(
        *((Fate.REFUSED, 0.02), (Fate.LOST_REQUEST, 0.02), (Fate.LOST_REPLY, 0.02)),
        *((Fate.LATE_REQUEST, 0.02), (Fate.SLOW_REPLY, 0.02), (Fate.RESET, 0.01)),
        *((Fate.STALL_BEFORE_SENDING, 0.003), (Fate.STALL_BEFORE_REPLY, 0.003)),
    ),
)
_MOST_EVENTS = 500_000
_BODY = 0.1
"""Seconds, at most, that a body needs to end when it was asked to."""


class FleetServer(Server):
    """And what a roster needs of it."""

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> PutOutcome:
        outcome = self.table.put(key, field, value, guard, self.now())
        self._hint(key)
        return outcome

    def read(self, key: Key) -> Record:
        return self.table.read(key, self.now())


class FleetPort(SimPort):
    """And what a member needs of it."""

    __slots__ = ()

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        outcome: PutOutcome = await wish(
            Exchange(self._server.put, (key, field, value, guard), until)  # type: ignore[attr-defined]
        )
        return outcome

    async def read(self, key: Key, until: float) -> Record:
        record: Record = await wish(Exchange(self._server.read, (key,), until))  # type: ignore[attr-defined]
        return record


class Member(Process):
    """One member: its attending is the user's program, and each body is a task of its own."""

    world: World

    def __init__(self, world: World, network: Network, judge: Judge, number: int) -> None:
        super().__init__(world, network, judge, number)
        self.name = f"m-{number}"
        self.port: FleetPort = FleetPort(self)
        self.bodies: dict[int, _Body] = {}
        self.joined = False
        own = Ask(0.8 * world.ttl, self.name)
        place = Key(GROUP.namespace, f"{GROUP.name}/@{self.name}")
        shorter = Policy(0.8 * world.ttl)
        ask = Ask(world.ttl, self.name)
        wanted = LeaseRequest(GROUP, ask, ask, world.policy)
        note = str(world.count).encode()
        self.roster = Roster(
            GROUP, world.policy, self.keeper, LeaseRequest(place, own, own, shorter), note
        )
        self.division = Division(world.count, wanted, _Bodies(self))
        self.going = False

    async def _live(self) -> None:
        await attend(self.port, self.roster, self.division)

    def join(self) -> None:
        """Begin the user's program."""
        self.joined = True
        self.start()

    # -- its end -------------------------------------------------------------------------------

    def leave(self) -> None:
        """In order: the user ends it, the bodies end, and what it has is given back."""
        if self.dead or self.frozen or not self.joined:
            return
        self.going = True
        self.user.kill()
        self.user = Task(self, self._leave_in_order())
        self.user.resume(0)

    async def _leave_in_order(self) -> None:
        for body in list(self.bodies.values()):
            body.stop()
        await self.roster.strike_off(self.port)
        while self.bodies:
            await self.port.sleep_until(self.now() + 0.05)
        await self.roster.leave(self.port)

    def crash(self) -> None:
        self.world.crashed(self)
        super().crash()
        for body in list(self.bodies.values()):
            body.task.kill()
        self.bodies.clear()
        held = self.roster._claim
        if held is not None:
            held.machine.note_forked()


class _Bodies:
    """See protocol.roster.Bodies."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def numbers(self) -> list[int]:
        return list(self._member.bodies)

    def start(self, number: int, held: Claim) -> None:
        member = self._member
        member.keeper.arm(held)
        member.judge.began(member, held, [])
        member.world.begun(member, number, held)
        body = member.bodies[number] = _Body(member, number, held)
        member.world.at(member.world.now, body.task.resume, 0)

    def stop(self, number: int) -> None:
        self._member.bodies[number].stop()


class _Body:
    """The work of one shard: it looks at its lease now and then, and ends when it is asked to."""

    def __init__(self, member: Member, number: int, held: Claim) -> None:
        self.member = member
        self.number = number
        self.held = held
        self.asked = False
        self.resting = False
        self.task = Task(member, self._run())

    def stop(self) -> None:
        if self.asked:
            return
        self.asked = True
        if self.resting:
            world = self.member.world
            world.at(world.now, self.task.resume, self.task.serial)

    async def _run(self) -> None:
        member, held, world = self.member, self.held, self.member.world
        machine, port = held.machine, member.port
        while not self.asked and machine.valid(now := member.now()) and now < machine.stop_at:
            member.judge.acts(member, held)
            self.resting = True
            await port.rest(machine.stop_at)
            self.resting = False
        await port.sleep_until(member.now() + _BODY * world.rng.random())
        world.ended(member, self.number, held)
        if machine.valid(member.now()):
            member.judge.leaves(member, held, undone=False)
            await release(port, held)
        else:
            member.keeper.owe(held.debt(member.now(), undo_slot=False))
        member.keeper.disarm(held)
        member.judge._forget(held)
        del member.bodies[self.number]


@dataclass
class Vacancy:
    """A shard without a body: since when, and how the one before ended."""

    shard: int
    since: float
    until: float
    after: str


class World(Setting):
    """Members of one group. `way`: seconds, at most, of one way to the store or back."""

    def __init__(
        self, profile: Profile, seed: int, count: int, members: int, way: float = 0.002
    ) -> None:
        super().__init__(profile, seed)
        self._quick = way
        self.count = count
        self.judge = Judge(self)
        self.server = FleetServer(self, self.judge)
        self.network = Network(self, self.server)
        self.members = [Member(self, self.network, self.judge, number) for number in range(members)]
        self.vacancies: list[Vacancy] = []
        self.begins: dict[int, list[Member]] = defaultdict(list)
        self._vacant: dict[int, tuple[float, str]] = {}
        self._tokens: dict[int, int] = {}
        self._working: dict[int, Claim] = {}

    def play(self, until: float) -> None:
        """Let everything happen until then; then nobody is left."""
        over = False

        def end() -> None:
            nonlocal over
            over = True

        self.at(until, end)
        for _ in range(_MOST_EVENTS):
            if over:
                return
            self.run(1)
        self.judge.fail("busy", f"more than {_MOST_EVENTS} events by {self.now:.1f} s")

    def close(self) -> None:
        for member in self.members:
            if not member.dead:
                member.crash()

    # -- what the members say --------------------------------------------------------------------

    def begun(self, member: Member, shard: int, held: Claim) -> None:
        token = held.machine.token
        if token <= self._tokens.get(shard, 0):
            self.judge.fail("tokens", f"shard {shard}: {token} after {self._tokens[shard]}")
        if not held.machine.valid(member.now()):
            self.judge.fail("unproved", f"{member.name} begins shard {shard} without a lease")
        # By the shard, not by the lease: a member might have taken another one for it.
        for other in self.members:
            body = other.bodies.get(shard)
            if body is not None and believes(other, body.held):
                self.judge.fail("two bodies", f"shard {shard}: {member.name} beside {other.name}")
        self._tokens[shard] = token
        self._working[shard] = held
        self.begins[shard].append(member)
        since, after = self._vacant.pop(shard, (None, ""))
        if since is not None:
            self.vacancies.append(Vacancy(shard, since, self.now, after))

    def ended(self, member: Member, shard: int, held: Claim) -> None:
        if self._working.get(shard) is held:
            del self._working[shard]
            valid = held.machine.valid(member.now())
            self._vacant[shard] = (self.now, "released" if valid else "lost")

    def crashed(self, member: Member) -> None:
        for shard, body in member.bodies.items():
            if self._working.get(shard) is body.held:
                del self._working[shard]
                self._vacant[shard] = (self.now, "crashed")

    # -- what must be ----------------------------------------------------------------------------

    def holders(self) -> dict[int, list[Member]]:
        """Whose body works on each shard now."""
        found: dict[int, list[Member]] = {shard: [] for shard in range(self.count)}
        for member in self.members:
            for shard in () if member.dead else member.bodies:
                found[shard].append(member)
        return found

    def is_settled(self) -> bool:
        """Whether each shard is where all who live say that it belongs."""
        alive = {f"@{one.name}" for one in self.members if one.joined and self.lives(one)}
        return all(
            {*member.bodies} == shards_of(f"@{member.name}", GROUP.name, self.count, alive)
            for member in self.members
            if f"@{member.name}" in alive
        )

    @staticmethod
    def lives(member: Member) -> bool:
        return not (member.dead or member.going)

    def longest(self, after: str) -> float:
        """Seconds of the longest vacancy of its kind, also of those that still last."""
        ended = [one.until - one.since for one in self.vacancies if one.after == after]
        lasting = [self.now - since for since, kind in self._vacant.values() if kind == after]
        return max([*ended, *lasting], default=0.0)

    def everybody(self, act: Callable[[Member], object], span: float, start: float = 0.0) -> None:
        """Each member does something, spread over a time."""
        for member in self.members:
            self.at(start + span * self.rng.random(), act, member)
