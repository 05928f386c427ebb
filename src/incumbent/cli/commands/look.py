"""`status` and `wait`: who holds what, and waiting until a name is free."""

from __future__ import annotations

import sys
import time

from incumbent import clock
from incumbent.cli.operator import WITHIN, open_client, read_until, wait_for_change
from incumbent.cli.parser import Request
from incumbent.cli.text import facts_of, print_json, record_as_json, said_by, say, state_of, table
from incumbent.clients import Client
from incumbent.durations import parse_duration, say_seconds
from incumbent.errors import StoreError
from incumbent.model import Record
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.supervise.codes import BUSY, OK

_EVERY = 1.0
_AT_MOST_EVERY = 0.1
_CLEAR = "\x1b[H\x1b[2J"
_HEAD = ("NAME", "STATE", "HOLDER", "TOKEN", "HELD FOR", "TTL LEFT", "NOTES")


def command(request: Request) -> int:
    """See the module."""
    if request.command == "wait":
        return _wait(request)
    with open_client(request) as client:
        if not request.on("watch"):
            _show(request, client)
            return OK
        try:
            _watch(request, client)
        except KeyboardInterrupt:
            # That is how one leaves it.
            pass
    return OK


# -- wait ----------------------------------------------------------------------------------------


def _wait(request: Request) -> int:
    text = request.text("timeout")
    timeout = float("inf") if text is None else parse_duration(text, "timeout")
    with open_client(request) as client:
        record = read_until(client, request.name, clock.now() + timeout, _is_free)
    if request.on("json"):
        print_json(record_as_json(record))
    if _is_free(record):
        return OK
    what = f"held by {record.holdings[0].holder}" if record.holdings else state_of(record)
    say(f"{request.name}: gave up after {say_seconds(timeout)}: {what}")
    return BUSY


def _is_free(record: Record) -> bool:
    return state_of(record) == "free"


# -- status --------------------------------------------------------------------------------------


def _watch(request: Request, client: Client) -> None:
    while True:
        began, shown = clock.now(), None
        try:
            shown = _show(request, client, clear=sys.stdout.isatty())
        except StoreError as error:
            if error.permanent:
                raise
            say(str(error))
        until = began + _EVERY
        if shown is not None and shown.seen:
            # Many changes at once are one to look at.
            time.sleep(_AT_MOST_EVERY)
            wait_for_change(client, shown, until)
        else:
            time.sleep(max(0.0, until - clock.now()))


def _show(request: Request, client: Client, *, clear: bool = False) -> Record | None:
    """Returns the record if it is of one name."""
    one = request.name
    records = (client.read(one, WITHIN),) if one else client.scan("", WITHIN)
    if clear:
        print(_CLEAR, end="")
    if request.on("json"):
        facts = [record_as_json(record) for record in records]
        print_json(facts[0] if one else facts)
    elif one:
        rows = zip(_HEAD, _row(records[0]), strict=True)
        shown = [(head.lower(), cell) for head, cell in rows if cell not in ("", "-")]
        table(shown + [("node", line) for line in records[0].nodes])
    else:
        table([_HEAD, *(_row(record) for record in records)])
    return records[0] if one else None


def _row(record: Record) -> tuple[str, ...]:
    name, state = record.key.name, state_of(record)
    if not record.holdings:
        return (name, state, "-", "-", "-", "-", _notes(record))
    holding = record.holdings[0]
    both = (holding.held_for, holding.remaining)
    times = ["-" if seconds is None else say_seconds(seconds) for seconds in both]
    return (name, state, holding.holder, str(holding.token or "-"), *times, _notes(record))


def _notes(record: Record) -> str:
    notes = ["not ours"] if any(holding.foreign for holding in record.holdings) else []
    facts = facts_of(record.holdings[0]) if record.holdings else {}
    notes += ["stopping"] if facts.get("state") == "stopping" else []
    notes += [facts["isolation"]] if facts.get("isolation") else []
    for field, what in ((PAUSE, "paused"), (RESIGN, "asked to resign")):
        if field in record.fields:
            notes.append(what + said_by(record, field))
    if record.closed_for > 0:
        what = f"reserved for {record.reserved_for}" if record.reserved_for else "closed"
        notes.append(f"{what} for another {say_seconds(record.closed_for)}")
    if record.candidates:
        notes.append(f"{len(record.candidates)} standing by")
    notes += [f"slot {name}: {say_seconds(left)} left" for name, left in record.slots.items()]
    return "; ".join(notes)
