"""The operations of `sqlite:`: `Core` tries each once, without waiting; the stores around it retry.

An exclusive take, a batch of renewals and a give are one transaction each. A take reads one row
(SEE), decides in `rows`, and writes GRANT; renewing and giving compare within their one statement.
Changes that must outlive a power loss (slots, fields, closings, reservations) are on the disk
before the operation returns.

An operation takes microseconds, so it runs in the event loop: a thread would cost more. An
operation that waits for the disk blocks the loop for one fsync. While another connection writes,
the coroutine sleeps, so a peer never blocks the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    Ask,
    Candidate,
    Field,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Holding,
    Key,
    Past,
    PutOutcome,
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.rules.taking import CANDIDATES_KEPT
from incumbent.stores.base import Gave, Give, Take, Took
from incumbent.stores.inline import InlineAsyncStore, at_once
from incumbent.stores.names import flat, unflat
from incumbent.stores.notices import PAUSE, RESIGN, guard_holds, notices_for
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.connection import (
    Connection,
    FileBusy,
    SpoiledFile,
    in_use_elsewhere,
)
from incumbent.stores.sqlite.file import (
    DURABLE,
    ONE_STATEMENT,
    PROBE,
    READ,
    WRITE,
    Mode,
    SqliteFile,
)
from incumbent.stores.sqlite.rows import (
    Row,
    StoredLine,
    join_sharers,
    leave_sharers,
    repeat_sharer,
    seen_of,
    sharers_leave_room,
    sharing_holdings,
    sharing_refusal,
    should_ask_again,
)

T = TypeVar("T")

_FIRST_LOOK: Final = 0.002
_LONGEST_LOOK: Final = 0.025
_LOOK_GROWTH: Final = 1.25


class Core:
    """A Store whose operations raise FileBusy instead of waiting, with instants of the host."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        name = flat(key)
        mode = DURABLE if ask.slot else WRITE
        while True:
            outcome = self._transact(until, lambda db: _take(db, name, claim, ask), mode)
            if outcome is not None:
                return outcome
            mode = DURABLE  # to reserve more tokens

    def take_all(self, takes: Sequence[Take], until: float) -> Took:
        """See Together: one transaction."""

        def work(db: Connection) -> list[TakeOutcome | None]:
            return [_take(db, flat(key), claim, ask) for key, claim, ask in takes]

        outcomes = self._transact(until, work)
        if any(outcome is None for outcome in outcomes):
            # Again, to reserve more tokens. Claims that were granted get the same grant.
            outcomes = self._transact(until, work, DURABLE)
        return [outcome for outcome in outcomes if outcome is not None]

    def give_all(self, gives: Sequence[Give], until: float) -> Gave:
        """See Together: one transaction."""

        def work(db: Connection) -> Gave:
            return [_give(db, flat(key), claim, token) for key, claim, token in gives]

        return self._transact(until, work)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """Renew the whole batch in one transaction."""
        try:
            return self._transact(until, lambda db: _renew(db, renewals))
        except SpoiledFile:
            # Others may have gone on without our log, so its content proves nothing any more.
            return [Gone("store_restarted") for _ in renewals]

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
        shared: bool = False,
    ) -> GiveOutcome:
        name, closes = flat(key), closed_for > 0

        def leave(db: Connection) -> GiveOutcome:
            return Released() if leave_sharers(db, name, claim, token) else Gone()

        def work(db: Connection) -> GiveOutcome:
            if slot is not None:
                db.execute(schema.GIVE_SLOT, (name, slot, claim))
            outcome = _give(db, name, claim, token, closed_for)
            if closes and reserve_for and isinstance(outcome, Released):
                db.execute(schema.RESERVE, (reserve_for, name))
            return outcome

        durable = closes or slot is not None
        if shared:
            outcome = self._transact(until, leave)
        else:
            outcome = self._transact(until, work, DURABLE if durable else ONE_STATEMENT)
        if isinstance(outcome, Gone):
            self._transact(until, lambda db: _leave(db, name, claim))
        return outcome

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        name = flat(key)
        return self._transact(until, lambda db: _put(db, name, field, value, guard), DURABLE)

    def read(self, key: Key, until: float) -> Record:
        return self._transact(until, lambda db: _record(db, key), READ)

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        first = f"{namespace}/{prefix}"
        # Names are ASCII, so DEL sorts behind each of them.
        return self._transact(until, lambda db: _records(db, first, f"{first}\x7f"), READ)

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        for pause in self.looks(key, seen, until):
            time.sleep(pause)

    def looks(self, key: Key, seen: str, until: float) -> Iterator[float]:
        """Look for a change every 2 to 25 ms; yields the seconds to sleep before each further look.

        Ends once `key` has changed since `seen`. Looking takes no lock. A StoreError ends it early,
        which is allowed because the end is only a hint.
        """
        pause = _FIRST_LOOK
        while (left := until - clock.now()) > 0:
            try:
                if self.file.transact(lambda db: _has_changed(db, flat(key), seen), READ):
                    return
            except FileBusy:
                pass
            except StoreError:
                return
            yield min(pause, left)
            pause = min(pause * _LOOK_GROWTH, _LONGEST_LOOK)

    def probe(self, until: float) -> str:
        """The journal mode. Raises StoreError if a take would."""
        return self._transact(until, _journal_mode, PROBE)

    def close(self) -> None:
        """Close the connections; a later operation opens the file again."""
        self.file.close()

    def _transact(self, until: float, work: Callable[[Connection], T], mode: Mode = WRITE) -> T:
        return self.file.transact(work, mode)


