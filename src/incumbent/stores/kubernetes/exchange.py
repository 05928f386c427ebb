"""The requests of one plan, over one connection: a name is one GET or PUT.

    take, renewal, give of a name that is known:   PUT                 409: GET, and decide again
    of a name that is not known:                   GET, PUT or POST
    the first POST of a name:                      and a look at the marker: was it this namespace?

The server compares `uid` and `resourceVersion` of what is PUT with what it has, and writes nothing
if they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.record import holding_of, micros
from incumbent.stores.kubernetes.errors import KubernetesAnswer
from incumbent.stores.kubernetes.known import AHEAD, LOOK_EVERY, NamespaceMarker, marker_with
from incumbent.stores.kubernetes.objects import KEY, MARKER, LeaseSight, lease_with, object_name
from incumbent.stores.names import flat, unflat
from incumbent.stores.plan import Plan, drive
from incumbent.stores.probing import probe
from incumbent.stores.registers import Load, Request, Scan, Seen, Swap, Swaps

if TYPE_CHECKING:
    from incumbent.stores.kubernetes.client import KubernetesClient
_JUST: Final = 0.05


class KubernetesExchange:
    """`wrote`: it has changed something, so that a later error does not mean that nothing was."""

    def __init__(self, client: KubernetesClient[Any], wire: Any, until: float) -> None:
        self._client, self._wire, self._until = client, wire, until
        self._known = client.known
        self._renewals = dict[Key, list[Any]]()
        self._probed: NamespaceMarker | None = None
        """Stands for the marker until there is one."""
        self.wrote = False

    # -- the marker ---------------------------------------------------------------------------

    @property
    def _marker(self) -> NamespaceMarker | None:
        return self._probed or self._known.marker

    async def prepare(self, plan: Plan[None, Any]) -> None:
        """Know the marker; note the longest ttl in it before that is granted."""
        known = self._known
        if known.upset:
            await self._begin_anew()
        marker = known.marker
        if marker is None or (plan.kind == "take" and clock.now() > marker.looked + LOOK_EVERY):
            marker = await self._look() or await self._first_marker()
        ttl = max(plan.ttl, *(it.ttl for it in plan.renewals), 0.0)
        if ttl > TTL_DEFAULT and micros(ttl) > marker.longest:
            await self._mark(marker, turn=marker.turn, longest=micros(ttl))
        for it in plan.renewals:
            self._renewals.setdefault(it.key, []).append(it)

    async def _look(self) -> NamespaceMarker | None:
        """The marker as it is now, if there is one."""
        answer, known = await self._ask("get", MARKER), self._known
        if answer.status == 404:
            return None
        known.marker = NamespaceMarker(answer.body, known.where)
        return known.marker

    async def _is_same(self) -> bool:
        """Whether the marker is the one that is known."""
        known, before = self._known, self._known.marker
        now = await self._look()
        if self._probed or (before and now and before.id == now.id):
            return True
        known.upset = known.upset or now is None
        # Otherwise another process has begun anew: if we did so too, its wait would never end.
        known.newest = 0
        known.sights.clear()
        return False

    async def _first_marker(self) -> NamespaceMarker:
        """Make the marker, once it is known that the server refuses what it has to refuse."""
        known, born = self._known, self._known.wall()
        lease = marker_with(
            self._client.namespace, None, turn=0, born=born, longest=0, floor=born + AHEAD
        )
        self._probed = NamespaceMarker(lease, known.where)
        await drive(probe(known.where), self.answer)
        # Both are of the probe: what follows begins as if nothing had been written.
        self._probed, self.wrote = None, False
        return await self._written(await self._ask("create", MARKER, lease))

    async def _mark(self, marker: NamespaceMarker, *, turn: int, longest: int) -> None:
        """Write the marker; if somebody else was quicker, know theirs."""
        born, floor = marker.born, marker.floor
        if turn != marker.turn:
            born = self._known.wall()
            floor = max(floor, born + AHEAD)
        lease = marker_with(
            self._client.namespace, marker, turn=turn, born=born, longest=longest, floor=floor
        )
        await self._written(await self._ask("update", MARKER, lease))

    async def _written(self, answer: KubernetesAnswer) -> NamespaceMarker:
        """The marker after it was written, or somebody else has written it."""
        known = self._known
        if answer.status < 300:
            known.marker = NamespaceMarker(answer.body, known.where)
            return known.marker
        marker = await self._look()
        if marker is None:
            known.upset = True
            raise StoreUnavailable(f"{known.where}: {_ANEW}", retry_after=0.05)
        return marker

    async def _begin_anew(self) -> None:
        """The revisions went back, or the marker is another: what was granted may be missing."""
        known, before = self._known, self._known.marker
        # First: below it every answer of the present state would count as one that went back.
        known.newest = 0
        known.sights.clear()
        marker = await self._look() or await self._first_marker()
        if before is not None and marker.id == before.id:
            await self._mark(marker, turn=marker.turn + 1, longest=marker.longest)
        # Last: until the marker is written, whoever else comes has to begin anew as well.
        known.upset = False

    # -- requests -----------------------------------------------------------------------------

    async def answer(self, request: Request) -> Any:
        """The reply to a request of the register kit."""
        match request:
            case Load(wanted):
                return [self._renewed_here(it.key) or await self._load(it.key) for it in wanted]
            case Swaps(swaps):
                return [await self._swap(swap) for swap in swaps]
            case Scan(namespace, prefix):
                return await self._scan(namespace, prefix)
        raise TypeError(f"a request for other registers: {request}")

    def _renewed_here(self, key: Key) -> Seen | None:
        """What is known of a name that is renewed, if this process wrote it last.

        Whether it is so still, the server compares; a refusal is never decided by it.
        """
        # Once: if the swap by it is refused, the name has to be read.
        renewals, sight = self._renewals.pop(key, []), self._known.sights.get(key)
        if not renewals or sight is None or not sight.own:
            return None
        seen = self._known.seen_or_error(key, sight, self._marker)
        if isinstance(seen, StoreError):
            return None
        for it in renewals:
            mine = holding_of(seen.record, it.claim, seen.now)
            if mine is None or mine.token != it.token or it.epoch != seen.incarnation.id:
                return None
        return seen

    async def _load(self, key: Key) -> Seen | StoreError:
        """What the store has. Raises StoreUnavailable if it serves an older state than it did."""
        known, floor = self._known, self._known.floor_of(key)
        answer = await self._ask("get", object_name(key))
        sight = known.see(key, None if answer.status == 404 else answer.body, floor)
        if 0 < sight.revision < floor:
            raise StoreUnavailable(f"{known.where}: {_WENT_BACK}", retry_after=0.05)
        return known.seen_or_error(key, sight, self._marker)

    async def _scan(self, namespace: str, prefix: str) -> list[tuple[Key, Seen]]:
        found, first, known = list[tuple[Key, Seen]](), f"{namespace}/{prefix}", self._known
        async for lease in self._client.listed(self._wire, namespace, self._until):
            name = (lease["metadata"].get("annotations") or {}).get(KEY, "")
            if name.startswith(first):
                key = unflat(name)
                seen = known.seen_or_error(key, known.see(key, lease), self._marker)
                found += [(key, seen)] if isinstance(seen, Seen) else []
        return found

    async def _swap(self, swap: Swap) -> Seen | StoreError | None:
        key, sight, known = swap.wanted.key, swap.seen.version, self._known
        # The namespace may be another by now, where nothing of what was granted is known.
        if not sight and not await self._is_same():
            return StoreUnavailable(f"{known.where}: {_ANEW}", retry_after=0.05)
        marker = self._marker
        if marker is None or swap.seen.incarnation.id != marker.id:
            return await self._load(key)
        now = sight.now(known.now())
        if swap.not_before > now:
            return StoreUnavailable(f"{known.where}: {flat(key)} was decided about too early")
        # Above what stands there: the record's own clock never goes back, whoever writes.
        lease = lease_with(swap, self._client.namespace, known.wall(), max(now, sight.at + 1))
        return lease if isinstance(lease, StoreError) else await self._put(key, sight, lease)

    async def _put(
        self, key: Key, sight: LeaseSight, lease: dict[str, Any]
    ) -> Seen | StoreError | None:
        """Write an object, if it is still that version."""
        # Every write has a later revision than all before it.
        known, floor = self._known, self._known.newest + 1
        answer = await self._ask("update" if sight else "create", object_name(key), lease)
        if answer.status in (404, 409):
            newer = known.sights.get(key)
            if newer is not None and newer != sight and known.now() - newer.seen < _JUST:
                # Another thread or task of this process was quicker.
                return known.seen_or_error(key, newer, self._marker)
            return await self._load(key)
        # Before the answer is judged: what is found wrong now was written all the same.
        self.wrote = True
        if known.see(key, answer.body, floor, own=True).revision < floor:
            raise OutcomeUnknown(f"{known.where}: {_WENT_BACK}")
        # Again: it may have been made anew between that look and the write.
        if not sight and not await self._is_same():
            raise OutcomeUnknown(f"{known.where}: {_ANEW}")
        return None

    async def _ask(
        self, verb: str, name: str, body: dict[str, Any] | None = None
    ) -> KubernetesAnswer:
        return await self._client.ask(self._wire, verb, name, self._until, body)


_ANEW: Final = "the namespace, or the Lease incumbent.marker in it, was made anew"
_WENT_BACK: Final = (
    "it serves an older state than it did, as an etcd that was restored; nothing is granted until"
    " the holders from before have noticed"
)
