"""A cluster: which node has which key, how each node is reached, and operations routed there.

Renewals take one script call for each slot; all calls to a node share one round trip: see `renew`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from math import inf
from typing import Any, Final, NamedTuple, TypeVar, cast

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Batch, Granted, Key, Record, Renewal, RenewOutcome, Unproved
from incumbent.net.pool import decoding
from incumbent.stores.plan import Plan, one_by_one
from incumbent.stores.redis.incarnation import RedisOperations, RedisPlan
from incumbent.stores.redis.options import (
    Address,
    Reach,
    RedisOptions,
    parse_address,
    say_address,
    the_same,
)
from incumbent.stores.redis.records import SLOTS, Naming, slot_of
from incumbent.stores.redis.renew import NodePart, renew_part, slot_of_lease
from incumbent.stores.redis.resp import ASKING, RequestBatch, RespProgram, each_step, pack
from incumbent.stores.redis.runner import DIALECT, RedisRunner, ignore_late_error, operations_at
from incumbent.stores.redis.site import Moved, Packer, RedisSite, answered_error
from incumbent.stores.redis.wire import JoinedPlan, RedisSide, at_least, joined

T = TypeVar("T")

_now = clock.now

# Seconds after which the nodes are asked for the topology again.
_AGAIN: Final = 0.1
# The largest share of the remaining time that asking for the topology may take.
_FOR_ASKING: Final = 0.5
_COPIES: Final = 3
_NUMBERS_TRIED: Final = 2000


@dataclass(slots=True)
class Topology:
    """The master of each slot: `masters[i]` has `starts[i]` to `ends[i]`, both included."""

    epoch: int = -1
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    masters: list[Address] = field(default_factory=list)
    moved: dict[int, Address] = field(default_factory=dict)
    """The new masters of slots that have moved since."""

    def master_of(self, slot: int) -> Address | None:
        """The node that has the slot; None if no node has it."""
        if slot in self.moved:
            return self.moved[slot]
        at = bisect_right(self.starts, slot) - 1
        return self.masters[at] if at >= 0 and slot <= self.ends[at] else None

    def unserved(self) -> int:
        """The number of slots that no node has."""
        return SLOTS - sum(
            end + 1 - start for start, end in zip(self.starts, self.ends, strict=True)
        )

    def nodes(self) -> list[Address]:
        """The nodes that have slots."""
        return list(dict.fromkeys((*self.masters, *self.moved.values())))


def marker_keys_of(topology: Topology, node: Address) -> tuple[str, ...]:
    """Keys in slots of this node, for the copies of its marker.

    A slot may move to another node with its keys: so there are copies, whose keys name the node.
    """
    whose = say_address(node)
    keys = (f"incumbent:{{{number}}}:server:{whose}" for number in range(_NUMBERS_TRIED))
    return tuple(islice((it for it in keys if topology.master_of(slot_of(it)) == node), _COPIES))


def question(asked: Address, where: str, *, served: bool) -> RespProgram[Topology]:
    """Ask one node for the topology. Raises StoreUnavailable if it is part of no cluster."""
    info, slots = yield RequestBatch(pack("CLUSTER", "INFO") + pack("CLUSTER", "SLOTS"), 2)
    for answer in (info, slots):
        if isinstance(answer, Exception):
            if "cluster support disabled" in str(answer):
                raise StoreUnavailable(
                    f"{where} is part of no cluster: write redis:// for a single server",
                    permanent=not served,
                )
            raise answered_error(str(answer), where, served=served)
    with decoding():
        return _topology(info, slots, asked)


def _topology(info: bytes, slots: Sequence[Any], asked: Address) -> Topology:
    state = dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
    # A node that has lost contact with the others knows less than any of them.
    epoch = int(state["cluster_current_epoch"]) if state.get("cluster_state") == "ok" else -1
    found = Topology(epoch)
    # In order, for the bisection of `master_of`.
    for start, end, master, *_ in sorted(slots, key=lambda each: int(each[0])):
        found.starts.append(start)
        found.ends.append(end)
        found.masters.append((host_of((master[0] or b"").decode(), asked), master[1]))
    return found


def host_of(named: str, asked: Address | None) -> str:
    """The host that the node `asked` named, or that node's own host if it named none.

    By cluster-preferred-endpoint-type: "" is unknown-endpoint, "?" is hostname without a hostname.
    """
    return named if named not in ("", "?") or asked is None else asked[0]


def asking(program: RespProgram[T]) -> RespProgram[T]:
    """Put ASKING before each step; its first request is for a key being moved to this node."""

    def ask(step: RequestBatch) -> RespProgram[list[Any]]:
        _, *answers = yield RequestBatch(ASKING + step.payload, 1 + step.answers)
        return answers

    return each_step(program, ask)


@dataclass(slots=True)
class KnownCluster:
    """A cluster as both sides of an engine know it. `site`: the template for each node's site.

    `seeds`: configured addresses, reached as they are; all others are as nodes announce them.
    `marked`: the topology by which each site has its marker's keys.
    """

    site: RedisSite
    seeds: tuple[Address, ...]
    reach: Reach = the_same
    advice: str = "check the nodes, their password and the network"
    topology: Topology = field(default_factory=Topology)
    sites: dict[Address, RedisSite] = field(default_factory=dict)
    marked: dict[Address, Topology] = field(default_factory=dict)
    asked: float = -inf
    must_ask: bool = True
    served: bool = False

    def site_of(self, address: Address) -> RedisSite:
        """The site of one node, with its marker's keys by the topology."""
        topology, site = self.topology, self.sites.get(address)
        if site is None:
            where = f"{self.site.where} (node {say_address(address)})"
            reached = address if address in self.seeds else self.reach(address)
            target = self.site.target.at(reached)
            named = address in self.seeds
            made = replace(self.site, target=target, where=where, named=named)
            # Two threads that make it at once share the first, and what it learns.
            site = self.sites.setdefault(address, made)
        # Without masters nothing is known, and a slow thread would take away known keys.
        if topology.masters and self.marked.get(address) is not topology:
            self._set_marker_keys(topology, address)
        return site

    def _set_marker_keys(self, topology: Topology, *addresses: Address) -> None:
        for address in addresses:
            self.sites[address].marker_keys = marker_keys_of(topology, address)
            self.marked[address] = topology

    @property
    def stale(self) -> bool:
        """Whether the nodes must be asked for the topology again."""
        return self.must_ask and not 0 <= _now() - self.asked < _AGAIN

    async def ask(self, side: RedisSide, until: float) -> None:
        """Ask for the topology. Raises StoreUnavailable if no node has ever answered."""
        now = _now()
        addresses = list(dict.fromkeys((*self.topology.nodes(), *self.seeds)))
        sites = {address: self.site_of(address) for address in addresses}

        def program(site: RedisSite) -> RespProgram[Topology]:
            asked = next(address for address, each in sites.items() if each is site)
            return question(asked, site.where, served=self.served)

        # Any answer will do at first, and later, if none comes, the topology known before: a node
        # that does not have a key names the node that has it.
        share, enough = 1.0, at_least(1)
        if self.topology.masters:
            share, enough = _FOR_ASKING, at_least(len(addresses) // 2 + 1)
        answers = await side.survey(
            list(sites.values()), program, enough, now + max(0.0, until - now) * share
        )
        self._learn([each for each in answers if isinstance(each, Topology)], answers)

    def _learn(self, known: Sequence[Topology], answers: Sequence[Topology | StoreError]) -> None:
        if not known and self.topology.masters:
            # `must_ask` stays: it is asked again, but not before each operation.
            self.asked = _now()
            return
        if not known:
            raise self._nobody([each for each in answers if isinstance(each, StoreError)])
        self.asked, self.must_ask, self.served = _now(), False, True
        newest = max(known, key=lambda each: each.epoch)
        # The same object as long as nothing changed: packed renewals are kept for it.
        if newest != self.topology:
            # Before it is shown to readers, and after, for sites that another thread has made
            # meanwhile. The copy of the addresses is one atomic step.
            self._set_marker_keys(newest, *self.sites)
            self.topology = newest
            self._set_marker_keys(newest, *self.sites)

    def _nobody(self, errors: Sequence[StoreError]) -> StoreUnavailable:
        words = "; ".join(str(each).removeprefix(f"{self.site.where} ") for each in errors[:3])
        words = words or "no answer in time"
        return StoreUnavailable(
            f"{self.site.where}: no node said which node has which keys: {words}",
            permanent=bool(errors) and all(each.permanent for each in errors),
        )

    @property
    def summary(self) -> str:
        """The description for `doctor`."""
        nodes, missing = self.topology.nodes(), self.topology.unserved()
        what = f"a cluster of {len(nodes)} masters: {', '.join(map(say_address, nodes))}"
        return f"{what}; {missing} slots have none" if missing else what

    def masters(self) -> list[tuple[str, RedisSite]]:
        """See Discovery.masters."""
        nodes = self.topology.nodes()
        return [(say_address(address), self.site_of(address)) for address in nodes]

    def ask_again(self) -> None:
        """After an error at a node: ask again, since another may have taken its place."""
        self.must_ask = True


# -- routing ---------------------------------------------------------------------------------------


# The kinds of plans that may run at a node to which the key is being moved.
_CHANGES: Final = frozenset({"take", "give", "put"})
# Redirections that one operation follows without a pause.
_HOPS: Final = 5
# Seconds between later redirections: nodes learn late that a slot has moved, and redirect to each
# other until then.
_APART: Final = 0.02


class _RouterNode(NamedTuple):
    """One node, with the operations of one side there."""

    address: Address
    planned: RedisOperations


class Router(RedisOperations):
    """Carries out each plan at the node that has its key, or at all nodes."""

    dialect = DIALECT

    def __init__(self, side: RedisSide, cluster: KnownCluster, options: RedisOptions) -> None:
        self._side = side
        self._cluster = cluster
        self._options = options
        self._naming = Naming(options.key)
        self._nodes: dict[Address, _RouterNode] = {}

    async def run(self, plan: RedisPlan[T], until: float) -> T:
        """See Planned.run. A key that is being moved cannot be read."""
        outcome: Any
        if plan.kind == "renew":
            outcome = await self._renew(plan.renewals, until)
        elif plan.kind == "scan":
            outcome = await self._scan(cast("RedisPlan[tuple[Record, ...]]", plan), until)
        elif isinstance(plan, JoinedPlan):
            outcome = await self._run_joined(plan, until)
        else:
            operate = partial(self._run_at, plan, until)
            outcome = await self._at(plan.keys[0], until, operate, changes=plan.kind in _CHANGES)
        return outcome  # type: ignore[no-any-return]  # what the plan's kind says is T

    async def _run_at(
        self, plan: RedisPlan[T], until: float, node: _RouterNode, *, moving: bool
    ) -> Any:
        """Carry out a plan at a node; `moving`: the key is being moved there."""
        if not moving:
            outcome: Any = await node.planned.run(plan, until)
        elif not isinstance(node.planned, RedisRunner):
            raise StoreUnavailable("the key is being moved, and its replicas cannot be asked yet")
        else:
            by_asking = replace(plan, start=lambda server, end: asking(plan.start(server, end)))
            outcome = await node.planned.carry(by_asking, until)
        if isinstance(plan, JoinedPlan):
            return [_granted_by(node, each) for each in outcome]
        return _granted_by(node, outcome)

    async def _run_joined(self, plan: JoinedPlan[T], until: float) -> list[T | StoreError]:
        """Send one request to each node. Plans whose key has moved are run again, one by one."""
        await self._side.update(self._cluster, until)
        nodes: dict[Address | None, list[int]] = {}
        for at, key in enumerate(plan.keys):
            nodes.setdefault(self._cluster.topology.master_of(self._slot(key)), []).append(at)
        calls = [
            partial(self._run_part, address, joined([plan.parts[at] for at in indexes]))
            for address, indexes in nodes.items()
        ]
        outcomes: dict[int, T | StoreError] = {}
        answers = await self._side.gather(calls, until)
        for indexes, answer in zip(nodes.values(), answers, strict=True):
            each: Sequence[T | StoreError] = (
                [answer] * len(indexes) if isinstance(answer, StoreError) else answer
            )
            outcomes.update(zip(indexes, each, strict=True))
        if any(isinstance(outcome, StoreError) for outcome in outcomes.values()):
            # Before the repeats, which then go by a new topology.
            self._cluster.ask_again()
        # Only these: Moved is answered instead of carrying a request out, so a
        # repeat is no second try.
        moved = [at for at, outcome in outcomes.items() if isinstance(outcome, Moved)]
        again = await one_by_one(lambda at: self.run(plan.parts[at], until), moved)
        outcomes.update(zip(moved, again, strict=True))
        return [outcomes[at] for at in range(len(plan.parts))]

    async def _run_part(
        self, address: Address | None, part: JoinedPlan[T], until: float
    ) -> list[T | StoreError]:
        outcome: list[T | StoreError] = await self._run_at(
            part, until, self._node(address), moving=False
        )
        return outcome

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Planned.wait_change. Every node receives what is published at any node."""

        async def operate(node: _RouterNode, *, moving: bool) -> None:
            await node.planned.wait_change(key, seen, until)

        await ignore_late_error(self._at(key, until, operate), until)

    async def _scan(self, plan: RedisPlan[tuple[Record, ...]], until: float) -> tuple[Record, ...]:
        await self._side.update(self._cluster, until)
        nodes = [self._node(address) for address in self._cluster.topology.nodes()]
        calls = [partial(node.planned.run, plan) for node in nodes]
        found: dict[Key, Record] = {}
        for records in await self._side.gather(calls, until):
            if isinstance(records, StoreError):
                self._cluster.ask_again()
                raise records
            # A key that was moved meanwhile may have been seen at both nodes.
            found |= {record.key: record for record in records}
        return tuple(found[key] for key in sorted(found))

    # -- renewals -----------------------------------------------------------------------------

    async def _renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """Send one request to each node. One that fails does not affect the others."""
        await self._side.update(self._cluster, until)
        outcomes: list[RenewOutcome | StoreError] = [_UNASKED] * len(renewals)
        asks: dict[int, Address] = {}
        parts = self._parts(renewals)
        for hop in count(1):
            calls = [partial(self._renew_part, renewals, part, outcomes) for part in parts]
            failures = await self._side.gather(calls, until)
            for part, failure in zip(parts, failures, strict=True):
                if failure is not None:
                    for at in part.indexes:
                        outcomes[at] = failure
            moved = [
                (at, error, part.address)
                for part in parts
                for at in part.indexes
                if isinstance(error := outcomes[at], Moved)
            ]
            if not moved or not await self._may_follow(hop, until):
                break
            for at, error, by in moved:
                self._learn(self._slot(renewals[at].key), error, by, asks)
            parts = self._sorted(renewals, [at for at, *_ in moved], asks)
        errors = [each for each in outcomes if isinstance(each, StoreError)]
        if errors:
            self._cluster.ask_again()
        # No lease was proved anywhere: that is an outage, and the caller logs it as one.
        if errors and len(errors) == len(outcomes):
            raise errors[0]
        return [Unproved(str(each)) if isinstance(each, StoreError) else each for each in outcomes]

    def _parts(self, renewals: Sequence[Renewal]) -> Sequence[NodePart]:
        """The renewals by node; those of a Batch are kept, with the requests packed for them."""
        if not isinstance(renewals, Batch):
            return self._sorted(renewals, range(len(renewals)), {})
        plan, topology = renewals.prepared, self._cluster.topology
        if not isinstance(plan, _RenewalPlan) or plan.topology is not topology:
            parts = self._sorted(renewals, range(len(renewals)), {})
            plan = renewals.prepared = _RenewalPlan(topology, parts)
        return plan.parts

    def _sorted(
        self, renewals: Sequence[Renewal], indexes: Iterable[int], asks: dict[int, Address]
    ) -> Sequence[NodePart]:
        topology = self._cluster.topology
        parts: dict[tuple[Address | None, bool], NodePart] = {}
        for at in indexes:
            slot = slot_of_lease(self._naming, renewals[at])
            where = (asks.get(slot) or topology.master_of(slot), slot in asks)
            part = parts.get(where)
            if part is None:
                part = parts[where] = NodePart(where[0], by_asking=where[1])
            part.indexes.append(at)
        return list(parts.values())

    async def _renew_part(
        self,
        renewals: Sequence[Renewal],
        part: NodePart,
        outcomes: list[RenewOutcome | StoreError],
        until: float,
    ) -> None:
        plan: RedisPlan[None] = Plan(
            "renew",
            lambda server, _: renew_part(server.packer, renewals, part, server.facts, outcomes),
        )
        await self._node(part.address).planned.run(plan, until)

    # -- nodes --------------------------------------------------------------------------------

    def let_go(self) -> None:
        for node in list(self._nodes.values()):
            node.planned.let_go()

    def _slot(self, key: Key) -> int:
        return slot_of(self._naming.of(key).lease)

    def _node(self, address: Address | None) -> _RouterNode:
        if address is None:
            raise StoreUnavailable(
                f"{self._cluster.site.where}: no node has the slot of this key", retry_after=1.0
            )
        node = self._nodes.get(address)
        if node is None:
            site = self._cluster.site_of(address)
            packer = Packer(self._naming, site.where)
            planned = operations_at(self._options, site, packer, self._side)
            node = self._nodes[address] = _RouterNode(address, planned)
        return node

    def _learn(self, slot: int, error: Moved, by: Address | None, asks: dict[int, Address]) -> None:
        """Note the address that the node `by` named. Raises `error` if it named none."""
        if not error.address:
            raise error
        host, port = parse_address(error.address)
        address = (host_of(host, by), port)
        if error.ask:
            asks[slot] = address
        else:
            # It has moved for good, so nothing there is asked for with ASKING any more.
            asks.pop(slot, None)
            # In place: another object would discard the packed renewals of all other slots.
            self._cluster.topology.moved[slot] = address
            self._cluster.ask_again()

    async def _at(
        self, key: Key, until: float, operate: Callable[..., Awaitable[T]], *, changes: bool = False
    ) -> T:
        """Run `operate` at the node that has the key, following redirections.

        `changes`: also at a node to which the key is being moved.
        """
        await self._side.update(self._cluster, until)
        slot = self._slot(key)
        asks: dict[int, Address] = {}
        for hop in count(1):
            address = asks.get(slot) or self._cluster.topology.master_of(slot)
            try:
                return await operate(self._node(address), moving=slot in asks)
            except Moved as error:
                # ASKING counts for one command, and a read has several. A second ASK leads nowhere.
                if error.ask and (not changes or slot in asks):
                    raise
                self._learn(slot, error, address, asks)
            except StoreError:
                # Another node may have taken its place: the next operation asks.
                self._cluster.ask_again()
                raise
            if not await self._may_follow(hop, until):
                break
        raise StoreUnavailable(f"{self._cluster.site.where}: the key {key} moves about")

    async def _may_follow(self, hop: int, until: float) -> bool:
        """Whether there is time to follow one more redirection. Pauses before a later one."""
        if hop >= _HOPS:
            await self._side.pause(min(_APART, max(0.0, until - _now())))
        return _now() < until


def _granted_by(node: _RouterNode, outcome: Any) -> Any:
    """The outcome; a grant also names its node, since the key may be moved later."""
    if not isinstance(outcome, Granted):
        return outcome
    return outcome._replace(epoch=f"{say_address(node.address)} {outcome.epoch}")


class _RenewalPlan(NamedTuple):
    """The renewals by node, valid for this topology only."""

    topology: Topology
    parts: Sequence[NodePart]


_UNASKED: Final = OutcomeUnknown("it was not asked for")
