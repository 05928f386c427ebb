"""The requests of one plan, over one connection: each is one exchange with the server, or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Batch, Granted, Key, Released, Renewal, Renewed
from incumbent.rules.codec import encoded_entry, encoded_waiter
from incumbent.rules.columns import columns_of
from incumbent.rules.record import NOTHING, LastGrant, micros, us_after_write
from incumbent.stores import registers
from incumbent.stores.findings import wait_after_restart
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.server import SPLIT, TRIES, handshake
from incumbent.stores.mysql.site import MysqlSite
from incumbent.stores.mysql.wire import MysqlWire, Reply
from incumbent.stores.names import flat, unflat
from incumbent.stores.rows import RowBeside, by_ttl, lease_of, row_of, seen_in

_Found: TypeAlias = registers.Seen | StoreError
_AT_ONCE: Final = 1000
"""The most names of one statement."""


class _Part(NamedTuple):
    """Renewals in one statement, and the one that asks which of them were done."""

    leases: set[str]
    asked: str
    which: str


class MysqlExchange:
    """See registers.QuickRegisters. `wrote`: it has changed something, so that a later error does
    not mean that nothing was changed. Raises ServerError and Broken, too.
    """

    def __init__(self, wire: MysqlWire, site: MysqlSite) -> None:
        self._wire, self._site, self.wrote = wire, site, False

    def _if_ours(self, epoch: str = "") -> str:
        facts = self._wire.facts
        return statements.if_ours(epoch or facts.id, facts.here)

    def _change(self, until: float, *asked: str) -> list[Reply]:
        replies = self._wire.ask(";".join(asked), until, in_doubt=True)
        self.wrote = self.wrote or any(reply.affected for reply in replies)
        return replies

    # -- the quick ones -----------------------------------------------------------------------

    def take(self, request: registers.TryTake, until: float) -> Granted | None:
        (key, claim, ask), facts, ttl = request, self._wire.facts, micros(request.ask.ttl)
        wait = wait_after_restart(self._site.restart_wait, ask.ttl, self._wire.longest / 1e6)
        within = facts.born + micros(wait), facts.on_its_clock(until)
        keep = max(ttl, micros(ask.keep_record))
        asked = statements.take(self._if_ours(), facts.floor, *within)
        asked = self._wire.quoted(asked, claim, ask.holder, ttl, ask.meta, keep, flat(key))
        (reply,) = self._change(until, asked)
        return Granted(claim, reply.insert_id, ask.ttl, facts.id) if reply.affected else None

    def give(self, request: registers.TryGive, until: float) -> Released | None:
        key, claim, token = request
        asked = self._wire.quoted(statements.give(self._if_ours()), flat(key), claim, token)
        return Released() if self._change(until, asked)[0].affected else None

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[Renewed | None]:
        kept = renewals.prepared if isinstance(renewals, Batch) else None
        if kept is None or kept[0] != self._if_ours():
            made = [self._part(*it) for it in by_ttl(renewals, self._wire.facts.id, _AT_ONCE)]
            kept = self._if_ours(), made, [lease_of(it) for it in renewals]
        if isinstance(renewals, Batch):
            renewals.prepared = kept
        _, parts, leases = kept
        asked = statements.NOTE_NOW, *(it.asked for it in parts)
        replies = self._change(until, *asked)[1:] if parts else []
        done = set[str]()
        for part, reply in zip(parts, replies, strict=True):
            if reply.affected == len(part.leases):
                done |= part.leases
            elif reply.affected:
                (found,) = self._wire.ask(part.which, until, in_doubt=False)
                done.update(it for (it,) in found.rows)
        return [Renewed() if it in done else None for it in leases]

    def _part(self, ttl: int, leases: list[str], names: list[str]) -> _Part:
        asked, which = (
            self._wire.quoted(of(self._if_ours(), ttl, len(names)), *names, *leases)
            for of in (statements.renew, statements.renewed)
        )
        return _Part(set(leases), asked, which)

    def join(self, request: registers.Join, until: float) -> _Found:
        (key, waiter, looks_in), wanted = request, [registers.Wanted(request.key)]
        values = flat(key), waiter.claim, encoded_waiter(waiter, looks_in), flat(key)
        joined = self._wire.quoted(statements.join(self._if_ours()), *values)
        replies = self._change(until, joined, *self._selects(wanted))
        return self._seen(wanted, replies[4:], until)[0]

    # -- reading ------------------------------------------------------------------------------

    def load(self, wanted: Sequence[registers.Wanted], until: float) -> list[_Found]:
        return self._seen(wanted, (), until)

    def _selects(self, wanted: Sequence[registers.Wanted]) -> tuple[str, str]:
        """The rows first: if a value beside one is newer, its version is, too."""
        names = self._wire.quoted("name IN %s", [flat(it.key) for it in wanted])
        beside = [f"{names} AND kind='join'"]
        for key, places in wanted:
            if places == registers.ALL:
                beside.append(self._wire.quoted("name=%s", flat(key)))
            elif places:
                found = [(kind, part.encode()) for kind, part in places]
                beside.append(self._wire.quoted("name=%s AND (kind,part) IN %s", flat(key), found))
        past = any(places == registers.ALL for _, places in wanted)
        return statements.load(names, past=past), statements.beside(" OR ".join(beside))

    def _seen(
        self, wanted: Sequence[registers.Wanted], replies: Sequence[Reply], until: float
    ) -> list[_Found]:
        _, seen = self._rows(";".join(self._selects(wanted)), replies, until)
        return [seen(it.key) for it in wanted]

    def _answers(self, asked: str, replies: Sequence[Reply], until: float) -> Sequence[Reply]:
        """Answers of the incarnation that is known. `replies`: if some have come already."""
        for _ in range(TRIES):
            replies = replies or self._wire.ask(asked, until, in_doubt=False)
            found, facts = replies[0].rows, self._wire.facts
            if found and found[0][:2] == (facts.id, facts.here):
                return replies
            # It serves another incarnation than it did: asked anew by what is known from here on.
            handshake(self._wire, self._site.where, until)
            replies = ()
        raise StoreUnavailable(f"{self._site.where}: {SPLIT}", retry_after=1.0)

    def _rows(
        self, asked: str, replies: Sequence[Reply], until: float
    ) -> tuple[Iterable[str], Callable[[Key], _Found]]:
        """The names that are known, and what is seen of any."""
        replies = self._answers(asked, replies, until)
        found, facts = replies[0].rows, self._wire.facts
        beside = dict[str, list[RowBeside]]()
        for name, *value in replies[1].rows:
            beside.setdefault(name, []).append(RowBeside(*value))
        now, age = found[0][2], max(0, found[0][2] - facts.born) / 1e6
        incarnation = registers.Incarnation(facts.id, age, self._wire.longest / 1e6)
        nothing = registers.Seen(NOTHING, 0, now, now, incarnation, facts.floor)
        rows = {row[3]: row_of(*row[4:]) for row in found if row[3] is not None}
        where = self._site.where

        def seen(key: Key) -> _Found:
            name = flat(key)
            return seen_in(key, rows.get(name), beside.get(name, ()), nothing, where)

        return rows, seen

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, registers.Seen]]:
        first = f"{namespace}/{prefix}"
        # "{" comes after all that a name may have.
        names = self._wire.quoted("name BETWEEN %s AND %s", first, first + "{")
        asked = f"{statements.load(names, past=True)};{statements.beside(names)}"
        known, seen = self._rows(asked, (), until)
        pairs = [(key, seen(key)) for key in map(unflat, known)]
        return [(key, one) for key, one in pairs if isinstance(one, registers.Seen)]

    # -- swaps --------------------------------------------------------------------------------

    def swap(self, swaps: Sequence[registers.Swap], until: float) -> list[_Found | None]:
        """All in one transaction, in the order of the names, so that none waits for another."""
        asked, places = list[str](), dict[int, registers.Swap]()
        for swap in sorted(swaps, key=lambda it: it.wanted.key):
            asked += self._blank(swap)
            places[len(asked)] = swap
            asked += [self._written(swap), *self._followed(swap)]
        # One statement is a transaction of its own, and saves the words around it.
        alone = len(asked) == 1
        replies = self._change(until, *asked if alone else ("START TRANSACTION", *asked, "COMMIT"))
        refused = [it for at, it in places.items() if not replies[at + (not alone)].affected]
        found = self.load([it.wanted for it in refused], until) if refused else []
        instead = {
            id(it): registers.unless_behind(it, now, self._site.where)
            for it, now in zip(refused, found, strict=True)
        }
        return [instead.get(id(swap)) for swap in swaps]

    def _blank(self, swap: registers.Swap) -> list[str]:
        if swap.seen.version:
            return []
        name, epoch = flat(swap.wanted.key), swap.seen.incarnation.id
        seal = crc32(statements.BLANK.format(name).encode())
        return [self._wire.quoted(statements.blank(epoch, self._wire.facts.here), name, seal)]

    def _written(self, swap: registers.Swap) -> str:
        parts, values = list[str](), list[Any]()
        for it in swap.entries:
            if isinstance(it.value, LastGrant):
                parts.append("past=JSON_SET(past,%s,JSON_ARRAY(%s,%s,%s,%s))")
                values += [f'$."{it.name}"', *it.value]
        # `written` comes before the instants that are counted from it.
        parts.append(f"written={statements.CLOCK},version=GREATEST(version+1,written)")
        for name, value in columns_of(swap.record)._asdict().items():
            us = us_after_write(value) if isinstance(value, int) else None
            parts.append(f"{name}=%s" if us is None else f"{name}=written+{us}")
            values += [value] if us is None else []
        notices = swap.record.pause is not None or swap.record.resign is not None
        parts.append(f"notices={notices}")
        ours = self._if_ours(swap.seen.incarnation.id)
        asked = statements.swap(ours, swap.seen.version, swap.not_before, ",".join(parts))
        return self._wire.quoted(asked, *values, flat(swap.wanted.key))

    def _followed(self, swap: registers.Swap) -> list[str]:
        """What changes beside the row, if the swap is done."""
        quoted, name, asked = self._wire.quoted, flat(swap.wanted.key), list[str]()
        for kind, part, value in swap.entries:
            if value is None:
                asked.append(quoted(statements.REMOVE, name, kind, part.encode()))
            elif not isinstance(value, LastGrant):
                text = encoded_entry(value)
                asked.append(quoted(statements.PUT, kind, part.encode(), text, name))
        for joined in swap.seen.joined:
            asked.append(quoted(statements.DRAIN, name, joined.waiter.claim, joined.id))
        if swap.seen.joined:
            asked.append(quoted(statements.DRAINED, name, name))
        return [statements.DONE, *asked] if asked else []