def _journal_mode(db: Connection) -> str:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


def _take(db: Connection, name: str, claim: str, ask: Ask) -> TakeOutcome | None:
    """The outcome of a take; None, with no change, if it needs a durable transaction."""
    now = db.host.now()
    row = _see(db, name)
    if row.held_by(claim, now):
        left = max(row.expires - now, ask.ttl)
        db.execute(schema.REPEAT, (now + left, name))
        return Granted(claim, row.token, left, db.epoch)
    if row.shared(now) and (kept := repeat_sharer(db, name, row, claim, ask.ttl, now)):
        return Granted(claim, *kept, db.epoch)
    seen = seen_of(db.epoch, row.changes)
    refused = _refusal(db, name, row, claim, ask, now, seen)
    line = StoredLine(db, name, row) if row.line_exists or (refused and ask.queue) else None
    if refused is None and line is not None and not row.closed(now):
        refused = line.refusal(claim, now, seen)
    if refused is not None:
        if ask.candidacy > 0:
            boot = db.host.boot_id
            db.execute(schema.STAND, (name, ask.holder, boot, now + ask.candidacy))
            db.execute(schema.CROWD_OUT, (name, boot, now, CANDIDATES_KEPT))
        if line is not None and ask.queue is not None and refused.reason != "permits":
            return line.stand(claim, ask, ask.queue, now, refused)
        return refused
    token = max(row.token or 0, row.floor) + 1
    if token > row.highest_reserved_token:
        if not db.durable:
            return None
        db.execute(schema.RESERVE_TOKENS, (schema.reserved_from(token, db.host.wall()),))
    _grant(db, name, claim, token, ask, row, now)
    if line is not None:
        ttl = 0.0 if sharers_leave_room(db, name, ask, now) else ask.ttl
        line.granted(claim, now=now, ttl=ttl)
    return Granted(claim, token, ask.ttl, db.epoch)


def _refusal(
    db: Connection, name: str, row: Row, claim: str, ask: Ask, now: float, seen: str
) -> Refused | None:
    if row.shared(now):
        refused = sharing_refusal(db, name, row, ask, now, seen)
        if refused is not None:
            return refused
        row = row.beside()
    slot = _other_user(db, name, claim, ask, now)
    paused = bool(row.switched) and PAUSE in _fields(db, name)
    reserved_for = _reserved_for(db, name, row, now)
    return row.refusal(ask.holder, slot, reserved_for, paused, now, seen)


def _see(db: Connection, name: str) -> Row:
    row: Row = Row._make(db.execute(schema.SEE, (name,)).fetchone())
    if row.boot != db.host.boot_id:
        raise in_use_elsewhere()
    return row


def _other_user(db: Connection, name: str, claim: str, ask: Ask, now: float) -> Holding | None:
    if ask.slot is None:
        return None
    found = db.execute(schema.SEE_SLOT, (name, ask.slot.name)).fetchone()
    if found is None or found[0] == claim:
        return None
    user, holder, token, ttl, since, expires = found
    if expires <= now:
        return None
    return Holding(holder, token, expires - now, ttl, now - since, claim=user)


