"""From an operation to a transaction of etcd, and from its answer to what it decided. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

from incumbent.model import Absent, Ask, ByClaim, ByVersion, Guard, Key
from incumbent.stores.etcd.answers import Present
from incumbent.stores.etcd.incarnation import RECORD_FORMAT, Born
from incumbent.stores.etcd.keys import Names, Naming, after, b64
from incumbent.stores.etcd.memory import Mine
from incumbent.stores.etcd.phrases import (
    absent,
    attached,
    created,
    delete,
    modified,
    nested,
    newest,
    put,
    read,
    same,
    transaction,
)
from incumbent.stores.etcd.records import entries_in, packed, seen_in
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.table import HISTORY_KEPT

__all__ = ["BATCH", "Dialect"]

BATCH: Final = 116
"""Leases compared in one transaction; etcd takes 128 comparisons (--max-txn-ops)."""
_FIRST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE"'
_OLDEST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE","limit":"24","keys_only":true'
_COUNT: Final = ',"count_only":true'


class Dialect:
    """See the module."""

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        # Without a read that has to be linearizable, etcd answers comparisons from what the member
        # itself has: one that lost its cluster would go on saying that all is well.
        self._current = (read(naming.born64, "", _COUNT),)

    def past64(self, key: Key, place: str) -> str:
        """The key of an entry of the history."""
        return self.naming.of(key).past64(place)

    # -- taking -------------------------------------------------------------------------------

    def take(
        self,
        mine: Mine,
        ask: Ask,
        born: Born,
        *,
        admitted_by: int | None = None,
        own_slot: bool = False,
        slot_lease: str = "",
        standing: str = "",
    ) -> bytes:
        """`admitted_by`: the revision of the closing that reserves it for the asker, 0 for none.

        None asks for less: nothing must be there, not even a notice for the holder before.
        `slot_lease`, `standing`: etcd leases of the slot and of the candidacy.
        """
        names = self.naming.of(mine.key)
        compare = [
            self.still(born),
            absent(names.late64(mine.claim)),
            absent(names.leases64, names.leases_end64),
        ]
        past = packed(holder=mine.holder, since=mine.since)
        success = [
            put(names.lease64, value_of(mine), mine.session.id),
            put(mine.past64, past, mine.history),
        ]
        if _looks_after_history(mine.claim):
            success.append(read(*_range(f"{names.record}h/"), _OLDEST))
        if admitted_by is None:
            compare.append(absent(names.switches64, names.switches_end64))
        else:
            compare += [absent(names.pause64), modified(names.closing64, admitted_by)]
            success += [delete(names.closing64), delete(names.resign64)]
        if ask.slot is not None and not own_slot:
            compare.append(absent(*_range(names.slot(ask.slot.name))))
            kept = packed(holder=mine.holder, kept=ask.slot.keep, until=mine.since + ask.slot.keep)
            success.append(put(names.slot64(ask.slot.name, mine.claim), kept, slot_lease))
        # Who holds it is all that most of those who lose want to know; `look` tells the rest.
        failure = [read(names.leases64, names.leases_end64, _FIRST)]
        if ask.candidacy > 0:
            success.append(delete(names.candidate64(mine.holder)))
            failure.append(_candidate(names, ask, mine.since, standing))
            failure.append(read(names.others64, names.record_end64, _COUNT))
        return transaction(compare, success, failure)

    def held(self, ask: Ask, responses: list[dict[str, Any]]) -> Present | None:
        """Of a take that was not granted: who holds it, if anybody does."""
        leases = entries_in(responses[0])
        if not leases:
            return None
        count = responses[-1]["response_range"].get("count", 0) if ask.candidacy > 0 else 0
        return Present(leases[0], None, None, None, [], seen_in(leases), int(count))

    def stand_by(self, key: Key, ask: Ask, wall: float, lease: str) -> bytes:
        """Note a candidate."""
        return transaction([], [_candidate(self.naming.of(key), ask, wall, lease)])

    def look(self, key: Key, claim: str, ask: Ask) -> bytes:
        """The same reads without the take."""
        names = self.naming.of(key)
        reads = [
            read(names.leases64, names.leases_end64, _FIRST),
            read(names.switches64, names.switches_end64),
            newest(names.record64, names.others64),
            read(names.late64(claim), "", _COUNT),
            read(self.naming.born64),
        ]
        if ask.slot is not None:
            reads.append(read(*_range(names.slot(ask.slot.name))))
        return transaction([], reads)

    def present(self, key: Key, ask: Ask, responses: list[dict[str, Any]]) -> Present:
        """What those reads found."""
        leases, switches, others = map(entries_in, responses[:3])
        late, marker = responses[3]["response_range"], entries_in(responses[4])
        by_key = {entry.key: entry for entry in switches}
        start = self.naming.of(key).switches
        return Present(
            leases[0] if leases else None,
            by_key.get(f"{start}{PAUSE}"),
            by_key.get(f"{start}closing"),
            by_key.get(f"{start}{RESIGN}"),
            entries_in(responses[5]) if ask.slot is not None else [],
            seen_in(leases or [*switches, *others]),
            0,
            int(late.get("count", 0)) > 0,
            b64encode(marker[0].value).decode() if marker else "",
        )

    def surplus(self, claim: str, responses: list[dict[str, Any]]) -> tuple[str, ...]:
        """Of a grant: the oldest of the history, where it is longer than it should be."""
        if not _looks_after_history(claim):
            return ()
        found = responses[2]["response_range"]
        too_many = int(found.get("count", 0)) - HISTORY_KEPT
        return tuple(kv["key"] for kv in found.get("kvs", ())[: max(0, too_many)])

    def candidates(self, key: Key) -> bytes:
        """All who stand by."""
        names = self.naming.of(key)
        return transaction([], [read(names.others64, names.record_end64)])

    def remove(self, found: Sequence[str]) -> bytes:
        """Remove keys of people's records."""
        return transaction([], [delete(b64(key)) for key in found[:BATCH]])

    # -- holding ------------------------------------------------------------------------------

    def again(self, mine: Mine, ask: Ask, born: Born, *, write: bool) -> bytes:
        """Whether the lease is there; if so its holder is no candidate, as its take has noted.

        `write`: once more, with its present value and etcd lease.
        """
        names = self.naming.of(mine.key)
        success = [*self._current]
        if write:
            success.append(put(names.lease64, value_of(mine), mine.session.id))
        if ask.candidacy > 0:
            success.append(delete(names.candidate64(ask.holder)))
        return transaction([self.still(born), self.check(mine)], success, self._current)

    def still(self, born: Born) -> str:
        """The comparison that says that this is the incarnation that is known."""
        return same(self.naming.born64, born.value)

    def check(self, mine: Mine) -> str:
        """The comparison that says that the lease is there: a revision grants only once.

        That is, in one incarnation of the cluster.
        """
        return created(self.naming.of(mine.key).lease64, mine.revision)

    def ours(self, mine: Mine, lease: str = "") -> list[str]:
        """The same in any incarnation: nobody else attaches a key to our etcd lease.

        `lease`: to which it is attached, where that is not the one of its session yet.
        """
        key = self.naming.of(mine.key).lease64
        return [self.check(mine), attached(key, lease or mine.session.id)]

    def all_quiet(self, batch: Sequence[Mine], born: Born, newest: Mine) -> bytes:
        """Whether all of them are there and no switch is set: of few of theirs, of many of any.

        `newest`: the one of this process that was granted last. Where it is ours there is also all
        that was written before it, so the others are those that were granted then.
        """
        compare = [self.still(born), *self.ours(newest)]
        compare += [self.check(mine) for mine in batch if mine is not newest]
        if len(batch) <= BATCH // 2:
            of = self.naming.of
            names = [of(mine.key) for mine in batch]
            compare += [absent(it.switches64, it.switches_end64) for it in names]
        else:
            for namespace in {mine.key.namespace for mine in batch}:
                area = f"{self.naming.prefix}/{namespace}!s/"
                compare.append(absent(b64(area), b64(after(area))))
        return transaction(compare, self._current, self._current)

    def each(self, batch: Sequence[tuple[Mine, bool, str]], born: Born) -> bytes:
        """For each whether it is ours, and its switches; `True` writes its value anew.

        The third says to which etcd lease it is attached until then.
        """
        asked = []
        for mine, write, lease in batch:
            names = self.naming.of(mine.key)
            success = [read(names.pause64), read(names.resign64)]
            if write:
                success.append(put(names.lease64, value_of(mine), mine.session.id))
            asked.append(nested(self.ours(mine, lease), success))
        return transaction([self.still(born)], asked)

    def remove_leases(self, batch: Sequence[Mine]) -> bytes:
        """Remove leases whose time ran out; not those that were granted anew, or moved away."""
        lease64 = [self.naming.of(mine.key).lease64 for mine in batch]
        return transaction(
            [],
            [nested(self.ours(it), [delete(key)]) for it, key in zip(batch, lease64, strict=True)],
        )

    def lookup(self, keys: Sequence[Key]) -> bytes:
        """Leases of which this process knows nothing; see records.entry_of for whose they are."""
        return transaction([], [read(self.naming.of(key).lease64) for key in keys])

    # -- leaving ------------------------------------------------------------------------------

    def give(
        self,
        mine: Mine,
        wall: float,
        *,
        base: int,
        closing: tuple[float, str, str] | None,
        slot: str | None,
    ) -> bytes:
        """`closing`: seconds, its etcd lease, and for whom the name is reserved."""
        names = self.naming.of(mine.key)
        past = packed(holder=mine.holder, since=mine.since, ended=wall, revision=mine.revision)
        success = [delete(names.lease64), put(mine.past64, past, mine.history)]
        success += [delete(key) for key in mine.surplus if key != mine.past64]
        if closing is not None:
            kept, etcd_lease, reserved_for = closing
            value = packed(
                holder=mine.holder,
                token=base + mine.revision,
                reserved_for=reserved_for,
                kept=kept,
                until=wall + kept,
            )
            success.append(put(names.closing64, value, etcd_lease))
        failure = []
        if slot is not None:
            undo = delete(names.slot64(slot, mine.claim))
            success.append(undo)
            failure.append(undo)
        return transaction(self.ours(mine), success, failure)

    def give_up(self, key: Key, claim: str, history: str, slot: str | None, wall: float) -> bytes:
        """From now on a take of this claim comes too late; what stands at `key` is read after it.

        `history`: the etcd lease of the mark, which lives for a day at least.
        """
        names = self.naming.of(key)
        done = [put(names.late64(claim), packed(given_up=wall), history), read(names.lease64)]
        if slot is not None:
            done.append(delete(names.slot64(slot, claim)))
        return transaction([], done)

    def undo_slot(self, key: Key, claim: str, slot: str) -> bytes:
        """Give a slot back, of a claim that holds nothing."""
        return transaction([], [delete(self.naming.of(key).slot64(slot, claim))])

    # -- fields -------------------------------------------------------------------------------

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard, base: int) -> bytes:
        """Write or remove a field. Of a ByClaim that the claim has this token is known."""
        names = self.naming.of(key)
        field64 = names.field64(field)
        write = delete(field64) if value is None else put(field64, b64encode(value).decode())
        return transaction(_guarded(names, field64, guard, base), [write], [])

    # -- reading ------------------------------------------------------------------------------

    def read(self, key: Key) -> bytes:
        """Everything of one key."""
        names = self.naming.of(key)
        return transaction(
            [],
            [
                read(names.leases64, names.leases_end64),
                read(names.switches64, names.switches_end64),
                read(names.record64, names.record_end64),
            ],
        )

    def scan(self, namespace: str, prefix: str) -> bytes:
        """Everything of the names that begin with `prefix`."""
        ranges = self.naming.ranges(namespace, prefix)
        return transaction([], [read(b64(start), b64(end)) for start, end in ranges])

    def newest(self, key: Key) -> bytes:
        """When any of it changed last."""
        return transaction([], _newest(self.naming.of(key)))

    def watch(self, key: Key, revision: int) -> bytes:
        """One stream for all that makes a change, from `revision` on."""
        names = self.naming.of(key)
        ranges = (
            (names.leases64, names.leases_end64),
            (names.switches64, names.switches_end64),
            (names.record64, names.others64),
        )
        return "".join(
            f'{{"create_request":{{"key":"{start}","range_end":"{end}",'
            f'"start_revision":"{revision}","watch_id":"{index}"}}}}'
            for index, (start, end) in enumerate(ranges, 1)
        ).encode()


