"""Routing the operations of a store to the nodes of a cluster.

Renewals take one script call for each slot; all calls to a node share one round trip. Most leases
have a slot of their own, so that ten thousand of them take thousands of calls. Only the echo
changes from one time to the next: the other bytes are kept with the Batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar, cast

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Batch, Granted, Key, Record, Renewal, RenewOutcome, Unproved
from incumbent.net.pool import Mismatch
from incumbent.protocol.port import one_by_one
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.cluster import ASKING, KnownCluster, Topology, asking, host_of, slot_of
from incumbent.stores.redis.commands import (
    RESTARTED,
    Commands,
    ScriptCall,
    calls_of,
    new_echo,
    note,
    request_of,
)
from incumbent.stores.redis.dialect import DIALECT, JoinedPlan, Server, joined
from incumbent.stores.redis.errors import Moved, answered_error
from incumbent.stores.redis.exchange import RedisExchange, unless_over
from incumbent.stores.redis.incarnation import TOKEN_JUMP, ServerFacts
from incumbent.stores.redis.layers import Runtime, connections
from incumbent.stores.redis.options import Address, RedisOptions, parse_address, say_address
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.resp import Program, RequestBatch

T = TypeVar("T")

_CHANGES: Final = frozenset({"take", "give", "put"})
"""The kinds of plans that may run at a node to which the key is being moved."""
_HOPS: Final = 5
"""Redirections that one operation follows without a pause."""
_APART: Final = 0.02
"""Seconds between later redirections: nodes learn late that a slot has moved, and redirect to each
other until then."""


_CLOCKS: Final = 10.0 + 2 * TOKEN_JUMP
"""Seconds by which a token may be ahead of the clock of another node."""


class _RouterNode(NamedTuple):
    """One node, with the operations of one side there."""

    address: Address
    planned: PlannedTogether[Server]


class Router(PlannedTogether[Server]):
    """Carries out each plan at the node that has its key, or at all nodes."""

    dialect = DIALECT

    def __init__(self, runtime: Runtime, cluster: KnownCluster, options: RedisOptions) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._options = options
        self._naming = Naming(options.key)
        self._nodes: dict[Address, _RouterNode] = {}

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        """See Planned.run. A key that is being moved cannot be read."""
        outcome: Any
        if plan.kind == "renew":
            outcome = await self._renew(plan.renewals, until)
        elif plan.kind == "scan":
            outcome = await self._scan(cast("Plan[Server, tuple[Record, ...]]", plan), until)
        elif isinstance(plan, JoinedPlan):
            outcome = await self._run_joined(plan, until)
        else:
            operate = partial(self._run_at, plan, until)
            outcome = await self._at(plan.keys[0], until, operate, changes=plan.kind in _CHANGES)
        return outcome  # type: ignore[no-any-return]  # what the plan's kind says is T

    async def _run_at(
        self, plan: Plan[Server, T], until: float, node: _RouterNode, *, moving: bool
    ) -> Any:
        """Carry out a plan at a node; `moving`: the key is being moved there."""
        if not moving:
            outcome: Any = await node.planned.run(plan, until)
        elif not isinstance(node.planned, RedisExchange):
            raise StoreUnavailable("the key is being moved, and its replicas cannot be asked yet")
        else:
            by_asking = replace(plan, start=lambda server, end: asking(plan.start(server, end)))
            outcome = await node.planned.carry(by_asking, until)
        if isinstance(plan, JoinedPlan):
            return [_granted_by(node, each) for each in outcome]
        return _granted_by(node, outcome)

    async def _run_joined(self, plan: JoinedPlan[T], until: float) -> list[T | StoreError]:
        """Send one request to each node. Plans whose key has moved are run again, one by one."""
        await self._runtime.update(self._cluster, until)
        nodes: dict[Address | None, list[int]] = {}
        for at, key in enumerate(plan.keys):
            nodes.setdefault(self._cluster.topology.master_of(self._slot(key)), []).append(at)
        calls = [
            partial(self._run_part, address, joined([plan.parts[at] for at in places]))
            for address, places in nodes.items()
        ]
        outcomes: dict[int, T | StoreError] = {}
        answers = await self._runtime.gather(calls, until)
        for places, answer in zip(nodes.values(), answers, strict=True):
            each: Sequence[T | StoreError] = (
                [answer] * len(places) if isinstance(answer, StoreError) else answer
            )
            outcomes.update(zip(places, each, strict=True))
        if any(isinstance(outcome, StoreError) for outcome in outcomes.values()):
            self._cluster.doubt()
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

        await unless_over(self._at(key, until, operate), until)

    async def _scan(
        self, plan: Plan[Server, tuple[Record, ...]], until: float
    ) -> tuple[Record, ...]:
        await self._runtime.update(self._cluster, until)
        nodes = [self._node(address) for address in self._cluster.topology.nodes()]
        calls = [partial(node.planned.run, plan) for node in nodes]
        found: dict[Key, Record] = {}
        for records in await self._runtime.gather(calls, until):
            if isinstance(records, StoreError):
                self._cluster.doubt()
                raise records
            # A key that was moved meanwhile may have been seen at both nodes.
            found |= {record.key: record for record in records}
        return tuple(found[key] for key in sorted(found))

    # -- renewals -----------------------------------------------------------------------------

    async def _renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """Send one request to each node. One that fails does not affect the others."""
        await self._runtime.update(self._cluster, until)
        outcomes: list[RenewOutcome | StoreError] = [_UNASKED] * len(renewals)
        asks: dict[int, Address] = {}
        parts = self._parts(renewals)
        for hop in count(1):
            calls = [partial(self._renew_part, renewals, part, outcomes) for part in parts]
            failures = await self._runtime.gather(calls, until)
            for part, failure in zip(parts, failures, strict=True):
                if failure is not None:
                    for at in part.places:
                        outcomes[at] = failure
            moved = [
                (at, error, part.address)
                for part in parts
                for at in part.places
                if isinstance(error := outcomes[at], Moved)
            ]
            if not moved or not await self._may_follow(hop, until):
                break
            for at, error, by in moved:
                self._learn(self._slot(renewals[at].key), error, by, asks)
            parts = self._sorted(renewals, [at for at, *_ in moved], asks)
        errors = [each for each in outcomes if isinstance(each, StoreError)]
        if errors:
            self._cluster.doubt()
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
        self, renewals: Sequence[Renewal], places: Iterable[int], asks: dict[int, Address]
    ) -> Sequence[NodePart]:
        topology = self._cluster.topology
        parts: dict[tuple[Address | None, bool], NodePart] = {}
        for at in places:
            slot = slot_of_key(self._naming, renewals[at])
            where = (asks.get(slot) or topology.master_of(slot), slot in asks)
            part = parts.get(where)
            if part is None:
                part = parts[where] = NodePart(where[0], by_asking=where[1])
            part.places.append(at)
        return list(parts.values())

    async def _renew_part(
        self,
        renewals: Sequence[Renewal],
        part: NodePart,
        outcomes: list[RenewOutcome | StoreError],
        until: float,
    ) -> None:
        plan: Plan[Server, None] = Plan(
            "renew",
            lambda server, _: renew_part(server.commands, renewals, part, server.known, outcomes),
        )
        await self._node(part.address).planned.run(plan, until)

    # -- nodes --------------------------------------------------------------------------------

    def let_go(self) -> None:
        for node in list(self._nodes.values()):
            node.planned.let_go()

    def _slot(self, key: Key) -> int:
        return slot_of(self._naming.of(key).main)

    def _node(self, address: Address | None) -> _RouterNode:
        if address is None:
            raise StoreUnavailable(
                f"{self._cluster.site.where}: no node has the slot of this key", retry_after=1.0
            )
        node = self._nodes.get(address)
        if node is None:
            site = self._cluster.site_of(address)
            commands = Commands(self._naming, site.where)
            planned = connections(self._options, site, commands, self._runtime)
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
            asks.pop(slot, None)
            self._cluster.topology.moved[slot] = address
            self._cluster.doubt()

    async def _at(
        self, key: Key, until: float, operate: Callable[..., Awaitable[T]], *, changes: bool = False
    ) -> T:
        """Run `operate` at the node that has the key, following redirections.

        `changes`: also at a node to which the key is being moved.
        """
        await self._runtime.update(self._cluster, until)
        slot = self._slot(key)
        asks: dict[int, Address] = {}
        for hop in count(1):
            address = asks.get(slot) or self._cluster.topology.master_of(slot)
            try:
                return await operate(self._node(address), moving=slot in asks)
            except Moved as error:
                if error.ask and (not changes or slot in asks):
                    raise
                self._learn(slot, error, address, asks)
            except StoreError:
                self._cluster.doubt()
                raise
            if not await self._may_follow(hop, until):
                break
        raise StoreUnavailable(f"{self._cluster.site.where}: the key {key} moves about")

    async def _may_follow(self, hop: int, until: float) -> bool:
        """Whether there is time to follow one more redirection. Pauses before a later one."""
        if hop >= _HOPS:
            await self._runtime.pause(min(_APART, max(0.0, until - clock.now())))
        return clock.now() < until


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


# -- renewals at one node --------------------------------------------------------------------------


class NodePart:
    """Renewals at one node: their places among all. `by_asking`: their slots are moving there."""

    __slots__ = ("address", "by_asking", "places", "ready")

    def __init__(self, address: Address | None, *, by_asking: bool) -> None:
        self.address = address
        self.by_asking = by_asking
        self.places = array("l")
        self.ready: _ReadyCalls | None = None


class _ReadyCalls(NamedTuple):
    """The calls for one incarnation; `lost`: the places of leases that it did not grant."""

    epoch: str
    calls: Sequence[ScriptCall]
    lost: Sequence[int]


def slot_of_key(naming: Naming, renewal: Renewal) -> int:
    """The slot of a lease, not by the cache of names, which a thousand leases would only empty."""
    return slot_of(naming.keys_of(renewal.key)[0].decode())


def renew_part(
    commands: Commands,
    renewals: Sequence[Renewal],
    part: NodePart,
    known: ServerFacts,
    outcomes: list[RenewOutcome | StoreError],
) -> Program[None]:
    """Renew the leases of one part; note the outcome of each at its place.

    A call that fails does not affect the others.
    """
    ready = part.ready
    if ready is None or ready.epoch != known.epoch:
        ready = part.ready = _prepare(commands.naming, renewals, part, known)
    for at in ready.lost:
        outcomes[at] = RESTARTED
    if not ready.calls:
        return
    echo = new_echo(renewals[ready.calls[0].places[0]])
    # With ASKING each call is two requests; the answer to the first says nothing.
    before, each = (ASKING, 2) if part.by_asking else (b"", 1)
    payload = b"".join([before + request_of(call, echo) for call in ready.calls])
    answers = (yield RequestBatch(payload, len(ready.calls) * each))[each - 1 :: each]
    for call, answer in zip(ready.calls, answers, strict=True):
        if type(answer) is list:
            note(call, renewals, echo, answer, outcomes)
        elif isinstance(answer, hiredis.ReplyError):
            main = commands.naming.of(renewals[call.places[0]].key).main
            for at in call.places:
                outcomes[at] = answered_error(str(answer), commands.where, main)
        else:
            raise Mismatch(f"an answer of type {type(answer).__name__} was not expected")


def _prepare(
    naming: Naming, renewals: Sequence[Renewal], part: NodePart, known: ServerFacts
) -> _ReadyCalls:
    node = say_address(part.address) if part.address else ""
    since = clock.wall() - (clock.now() - known.born)
    slots: dict[int, list[int]] = {}
    lost = array("l")
    for at in part.places:
        if _is_known(renewals[at], node, known.epoch, since):
            slots.setdefault(slot_of_key(naming, renewals[at]), []).append(at)
        else:
            lost.append(at)
    calls = [call for places in slots.values() for call in calls_of(naming, renewals, places)]
    return _ReadyCalls(known.epoch, calls, lost)


def _is_known(renewal: Renewal, node: str, epoch: str, since: float) -> bool:
    """Whether a lease may be renewed at this incarnation of the node.

    A lease that another node granted came here with its whole slot. Not if this node became a
    master after the grant: it was a replica of the other then, and may lack the newest leases.
    """
    granted_by, _, granted_in = renewal.epoch.rpartition(" ")
    if granted_by == node:
        return granted_in == epoch
    return ":" not in epoch or since + _CLOCKS < renewal.token / 1e6