def _reserved_for(db: Connection, name: str, row: Row, now: float) -> str:
    if not row.closed(now):
        return ""
    found = db.execute(schema.SEE_RESERVATION, (name, row.token)).fetchone()
    return str(found[0]) if found else ""


def _fields(db: Connection, name: str) -> dict[str, Field]:
    found = db.execute(schema.SEE_FIELDS, (name,)).fetchall()
    return {field: Field(value, version) for field, value, version in found}


def _grant(
    db: Connection, name: str, claim: str, token: int, ask: Ask, row: Row, now: float
) -> None:
    wall, ttl, holder, slot = db.host.wall(), ask.ttl, ask.holder, ask.slot
    if row.grants:
        db.execute(schema.ARCHIVE, (name,))
    # If the lease is shared, a notice still applies to its holders when another holder joins.
    joins = ask.permits is not None and row.held(now)
    if row.switched and not joins:
        db.execute(schema.DROP_FIELD, (name, RESIGN))
    forget_at, expires = wall + max(ttl, ask.keep_record), now + ttl
    if ask.permits is not None:
        expires = join_sharers(db, name, row, claim, token, ask, now)
        claim = schema.LATCH
    values = (name, claim, holder, token, ttl, ask.meta, now, expires, wall, forget_at)
    db.execute(schema.GRANT, values)
    if row.switched and joins:
        db.execute(schema.SWITCHED, (name,))
    if ask.candidacy > 0:
        db.execute(schema.STAND_DOWN, (name, holder))
    if slot is not None:
        ends, ends_wall = now + slot.keep, wall + slot.keep
        used = (name, slot.name, claim, holder, token, ttl, now, ends, ends_wall, slot.keep)
        db.execute(schema.GRANT_SLOT, used)


def _give(
    db: Connection, name: str, claim: str, token: int | None, closed_for: float = 0.0
) -> GiveOutcome:
    now, wall = db.host.now(), db.host.wall()
    # A closing is stored by both clocks, because only the wall clock goes on over a reboot. The
    # turn of the first in line begins now.
    closing = (now + closed_for if closed_for > 0 else 0.0, wall + closed_for, closed_for)
    given = db.execute(schema.GIVE, (wall, *closing, now, name, claim, token, now)).rowcount
    return Released() if given else Gone()


