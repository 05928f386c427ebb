"""The requests of one plan, over one connection: each is one exchange with the server, or two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Batch, Granted, Key, Released, Renewal, Renewed
from incumbent.rules.codec import Unreadable, encoded_entry, encoded_waiter
from incumbent.rules.columns import Columns, columns_of, record_of
from incumbent.rules.record import NOTHING, LastGrant, begun, micros
from incumbent.stores import registers as kit
from incumbent.stores.findings import wait_after_restart
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.server import look
from incumbent.stores.mysql.site import Site
from incumbent.stores.mysql.wire import Reply, Wire
from incumbent.stores.names import flat, unflat

_AT_ONCE: Final = 1000
"""The most names of one statement."""
_EDITED: Final = Unreadable("was cut short, or edited: its checksum does not match")


class _Part(NamedTuple):
    """Renewals in one statement, and the one that asks which of them were done."""

    leases: set[str]
    asked: str
    which: str


class Exchange:
    """See registers.QuickRegisters. `wrote`: it has changed something, so that a later error does
    not mean that nothing was changed. Raises ServerError and Broken, too.
    """

    def __init__(self, wire: Wire, site: Site) -> None:
        self._wire, self._site, self.wrote = wire, site, False

    def _ours(self, epoch: str = "") -> str:
        facts = self._wire.facts
        return statements.ours(epoch or facts.id, facts.here)

    def _change(self, until: float, *asked: str) -> list[Reply]:
        replies = self._wire.ask(";".join(asked), until, writes=True)
        self.wrote = self.wrote or any(reply.affected for reply in replies)
        return replies

    # -- the quick ones -----------------------------------------------------------------------

    def take(self, request: kit.TryTake, until: float) -> Granted | None:
        (key, claim, ask), facts, ttl = request, self._wire.facts, micros(request.ask.ttl)
        wait = wait_after_restart(self._site.restart_wait, ask.ttl, facts.longest / 1e6)
        within = facts.born + micros(wait), facts.on_its_clock(until)
        keep = max(ttl, micros(ask.keep_record))
        asked = statements.take(self._ours(), facts.floor, *within)
        asked = self._wire.quoted(asked, claim, ask.holder, ttl, ask.meta, keep, flat(key))
        (reply,) = self._change(until, asked)
        return Granted(claim, reply.insert_id, ask.ttl, facts.id) if reply.affected else None

    def give(self, request: kit.TryGive, until: float) -> Released | None:
        key, claim, token = request
        asked = self._wire.quoted(statements.give(self._ours()), flat(key), claim, token)
        return Released() if self._change(until, asked)[0].affected else None

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[Renewed | None]:
        kept = renewals.prepared if isinstance(renewals, Batch) else None
        if kept is None or kept[0] != self._ours():
            kept = self._ours(), self._parts(renewals), [_lease(it) for it in renewals]
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
                (found,) = self._wire.ask(part.which, until, writes=False)
                done.update(it for (it,) in found.rows)
        return [Renewed() if it in done else None for it in leases]

    def _parts(self, renewals: Sequence[Renewal]) -> list[_Part]:
        """The statements for those that one may be enough for, by ttl."""
        groups: dict[int, dict[str, str]] = {}
        for it in renewals:
            if it.meta is None and not it.shared and it.epoch == self._wire.facts.id:
                groups.setdefault(micros(it.ttl), {})[_lease(it)] = flat(it.key)
        parts = list[_Part]()
        for ttl, group in groups.items():
            leases, names = list(group), list(group.values())
            for at in range(0, len(leases), _AT_ONCE):
                some = leases[at : at + _AT_ONCE]
                values = *names[at : at + _AT_ONCE], *some
                ours = self._ours(), ttl, len(some)
                asked = self._wire.quoted(statements.renew(*ours), *values)
                which = self._wire.quoted(statements.renewed(*ours), *values)
                parts.append(_Part(set(some), asked, which))
        return parts

    def join(self, request: kit.Join, until: float) -> kit.Seen | StoreError:
        (key, waiter, looks_in), wanted = request, [kit.Wanted(request.key)]
        values = waiter.claim, encoded_waiter(waiter, looks_in), flat(key), flat(key)
        joined = self._wire.quoted(statements.join(self._ours()), *values)
        replies = self._change(until, joined, *self._selects(wanted))
        return self._seen(wanted, replies[2:], until)[0]

    # -- reading ------------------------------------------------------------------------------

    def load(self, wanted: Sequence[kit.Wanted], until: float) -> list[kit.Seen | StoreError]:
        asked = ";".join(self._selects(wanted))
        return self._seen(wanted, self._wire.ask(asked, until, writes=False), until)

    def _selects(self, wanted: Sequence[kit.Wanted]) -> tuple[str, str]:
        """The rows first: if a value beside one is newer, its version is, too."""
        names = self._wire.quoted("name IN %s", [flat(it.key) for it in wanted])
        beside = [f"{names} AND kind='join'"]
        for key, places in wanted:
            if places == kit.ALL:
                beside.append(self._wire.quoted("name=%s", flat(key)))
            elif places:
                found = [(kind, part.encode()) for kind, part in places]
                beside.append(self._wire.quoted("name=%s AND (kind,part) IN %s", flat(key), found))
        past = any(places == kit.ALL for _, places in wanted)
        return statements.load(names, past=past), statements.beside(" OR ".join(beside))

    def _seen(
        self, wanted: Sequence[kit.Wanted], replies: Sequence[Reply], until: float
    ) -> list[kit.Seen | StoreError]:
        found = self._rows(replies, until)
        if found is None:
            return self.load(wanted, until)
        now, rows, beside = found
        return [self._one(it.key, now, rows.get(flat(it.key)), beside) for it in wanted]

    def _rows(
        self, replies: Sequence[Reply], until: float
    ) -> tuple[int, dict[str, Any], dict[str, list[Any]]] | None:
        """The server's clock, the rows by name, and the values beside them.

        None if it serves another incarnation than it did; from here on its own is known.
        """
        found, facts = replies[0].rows, self._wire.facts
        if not found or found[0][:2] != (facts.id, facts.here):
            look(self._wire, self._site.where, until)
            return None
        beside = dict[str, list[Any]]()
        for name, *value in replies[1].rows:
            beside.setdefault(name, []).append(value)
        return found[0][2], {row[3]: row[4:] for row in found if row[3] is not None}, beside

    def _one(self, key: Key, now: int, row: Any, beside: dict[str, Any]) -> kit.Seen | StoreError:
        where, facts = self._site.where, self._wire.facts
        record, version, values, joined = NOTHING, 0, dict[kit.Place, Any](), list[kit.Joined]()
        try:
            if row is not None:
                record, version, values = _kept_in(row, key, where)
            for kind, part, text, at in beside.get(flat(key), ()):
                if kind == "join":
                    joined.append(kit.joined_in(text, at, key, where))
                else:
                    place = kind, part.decode()
                    values[place] = kit.value_in(text, key, place, where, at)
        except StoreError as error:
            return error
        incarnation = facts.incarnation(now)
        return kit.Seen(record, version, now, now, incarnation, facts.floor, values, tuple(joined))

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, kit.Seen]]:
        first = f"{namespace}/{prefix}"
        # "{" comes after all that a name may have.
        names = self._wire.quoted("name BETWEEN %s AND %s", first, first + "{")
        asked = f"{statements.load(names, past=True)};{statements.beside(names)}"
        found = self._rows(self._wire.ask(asked, until, writes=False), until)
        if found is None:
            return self.scan(namespace, prefix, until)
        now, rows, beside = found
        keys = map(unflat, rows)
        pairs = [(key, self._one(key, now, rows[flat(key)], beside)) for key in keys]
        return [(key, one) for key, one in pairs if isinstance(one, kit.Seen)]

    # -- swaps --------------------------------------------------------------------------------

    def swap(self, swaps: Sequence[kit.Swap], until: float) -> list[kit.Seen | StoreError | None]:
        """All in one transaction, in the order of the names, so that none waits for another."""
        asked, places = list[str](), dict[int, kit.Swap]()
        for swap in sorted(swaps, key=lambda it: it.wanted.key):
            asked += self._blank(swap)
            places[len(asked)] = swap
            asked += [self._written(swap), *self._followed(swap)]
        alone = len(asked) == 1
        replies = self._change(until, *asked if alone else ("START TRANSACTION", *asked, "COMMIT"))
        refused = [it for at, it in places.items() if not replies[at + (not alone)].affected]
        found = self.load([it.wanted for it in refused], until) if refused else []
        instead = {
            id(it): self._unless_behind(it, now) for it, now in zip(refused, found, strict=True)
        }
        return [instead.get(id(swap)) for swap in swaps]

    def _unless_behind(self, swap: kit.Swap, now: kit.Seen | StoreError) -> kit.Seen | StoreError:
        if isinstance(now, StoreError) or now.now >= swap.not_before:
            return now
        behind = (swap.not_before - now.now) / 1e6
        return StoreUnavailable(
            f"{self._site.where}: its clock stepped back by {behind:.3f} s or more, so nothing was"
            f" changed about {flat(swap.wanted.key)}",
            retry_after=min(behind, 1.0),
        )

    def _blank(self, swap: kit.Swap) -> list[str]:
        if swap.seen.version:
            return []
        name, epoch = flat(swap.wanted.key), swap.seen.incarnation.id
        seal = crc32(statements.BLANK.format(name).encode())
        return [self._wire.quoted(statements.blank(epoch, self._wire.facts.here), name, seal)]

    def _written(self, swap: kit.Swap) -> str:
        parts, values = list[str](), list[Any]()
        for it in swap.entries:
            if isinstance(it.value, LastGrant):
                parts.append("past=JSON_SET(past,%s,JSON_ARRAY(%s,%s,%s,%s))")
                values += [f'$."{it.name}"', *it.value]
        # `written` comes before the instants that are counted from it.
        parts.append(f"written={statements.CLOCK},version=GREATEST(version+1,written)")
        for name, value in columns_of(swap.record)._asdict().items():
            us = begun(value) if isinstance(value, int) else None
            parts.append(f"{name}=%s" if us is None else f"{name}=written+{us}")
            values += [value] if us is None else []
        notices = swap.record.pause is not None or swap.record.resign is not None
        parts.append(f"notices={notices}")
        ours = self._ours(swap.seen.incarnation.id)
        asked = statements.swap(ours, swap.seen.version, swap.not_before, ",".join(parts))
        return self._wire.quoted(asked, *values, flat(swap.wanted.key))

    def _followed(self, swap: kit.Swap) -> list[str]:
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


def _lease(renewal: Renewal) -> str:
    return f"{flat(renewal.key)} {renewal.claim} {renewal.token}"


def _kept_in(row: Sequence[Any], key: Key, where: str) -> tuple[Any, int, dict[kit.Place, Any]]:
    """The record of a row, its version, and its history. Raises StoreUnavailable, if unreadable."""
    mine, sound, version, written, past, *columns = row
    try:
        if not (mine and sound):
            raise _EDITED
        record = record_of(Columns(*columns), written)
    except Unreadable as error:
        raise kit.unreadable(f"the record of {flat(key)}", where, error) from error
    history = json.loads(past) if past else {}
    return record, version, {("past", at): LastGrant(*it) for at, it in history.items()}
