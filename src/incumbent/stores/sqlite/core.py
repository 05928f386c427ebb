"""The operations of the contract, each tried once and never waiting; FileBusy asks to try again.

An exclusive take, a batch of renewals and a give are one transaction each. Those that must outlive
a power loss are on the disk before they are answered: slots, fields, closings and reservations.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from incumbent.model import (
    Ask,
    Candidate,
    Field,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Key,
    Past,
    PutOutcome,
    Record,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Slot,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.stores.names import flat, unflat
from incumbent.stores.notices import PAUSE, RESIGN, notices_for
from incumbent.stores.sqlite import dialect, rows
from incumbent.stores.sqlite.lines import KeptLine, may_look
from incumbent.stores.sqlite.link import Link, in_use_elsewhere, settle
from incumbent.stores.sqlite.pool import Pool
from incumbent.stores.sqlite.rows import Row, UsedSlot
from incumbent.stores.sqlite.trouble import FileBusy, SpoiledFile, is_busy, translated
from incumbent.stores.sqlite.upkeep import LOG_BYTES, Upkeep

__all__ = ["Core"]

T = TypeVar("T")


class Core:
    """What the blocking and the asynchronous side share; its instants are the host's."""

    def __init__(self, pool: Pool, upkeep: Upkeep) -> None:
        self.pool = pool
        self._upkeep = upkeep

    def take(self, key: Key, claim: str, ask: Ask) -> TakeOutcome:
        """See Store.take."""
        durable = ask.slot is not None
        outcome = self._write(lambda link: _take(link, key, claim, ask), durable=durable)
        while isinstance(outcome, int):
            self._reserve(outcome)
            outcome = self._write(lambda link: _take(link, key, claim, ask), durable=durable)
        return outcome

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
        """See Store.renew."""
        try:
            return self._write(lambda link: _renew(link, renewals))
        except SpoiledFile:
            # Others may have gone on without our log: what stood in it is no proof any more.
            return [Gone("store_restarted") for _ in renewals]

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closed_for: float,
        slot: str | None,
        reserve_for: str | None,
    ) -> GiveOutcome:
        """See Store.give."""
        successor = reserve_for if closed_for > 0 else None

        def work(link: Link) -> GiveOutcome:
            return _give(link, flat(key), claim, token, closed_for, slot, successor)

        if slot is not None or closed_for > 0:
            outcome = self._write(work, durable=True)
        else:
            outcome = self._write_once(work)
        if isinstance(outcome, Gone):
            self._write(lambda link: _leave(link, flat(key), claim))
        return outcome

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> PutOutcome:
        """See Store.put."""
        return self._write(lambda link: _put(link, flat(key), field, value, guard), durable=True)

    def read(self, key: Key) -> Record:
        """See Store.read."""
        return self._read(lambda link: _record(link, key))

    def scan(self, namespace: str, prefix: str) -> tuple[Record, ...]:
        """See Store.scan."""
        span = dialect.prefix_range(namespace, prefix)
        return self._read(lambda link: _records(link, span))

    def changed(self, key: Key, seen: str) -> bool:
        """Whether `key` is other than `seen` says; reads, and takes no lock."""
        before, behind, claim = seen.partition("|")
        if behind:
            return self._read(lambda link: _has_its_turn(link, flat(key), before, claim))
        return self._read(lambda link: _seen(link, flat(key)) != seen)

    def journal_mode(self) -> str:
        """How the file is written, for `doctor`; any trouble with the file is raised."""
        return self._read(lambda link: str(link.execute("PRAGMA journal_mode").fetchone()[0]))

    # -- transactions ------------------------------------------------------------------------

    def _write(self, work: Callable[[Link], T], *, durable: bool = False) -> T:
        link = self._borrow()
        link.committing = False
        try:
            if link.durable is not durable:
                link.make_durable(durable)
            link.execute("BEGIN IMMEDIATE")
            outcome = work(link)
            link.committing = True
            link.execute("COMMIT")
        except BaseException as error:
            self._end(link, error)
            raise
        self._put_back(link)
        return outcome

    def _write_once(self, work: Callable[[Link], T]) -> T:
        """For a give, whose one statement is a transaction of its own, and waits for no disk.

        The file is not compared first: a closing that goes into a file which was just removed is
        lost no more than one that is in it already.
        """
        link = self._borrow(compare=False)
        link.committing = True
        try:
            if link.durable:
                link.make_durable(False)
            outcome = work(link)
        except BaseException as error:
            self._end(link, error)
            raise
        self._put_back(link)
        return outcome

    def _put_back(self, link: Link) -> None:
        self.pool.put_back(link)
        if link.log_bytes > LOG_BYTES:
            self._upkeep.due(link)

    def _read(self, work: Callable[[Link], T]) -> T:
        link = self._borrow()
        link.committing = False
        try:
            link.execute("BEGIN")
            outcome = work(link)
            link.execute("ROLLBACK")
        except BaseException as error:
            self._end(link, error)
            raise
        self.pool.put_back(link)
        return outcome

    def _borrow(self, *, compare: bool = True) -> Link:
        try:
            return self.pool.borrow(compare=compare)
        except sqlite3.Error as error:
            if is_busy(error):
                raise FileBusy from error
            raise translated(error, self.pool.path, committing=False) from error

    def _end(self, link: Link, error: BaseException) -> None:
        """Free the connection after `error`, which is raised in the contract's words."""
        if not isinstance(error, sqlite3.Error):
            self.pool.discard(link)
            return
        busy = is_busy(error)
        if busy and not link.connection.in_transaction:
            self.pool.put_back(link)
        else:
            self.pool.discard(link)
        if busy:
            raise FileBusy from error
        raise translated(error, self.pool.path, committing=link.committing) from error

    def _reserve(self, token: int) -> None:
        link = self._borrow()
        try:
            settle(link, above=token)
        except BaseException as error:
            self._end(link, error)
            raise
        self.pool.put_back(link)


