"""`status` shows the holders of names; `wait` waits until a name is free."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from incumbent import clock
from incumbent.cli.operator import (
    REQUEST_TIMEOUT,
    describe_unknown,
    open_client,
    read_places,
    read_until,
    store_state,
    wait_for_change,
    watch,
)
from incumbent.cli.parser import CommandRequest
from incumbent.cli.text import announce_wait, draw, held, print_json, say
from incumbent.cron.fleet import failure_of, is_by_the_clock, is_job, jobs_of, result_of, runs_in
from incumbent.cron.ledger import read_job
from incumbent.durations import parse_duration, say_seconds
from incumbent.locks.clients import Client
from incumbent.model import Holding, Key, Record
from incumbent.page.facts import facts_of, record_as_json
from incumbent.printable import printable
from incumbent.protocol.messages import names_of
from incumbent.rules.endings import FLAPPING, flapping
from incumbent.rules.notices import PAUSE, RESIGN
from incumbent.stores.findings import (
    FREE,
    HELD,
    UNKNOWN,
    NameState,
    asked_to,
    beside_state,
    said_by,
    said_of,
    share_of,
    state_of,
)
from incumbent.supervise.codes import BUSY, OK, UNPROVED

_HEAD = ("NAME", "STATE", "HOLDER", "HELD FOR", "TTL LEFT", "WAITING")
_REREAD_AFTER = 1.0


def command(request: CommandRequest) -> int:
    if request.command == "wait":
        return _wait(request)
    with open_client(request) as client:
        if request.on("watch"):
            watch(lambda: _show(request, client), partial(wait_for_change, client))
        else:
            _show(request, client)
    return OK


# -- wait ------------------------------------------------------------------------------------------


def _wait(request: CommandRequest) -> int:
    text = request.text("timeout")
    timeout = float("inf") if text is None else parse_duration(text, "timeout")
    with open_client(request) as client:
        state, record = NameState(UNKNOWN), Record(Key("", request.name))

        def is_free(seen: Record) -> bool:
            nonlocal state, record
            now = state_of(seen)
            # The store is examined only if that may change the answer.
            record, state = seen, state_of(seen, store_state(client)) if now.word == FREE else now
            return state.word == FREE

        def what() -> str:
            return held(record.holdings) if record.holdings else said_of(state)

        until = clock.now() + timeout
        # Read again without a hint: a record does not change when its store grants again.
        with announce_wait(request, until, what):
            record = read_until(client, request.name, until, is_free, _REREAD_AFTER)
        unknown = describe_unknown(client, record, if_misspelt=True)
    if unknown:
        say(f"{request.name}: {unknown}")
    if request.on("json"):
        print_json(request, record_as_json(record, state))
    if state.word == FREE:
        return OK
    say(f"{request.name}: gave up after {say_seconds(timeout)}: {what()}")
    return UNPROVED if state.word == UNKNOWN else BUSY


# -- status ----------------------------------------------------------------------------------------


def _show(request: CommandRequest, client: Client) -> Record | None:
    """Show one name, or all names; returns the record if it is one name."""
    if request.name:
        record = client.read(request.name, REQUEST_TIMEOUT)
        store = store_state(client)
        state = state_of(record, store)
        if request.on("json"):
            print_json(request, record_as_json(record, state))
        else:
            places = [] if record.holdings else read_places(client, record.key.name)
            about = [("place", line) for line in places]
            about += [("store", line) for line in beside_state(state, store)]
            if not places and (unknown := describe_unknown(client, record)):
                about.append(("record", unknown))
            draw(request, [*_facts(record, state), *about])
        return record
    records = client.scan(request.text("prefix") or "", REQUEST_TIMEOUT)
    # Before the store is examined: a shell that completes names waits for this.
    if request.on("names"):
        names = [printable(record.key.name) for record in records]
        print("\n".join(name for name in names if request.on("all") or name[:1] != "@"))
        return None
    store = store_state(client)
    chosen = [record for record in records if _is_shown(request, record)]
    if request.on("json"):
        print_json(request, [record_as_json(record, state_of(record, store)) for record in chosen])
        return None
    jobs = [] if request.on("all") else jobs_of(records)
    all_held = records and all(record.holdings for record in records)
    # Whether it would grant something is nobody's question while all is held, unless it says no.
    below = [] if store.word == FREE or (all_held and store.word == UNKNOWN) else [said_of(store)]
    if jobs:
        running = sum(1 for job in jobs if job.holdings)
        failed = sum(1 for job in jobs if failure_of(runs_in(job)))
        how = f"running: {running}" + (f", failed: {failed}" if failed else "")
        below.append(f"jobs: {len(jobs)}, {how}; see `incumbent jobs`")
    draw(request, [_HEAD, *(_row(record, store) for record in chosen)], below)
    return None


def _is_shown(request: CommandRequest, record: Record) -> bool:
    if record.holdings or request.on("all") or flapping(record, clock.wall()):
        return True
    ours = record.key.name.startswith("@cron/") or is_job(record) or request.on("held")
    return not ours and (state_of(record) != (FREE, "") or bool(record.candidates))


def _row(record: Record, store: NameState) -> tuple[str, ...]:
    waiting = str(len(record.candidates) or "-")
    flaps = FLAPPING if flapping(record, clock.wall()) else ""
    if not record.holdings:
        return (record.key.name, flaps or state_of(record, store).word, "-", "-", "-", waiting)
    holding = record.holdings[0]
    share = share_of(record.holdings)
    who = f"{names_of(record.holdings)} ({share})" if share else holding.holder
    return (record.key.name, flaps or _state_word(holding), who, *_times(holding), waiting)


def _state_word(holding: Holding) -> str:
    if holding.foreign:
        return "not ours"
    return "stopping" if facts_of(holding).get("state") == "stopping" else HELD


def _times(holding: Holding) -> list[str]:
    both = (holding.held_for, holding.remaining)
    return ["-" if seconds is None else say_seconds(seconds) for seconds in both]


def _facts(record: Record, state: NameState) -> Iterator[tuple[str, str]]:
    """The facts about one name: a label and a text each."""
    holding = next(iter(record.holdings), None)
    yield "name", record.key.name
    if holding and holding.permits is not None:
        yield "state", said_of(state)
        for one in record.holdings:
            held_for, left = _times(one)
            text = f"{one.holder}, token {one.token}, held for {held_for}, ttl left {left}"
            yield "holder", text
    else:
        free = state.word == FREE and _is_by_the_clock(record)
        word = FREE if free else said_of(state)
        yield "state", _state_word(holding) if holding else word
    if holding and holding.permits is None:
        held_for, left = _times(holding)
        isolation = facts_of(holding).get("isolation", "")
        cells = {"holder": holding.holder, "token": str(holding.token or "-"), "held for": held_for}
        cells |= {"ttl left": left, "isolation": isolation}
        yield from ((head, cell) for head, cell in cells.items() if cell not in ("", "-"))
    if flaps := flapping(record, clock.wall()):
        yield FLAPPING, str(flaps)
    if PAUSE in record.fields:
        yield "paused", said_by(record, PAUSE).strip() or "yes"
    if RESIGN in record.fields:
        yield asked_to(record), said_by(record, RESIGN).strip() or "yes"
    if record.candidates:
        yield "waiting", ", ".join(candidate.holder for candidate in record.candidates)
    if _is_by_the_clock(record):
        yield from _last_run(record)
    else:
        yield from (
            ("slot", f"{name}: {say_seconds(it)} left") for name, it in record.slots.items()
        )
    for line in record.nodes:
        yield "node", line


def _is_by_the_clock(record: Record) -> bool:
    """Whether `cron` runs it: then used slots say nothing, as each run uses one of its own."""
    return is_by_the_clock(read_job(record.fields))


def _last_run(record: Record) -> Iterator[tuple[str, str]]:
    for run in [run for run in runs_in(record) if run.state.ended][-1:]:
        why = f": {run.why}" if run.why else ""
        yield "last run", f"{result_of(run)}{why}, slot {run.slot}; see `incumbent history`"
