"""The records of the file, read and written within one transaction.

`answer` answers the requests of an operation (stores.registers). Nobody else writes before the
transaction ends, so what was loaded is still there when it is replaced, and no version is compared.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from incumbent.errors import StoreError
from incumbent.model import OVERTAKEN_MOST, Ask, Granted, Key, Renewal, Renewed
from incumbent.rules.codec import Unreadable, encoded_entry
from incumbent.rules.columns import (
    Columns,
    LineColumns,
    columns_of,
    line_columns_of,
    line_of,
    record_of,
)
from incumbent.rules.record import (
    NOTHING,
    Beside,
    Entry,
    Grant,
    LastGrant,
    LeaseRecord,
    Line,
    Waiter,
    dated,
    dated_value,
    may_forget,
    micros,
    moved,
    moved_value,
    without_holders,
)
from incumbent.stores.names import flat, unflat
from incumbent.stores.plan import Program
from incumbent.stores.registers import (
    ALL,
    Incarnation,
    Load,
    Place,
    Request,
    Scan,
    Seen,
    Swap,
    Swaps,
    TryRenew,
    Wanted,
    unreadable,
    value_in,
)
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.connection import SqliteConnection, in_use_elsewhere


class NeedsDisk(NamedTuple):
    """Nothing was done: it has to be done in a transaction that waits for the disk."""


NEEDS_DISK: Final = NeedsDisk()
Waiters: TypeAlias = tuple[Waiter, ...]
_LINE: Final = 7 + len(Columns._fields)
"""Where the columns of the line begin in what SEE returns."""
_TYPES: Final = (str, *(int,) * 6, *map(type, Columns()), *map(type, LineColumns()))
"""What SEE returns of a name that has a row; SQLite itself keeps to no type of a column."""
_BESIDE_TYPES: Final = (str, str, int, int, int, bytes)
_PAST_TYPES: Final = (str, int, int, int)
_EDITED: Final = Unreadable("was edited: a column has a value of another type")


class StoredRow(NamedTuple):
    """The file's state, and a lease's row, whose fields are None for an unknown name."""

    boot: str
    floor: int
    reserved: int
    version: int | None
    boots: int
    written: int
    walled: int
    columns: Columns
    line: LineColumns

    @property
    def is_known(self) -> bool:
        """Whether the name has a row."""
        return self.version is not None


class Records:
    """The records, in a transaction of `db`; instants in microseconds."""

    def __init__(self, db: SqliteConnection) -> None:
        self._db = db
        # Within the transaction, if there is one: then no later write has an earlier instant.
        self.now = int(db.host.now() * 1_000_000)
        self.wall = int(db.host.wall() * 1_000_000)

    def run_program(self, program: Program[Any]) -> Any:
        """The outcome of an operation; NEEDS_DISK, with no change, if it has to be done again."""
        reply: Any = None
        try:
            while reply is not NEEDS_DISK:
                reply = self._answer(program.send(reply))
        except StopIteration as done:
            return done.value
        return NEEDS_DISK

    def _answer(self, request: Request) -> Any:
        match request:
            case Load(wanted):
                return [self.load(each) for each in wanted]
            case Swaps(swaps):
                return self._swap(swaps)
            case TryRenew(renewals):
                self._check_boot(*self._db.execute(schema.SEE_BOOT).fetchone())
                return [self._try_renew(renewal) for renewal in renewals]
            case Scan(namespace, prefix):
                # Names are ASCII, so DEL sorts behind each of them.
                span = (f"{namespace}/{prefix}", f"{namespace}/{prefix}\x7f")
                keys = [unflat(name) for (name,) in self._db.execute(schema.SEE_KEYS, span)]
                return [(key, self.load(Wanted(key, ALL))) for key in keys]
        raise TypeError(f"a request for other registers: {request}")

    # -- reading ------------------------------------------------------------------------------

    def read_row(self, name: str) -> StoredRow:
        """The row of a name; StoreUnavailable if somebody has put values of other types into it.

        Raises SpoiledFile if the file belongs to another boot by now.
        """
        found = self._db.execute(schema.SEE, (name,)).fetchone()
        if found[3] is not None and tuple(map(type, found)) != _TYPES:
            raise unreadable(f"the record of {name}", self._db.url, _EDITED)
        row = StoredRow._make(
            (*found[:7], Columns._make(found[7:_LINE]), LineColumns._make(found[_LINE:]))
        )
        self._check_boot(row.boot)
        return row

    def _check_boot(self, boot: str) -> None:
        # For that boot the holders of this one are gone, although their rows are unchanged.
        if boot != self._db.host.boot_id:
            raise in_use_elsewhere()

    def load(self, wanted: Wanted) -> Seen:
        """See registers.Load. Raises StoreUnavailable for a record that cannot be read."""
        key, places = wanted
        name = flat(key)
        row, beside = self.read_row(name), self._beside(name, key, places)
        incarnation = Incarnation(self._db.epoch)
        record = self._record(key, row) if row.is_known else NOTHING
        return Seen(record, row.version, self.now, self.wall, incarnation, row.floor + 1, beside)

    def _record(self, key: Key, row: StoredRow) -> LeaseRecord:
        try:
            record = record_of(row.columns, 0)
            if row.line.heartbeat:
                waiting = self._db.execute(schema.SEE_LINE, (flat(key),)).fetchall()
                record = record._replace(line=line_of(row.line, waiting))
        except Unreadable as error:
            raise unreadable(f"the record of {flat(key)}", self._db.url, error) from error
        if row.boots == self._db.boots:
            return record
        return without_holders(moved(record, self._moved_by(row.written, row.walled)))

    def _moved_by(self, written: int, walled: int) -> int:
        return schema.since_boot(self.now, self.wall, written, walled)

    def _beside(self, name: str, key: Key, places: tuple[Place, ...]) -> dict[Place, Beside]:
        execute, found, values = self._db.execute, list[Any](), dict[Place, Beside]()
        if places == ALL:
            found = execute(schema.SEE_ALL_BESIDE, (name,)).fetchall()
            past = execute(schema.SEE_PAST, (name,)).fetchall()
            values = {("past", str(place)): LastGrant(*it) for place, *it in past}
            if any(tuple(map(type, it)) != _PAST_TYPES for it in values.values()):
                raise unreadable(f"the history of {name}", self._db.url, _EDITED)
        else:
            for place in places:
                found += execute(schema.SEE_BESIDE, (name, *place)).fetchall()
        if any(tuple(map(type, it)) != _BESIDE_TYPES for it in found):
            raise unreadable(f"what is beside the record of {name}", self._db.url, _EDITED)
        for kind, part, boots, written, walled, text in found:
            value = value_in(text, key, (kind, part), self._db.url)
            if boots != self._db.boots:
                value = moved_value(value, self._moved_by(written, walled))
            values[kind, part] = value
        return values

    # -- writing ------------------------------------------------------------------------------

    def _swap(self, swaps: tuple[Swap, ...]) -> list[None] | NeedsDisk:
        lasting = not self._db.durable and any(map(_must_last, swaps))
        if lasting or not self._are_reserved(max(swap.record.token for swap in swaps)):
            return NEEDS_DISK
        for swap in swaps:
            self.write(swap)
        return [None] * len(swaps)

    def _are_reserved(self, token: int) -> bool:
        """Whether tokens up to this may be granted; they are reserved if the disk is waited for."""
        (_, _, _, reserved, _) = self._db.execute(schema.SEE_STATE).fetchone()
        if token > reserved and self._db.durable:
            reserved = schema.reserved_from(token, self.wall)
            self._db.execute(schema.RESERVE_TOKENS, (reserved,))
        return bool(token <= reserved)

    def write(self, swap: Swap) -> None:
        """Write a record, and what is beside it."""
        name, record = flat(swap.wanted.key), dated(swap.record, self.now)
        line, columns = line_columns_of(record.line), columns_of(record._replace(line=Line()))
        self._db.execute(schema.WRITE, (name, *self._written_at, *columns, *line))
        self._write_line(name, swap.seen.record.line.waiters, record.line.waiters)
        for entry in swap.entries:
            self._put(name, entry)

    def _write_line(self, name: str, old: Waiters, new: Waiters) -> None:
        # The rules add waiters at the end, and never move one.
        if new == old:
            return
        stay = frozenset(old) & frozenset(new)
        if not stay:
            # Also those of an earlier boot: they were not seen, and would come first.
            self._db.execute(schema.CLEAR_LINE, (name,))
        for waiter in old:
            if stay and waiter not in stay:
                self._db.execute(schema.LEAVE_LINE, (name, waiter.claim))
        for waiter in new:
            if waiter not in stay:
                self._db.execute(schema.JOIN_LINE, (name, *waiter))

    @property
    def _written_at(self) -> tuple[int, int, int]:
        return self._db.boots, self.now, self.wall

    def _put(self, name: str, entry: Entry) -> None:
        kind, part, value = entry
        if value is None:
            self._db.execute(schema.REMOVE, (name, kind, part))
            return
        if isinstance(value, LastGrant):
            self._db.execute(schema.PUT_PAST, (name, int(part), *value))
            return
        value = dated_value(value, self.now)
        until = value.expires if isinstance(value, Grant) else 0
        text = encoded_entry(value)
        self._db.execute(schema.PUT, (name, kind, part, *self._written_at, until, text))

    # -- plain records ------------------------------------------------------------------------

    def try_take(self, key: Key, claim: str, ask: Ask) -> Granted | None:
        """Grant a name whose record is plain, and which is free; None, with no change, if not."""
        name, now, wall = flat(key), self.now, self.wall
        row = self.read_row(name)
        old = row.columns
        if row.is_known and not self._is_free_to(name, claim, row):
            return None
        token = max((old.token or 0) + 1, wall, row.floor + 1)
        # The rules take over, in a transaction that waits for the disk and reserves more.
        if token > row.reserved:
            return None
        if old.granted:
            self._db.execute(schema.ARCHIVE, (name,))
        ttl = micros(ask.ttl)
        keep = now + max(ttl, micros(ask.keep_record))
        granted = (token, claim, ask.holder, ttl, now, now + ttl, ask.meta, wall, keep)
        self._db.execute(schema.GRANT, (name, *self._written_at, *granted))
        return Granted(claim, token, ask.ttl, self._db.epoch)

    def _is_free_to(self, name: str, claim: str, row: StoredRow) -> bool:
        """Whether a claim may have the name that is not the first in line, nor any in it."""
        columns, line = row.columns, row.line
        if columns.rest or columns.expires > self.now or row.boots != self._db.boots:
            return False
        if not line.heartbeat:
            return True
        if line.fair or line.overtaken >= OVERTAKEN_MOST or line.due <= self.now:
            return False
        return not self._db.execute(schema.SEE_WAITER, (name, claim)).fetchone()

    def _try_renew(self, renewal: Renewal) -> Renewed | None:
        if renewal.epoch != self._db.epoch or renewal.meta is not None:
            return None
        expires, lease = self.now + micros(renewal.ttl), (renewal.claim, renewal.token)
        values = (expires, flat(renewal.key), *lease, self.now, self._db.boots)
        return Renewed() if self._db.execute(schema.RENEW, values).rowcount else None

    def try_give(self, key: Key, claim: str, token: int) -> bool:
        """Give a lease back whose record is plain; False, with no change, if it is not."""
        lease = (flat(key), claim, token, self.now, self._db.boots)
        return self._db.execute(schema.GIVE, (self.wall, self.now, *lease)).rowcount > 0

    # -- what is over -------------------------------------------------------------------------

    def sweep(self, limit: int) -> None:
        """Forget what is over among the next `limit` names."""
        execute = self._db.execute
        after, upto = execute(schema.SWEEP_WINDOW, {"limit": limit - 1}).fetchone()
        clocks = {"boots": self._db.boots, "now": self.now, "wall": self.wall}
        window = {"after": after, "upto": upto or schema.SWEEP_END, **clocks}
        execute(schema.SWEEP_SLOTS, window)
        highest = 0
        for (name,) in execute(schema.SEE_SWEPT, window).fetchall():
            with suppress(StoreError):  # a record that cannot be read is kept: a take reports it
                highest = max(highest, self._forget(name))
        # In the same transaction: a forgotten name begins above its last token,
        # or is not forgotten.
        execute(schema.SWEPT, (upto or "", highest))

    def _forget(self, name: str) -> int:
        """Forget a name if nothing of it matters any more; its last token, or else 0."""
        record = self.load(Wanted(unflat(name))).record
        if not may_forget(record, self.now):
            return 0
        for statement in schema.FORGET:
            self._db.execute(statement, (name,))
        return record.token


def _must_last(swap: Swap) -> bool:
    """Whether a change must outlive a power loss: of a slot, a field, a closing or a notice."""
    # What a grant takes away need not: the next grant does it again.
    old, new = swap.seen.record, swap.record
    if any(entry.kind != "past" for entry in swap.entries) or new.pause != old.pause:
        return True
    if new.granted != old.granted:
        return False
    return new.resign != old.resign or (new.closing is not None and new.closing != old.closing)