def _take(link: Link, key: Key, claim: str, ask: Ask) -> TakeOutcome | int:
    """The outcome; or, with nothing changed, the token that has to be reserved first."""
    now, name = link.host.now(), flat(key)
    row = _see(link, name)
    if row.held_by(claim, now):
        granted = rows.repeated(row, claim, ask.ttl, now, link.epoch)
        link.execute(dialect.REPEAT, (now + granted.ttl, name))
        return granted
    used = _used(link, name, ask.slot) if ask.slot else None
    paused = bool(row.switched) and PAUSE in _fields(link, name)
    reserved = _reserved_for(link, name, row, now)
    refused = rows.refusal(row, claim, ask.holder, used, reserved, paused, now, link.epoch)
    line = KeptLine(link, name, row) if row.lined or (refused and ask.queue) else None
    if refused is None and line is not None and not row.closed(now):
        refused = line.refusal(claim, now, rows.seen_of(link.epoch, row.changes))
    if refused is not None:
        if ask.candidacy > 0:
            _stand(link, name, ask, now)
        if line is not None and ask.queue is not None:
            return line.stand(claim, ask, ask.queue, now, refused)
        return refused
    token = row.next_token()
    if token > row.reserved:
        return token
    _grant(link, name, claim, token, ask, row, now)
    if line is not None:
        line.granted(claim, ask.ttl, now)
    return Granted(claim, token, ask.ttl, link.epoch)


def _see(link: Link, name: str) -> Row:
    row: Row = Row._make(link.execute(dialect.SEE, (name,)).fetchone())
    if row.boot != link.host.boot_id:
        raise in_use_elsewhere()
    return row


def _used(link: Link, name: str, slot: Slot) -> UsedSlot | None:
    found = link.execute(dialect.SEE_SLOT, (name, slot.name)).fetchone()
    return UsedSlot._make(found) if found else None


def _reserved_for(link: Link, name: str, row: Row, now: float) -> str:
    if not row.closed(now):
        return ""
    found = link.execute(dialect.SEE_RESERVATION, (name, row.token)).fetchone()
    return str(found[0]) if found else ""


def _stand(link: Link, name: str, ask: Ask, now: float) -> None:
    boot = link.host.boot_id
    link.execute(dialect.STAND, (name, ask.holder, boot, now + ask.candidacy))
    link.execute(dialect.CROWD_OUT, (name, boot, now, dialect.CANDIDATES_KEPT))


def _candidates(link: Link, name: str, now: float) -> tuple[Candidate, ...]:
    values = (name, link.host.boot_id, now)
    found = link.execute(dialect.SEE_CANDIDATES, values).fetchall()
    return tuple(Candidate(holder, expires - now) for holder, expires in found)


def _fields(link: Link, name: str) -> dict[str, Field]:
    found = link.execute(dialect.SEE_FIELDS, (name,)).fetchall()
    return {field: Field(value, version) for field, value, version in found}