def _renew(db: Connection, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
    (boot,) = db.execute(schema.SEE_BOOT).fetchone()
    if boot != db.host.boot_id:
        return [Gone("store_restarted") for _ in renewals]
    now = db.host.now()
    return [_renew_one(db, renewal, now) for renewal in renewals]


def _renew_one(db: Connection, renewal: Renewal, now: float) -> RenewOutcome:
    if renewal.epoch != db.epoch:
        return Gone("store_restarted")
    name, claim, token = flat(renewal.key), renewal.claim, renewal.token
    values = (now + renewal.ttl, renewal.meta, name, claim, token, now)
    found = db.execute(schema.RENEW_LATCH if renewal.shared else schema.RENEW, values).fetchall()
    if not found:
        return Gone()
    if renewal.shared:
        db.execute(schema.RENEW_SHARER, values[:4])
    if not found[0][0]:
        return Renewed()
    values_of = {field: stored.value for field, stored in _fields(db, name).items()}
    return Renewed(notices_for(token, values_of.get(PAUSE), values_of.get(RESIGN)))


def _leave(db: Connection, name: str, claim: str) -> None:
    """Remove `claim`, which holds nothing, from the line if it waits there."""
    row, now = _see(db, name), db.host.now()
    if row.line_exists:
        left = 0.0 if row.shared(now) else max(0.0, row.expires - now)
        StoredLine(db, name, row).leave(claim, now, left)


def _put(db: Connection, name: str, field: str, value: bytes | None, guard: Guard) -> PutOutcome:
    row = _see(db, name)
    found = db.execute(schema.SEE_FIELD, (name, field)).fetchone()
    old = Field(*found) if found else None
    if not guard_holds(guard, old, row.holder_at(db.host.now())):
        return Stale()
    # A removal does not change the version.
    version = (row.version or 0) + (value is not None)
    forget_at = db.host.wall() + schema.PUT_KEEPS
    db.execute(schema.TOUCH, (name, version, field in {PAUSE, RESIGN}, forget_at))
    if value is None:
        db.execute(schema.DROP_FIELD, (name, field))
        return Stored(0)
    db.execute(schema.WRITE_FIELD, (name, field, value, version))
    return Stored(version)


def _record(db: Connection, key: Key) -> Record:
    now, name = db.host.now(), flat(key)
    row, fields = _see(db, name), _fields(db, name)
    slots = db.execute(schema.SEE_SLOTS, (name, now)).fetchall()
    history = [Past(*found) for found in db.execute(schema.SEE_PAST, (name,)).fetchall()]
    if row.grants:  # the last holding is in the row itself
        history.append(Past(row.holder, row.token, row.started, row.ended))
    standing = db.execute(schema.SEE_CANDIDATES, (name, db.host.boot_id, now)).fetchall()
    if not row.changes:  # there is no such row
        return Record(key)
    alone = (row.holding(now),) if row.held(now) else ()
    return Record(
        key,
        sharing_holdings(db, name, now) if row.shared(now) else alone,
        max(0.0, row.closed_until - now),
        fields,
        {slot: expires - now for slot, expires in slots},
        tuple(history),
        tuple(Candidate(holder, expires - now) for holder, expires in standing),
        seen_of(db.epoch, row.changes),
        _reserved_for(db, name, row, now),
    )


def _records(db: Connection, first: str, behind: str) -> tuple[Record, ...]:
    names = db.execute(schema.SEE_KEYS, (first, behind)).fetchall()
    return tuple(_record(db, unflat(name)) for (name,) in names)


def _has_changed(db: Connection, name: str, seen: str) -> bool:
    before, behind, claim = seen.partition("|")
    if behind:
        if not before.startswith(f"{db.epoch}:"):
            return True
        return should_ask_again(db, name, claim, db.host.now())
    found = db.execute(schema.SEE_CHANGES, (name,)).fetchone()
    return seen_of(db.epoch, found[0] if found else None) != seen


# -- retrying --------------------------------------------------------------------------------------

_FIRST: Final = 0.0001  # a transaction takes some 20 us; a sleep is seldom shorter than this
_LONGEST: Final = 0.01


def pauses(path: Path, until: float, now: Callable[[], float] = clock.now) -> Iterator[float]:
    """Yield seconds to sleep before each further try, with jitter; StoreUnavailable at `until`."""
    from random import random  # imported only under contention, because start-up time counts

    pause = _FIRST
    while (left := until - now()) > 0:
        yield min(pause * (0.5 + random()), left)
        pause = min(pause * 1.5, _LONGEST)
    raise StoreUnavailable(
        f"{path} stayed locked by another process, which is writing or was stopped while it did;"
        f" nothing was changed (who: fuser {path})"
    )


class SqliteStore(Core):
    """The blocking Store. Any number of threads and processes of one host may share the file."""

    def _transact(self, until: float, work: Callable[[Connection], T], mode: Mode = WRITE) -> T:
        waits = pauses(self.file.path, until)
        while True:
            try:
                return self.file.transact(work, mode)
            except FileBusy:
                time.sleep(next(waits))


class AsyncSqliteStore(InlineAsyncStore):
    """The AsyncStore. All event loops can share it."""

    def __init__(self, file: SqliteFile) -> None:
        self._core = Core(file)
        super().__init__(self._core)

    async def run(self, operation: Callable[[], T], until: float) -> T:
        waits: Iterator[float] | None = None
        while True:
            try:
                return operation()
            except FileBusy:
                from asyncio import sleep  # the blocking side does not import asyncio

                waits = waits or pauses(self._core.file.path, until)
                await sleep(next(waits))

    take_all = at_once(lambda store: cast("Core", store).take_all)
    give_all = at_once(lambda store: cast("Core", store).give_all)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        from asyncio import sleep

        for pause in self._core.looks(key, seen, until):
            await sleep(pause)

    async def aclose(self) -> None:
        """Close the connections, which all loops share; a later operation opens them again."""
        self._core.close()