def _looks_after_history(claim: str) -> bool:
    """One take of eight does: claims are random."""
    return claim[-1:] in "07"


def _range(prefix: str) -> tuple[str, str]:
    return b64(prefix), b64(after(prefix))


def _newest(names: Names) -> list[str]:
    return [
        newest(names.leases64, names.leases_end64),
        newest(names.record64, names.others64),
        newest(names.switches64, names.switches_end64),
    ]


def _candidate(names: Names, ask: Ask, wall: float, lease: str) -> str:
    value = packed(kept=ask.candidacy, until=wall + ask.candidacy)
    return put(names.candidate64(ask.holder), value, lease)


def value_of(mine: Mine) -> str:
    """What stands under a lease's key."""
    meta = b64encode(mine.meta).decode()
    who = {"claim": mine.claim, "holder": mine.holder}
    return packed(format=RECORD_FORMAT, **who, ttl=mine.ttl, since=mine.since, meta=meta)


def _guarded(names: Names, field64: str, guard: Guard, base: int) -> list[str]:
    match guard:
        case Absent():
            return [absent(field64)]
        case ByVersion(version):
            # A key that is not there compares as version 0.
            return [modified(field64, version if version > 0 else -1)]
        case ByClaim(_, token):
            revision = token - base
            return [created(names.lease64, revision if revision > 0 else -1)]
        case _:
            return []