def _grant(link: Link, name: str, claim: str, token: int, ask: Ask, row: Row, now: float) -> None:
    wall = link.host.wall()
    if row.grants:
        link.execute(dialect.ARCHIVE, (name,))
    if row.switched:
        link.execute(dialect.DROP_FIELD, (name, RESIGN))
    link.execute(dialect.GRANT, dialect.grant_values(name, claim, token, ask, now, wall))
    if ask.candidacy > 0:
        link.execute(dialect.STAND_DOWN, (name, ask.holder))
    if ask.slot is not None:
        values = dialect.slot_values(name, claim, token, ask, ask.slot, now, wall)
        link.execute(dialect.GRANT_SLOT, values)


def _renew(link: Link, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
    (boot,) = link.execute(dialect.SEE_BOOT).fetchone()
    if boot != link.host.boot_id:
        return [Gone("store_restarted") for _ in renewals]
    now = link.host.now()
    return [_renew_one(link, renewal, now) for renewal in renewals]


def _renew_one(link: Link, renewal: Renewal, now: float) -> RenewOutcome:
    if renewal.epoch != link.epoch:
        return Gone("store_restarted")
    values = dialect.renew_values(renewal, now)
    found = link.execute(dialect.RENEW, values).fetchall()
    if not found:
        return Gone()
    if not found[0][0]:
        return Renewed()
    fields = _fields(link, flat(renewal.key))
    return Renewed(
        notices_for(renewal.token, _value(fields.get(PAUSE)), _value(fields.get(RESIGN)))
    )


def _value(field: Field | None) -> bytes | None:
    return field.value if field else None


def _give(
    link: Link,
    name: str,
    claim: str,
    token: int | None,
    closed_for: float,
    slot: str | None,
    successor: str | None,
) -> GiveOutcome:
    if slot is not None:
        link.execute(dialect.GIVE_SLOT, (name, slot, claim))
    now, wall = link.host.now(), link.host.wall()
    values = dialect.give_values(name, claim, token, closed_for, now, wall)
    if not link.execute(dialect.GIVE, values).rowcount:
        return Gone()
    if successor:
        link.execute(dialect.RESERVE, (successor, name))
    return Released()


def _leave(link: Link, name: str, claim: str) -> None:
    """`claim`, which holds nothing, may wait in line."""
    row, now = _see(link, name), link.host.now()
    if row.lined:
        KeptLine(link, name, row).leave(claim, now, max(0.0, row.expires - now))


def _put(link: Link, name: str, field: str, value: bytes | None, guard: Guard) -> PutOutcome:
    row = _see(link, name)
    found = link.execute(dialect.SEE_FIELD, (name, field)).fetchone()
    old = Field(*found) if found else None
    if not rows.guard_holds(row, old, guard, link.host.now()):
        return Stale()
    values = dialect.touch_values(name, field, row, value, link.host.wall())
    link.execute(dialect.TOUCH, values)
    if value is None:
        link.execute(dialect.DROP_FIELD, (name, field))
        return Stored(0)
    version = values[1]
    link.execute(dialect.WRITE_FIELD, (name, field, value, version))
    return Stored(version)


def _record(link: Link, key: Key) -> Record:
    now, name = link.host.now(), flat(key)
    slots = dict(link.execute(dialect.SEE_SLOTS, (name, now)).fetchall())
    past = [Past(*found) for found in link.execute(dialect.SEE_PAST, (name,)).fetchall()]
    left = {slot: expires - now for slot, expires in slots.items()}
    row, fields, standing = _see(link, name), _fields(link, name), _candidates(link, name, now)
    reserved = _reserved_for(link, name, row, now)
    return rows.record_of(key, row, fields, left, past, standing, reserved, now, link.epoch)


def _records(link: Link, span: tuple[str, str]) -> tuple[Record, ...]:
    names = link.execute(dialect.SEE_KEYS, span).fetchall()
    return tuple(_record(link, unflat(name)) for (name,) in names)


def _has_its_turn(link: Link, name: str, before: str, claim: str) -> bool:
    if not before.startswith(f"{link.epoch}:"):
        return True
    return may_look(link, name, claim, link.host.now())


def _seen(link: Link, name: str) -> str:
    found = link.execute(dialect.SEE_CHANGES, (name,)).fetchone()
    return rows.seen_of(link.epoch, found[0] if found else None)
