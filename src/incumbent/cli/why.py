"""`why`: why NAME is held, or is not, and why a job ran or did not, in words.

`explain` is pure: it depends on its arguments alone, which include the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from incumbent import clock
from incumbent.cli.jobs import describe_up
from incumbent.cli.operator import (
    REQUEST_TIMEOUT,
    describe_unknown,
    open_client,
    read_places,
    store_state,
)
from incumbent.cli.parser import CommandRequest
from incumbent.cli.text import instant_of, iso, print_json
from incumbent.cron import fleet
from incumbent.cron.judging import MISSED_AFTER
from incumbent.cron.ledger import JOB, SlotRecord, pruned_spans, read_job
from incumbent.cron.schedule import find_zone
from incumbent.durations import say_seconds
from incumbent.election import rank_of
from incumbent.errors import ConfigError
from incumbent.model import Holding, Record
from incumbent.page.facts import facts_of, record_as_json
from incumbent.printable import printable
from incumbent.rules.endings import FLAPPING, describe_ending, endings_of, flapping
from incumbent.rules.notices import PAUSE, RESIGN, read_notice
from incumbent.stores.findings import (
    FREE,
    GRANTS,
    UNKNOWN,
    WAITING,
    NameState,
    asked_to,
    beside_state,
    said_by,
    said_of,
    share_of,
    state_of,
)
from incumbent.supervise.codes import OK

# The number of past holdings that are shown.
_LAST = 3
# The number of present holders that are shown.
_SHARERS = 10
# Share of the ttl: a holder renews every fifth of it, so that less is left only after failures.
_NEARLY_OUT = 0.55


def command(request: CommandRequest) -> int:
    at = request.text("at")
    with open_client(request) as client:
        record = client.read(request.name, REQUEST_TIMEOUT)
        present = client.read(fleet.PRESENCE, REQUEST_TIMEOUT) if JOB in record.fields else None
        known = client.read(fleet.KNOWN, REQUEST_TIMEOUT) if present is not None else None
        store = store_state(client)
        places = [] if record.holdings else read_places(client, request.name)
        unknown = "" if places else describe_unknown(client, record)
    zone = _zone_of(record)
    instant = None if at is None else instant_of(at, "at", clock.wall(), zone=zone)
    # Read the clock only now: "held for" in the record counts until the reading.
    now = clock.wall()
    # While a job does not run, its ledger says more than the past holders of its name.
    lines = explain(record, now, store, places) if present is None or record.holdings else []
    if present is not None:
        up = fleet.read_up(present, known, now)
        lines += [] if store.word == FREE or record.holdings else [said_of(store)]
        lines += explain_job(record, up.instances, now, instant, gone=up.is_gone(record), zone=zone)
    lines += [unknown] if unknown else []
    if request.on("json"):
        print_json(request, {**record_as_json(record, state_of(record, store)), "why": lines})
    else:
        print("\n".join(f"{request.name}: {printable(line)}" for line in lines))
    return OK


def _zone_of(record: Record) -> tzinfo | None:
    """The time zone of a job's schedule, in which its slots are named; None if it is no job."""
    try:
        return find_zone(str(read_job(record.fields)["timezone"]))
    except (KeyError, ConfigError):
        return None


def explain(
    record: Record, now: float, store: NameState = GRANTS, places: Sequence[str] = ()
) -> list[str]:
    """Explain a record, a sentence a line, the answer first; `now`: the wall clock's time.

    `store`: see state_of; `places`: the lines about the places of a pool of this name.
    """
    state = state_of(record, store)
    lines = list(_holder_lines(record, now))
    lines += _notice_lines(record, now)
    if state.word in (FREE, UNKNOWN, WAITING):
        lines.append(said_of(state) if state.why else "free: nobody holds it")
    if flaps := flapping(record, now):
        lines.append(f"{FLAPPING}: {flaps}")
    if state.word != FREE:
        lines += [
            f"slot {name}: used, for another {say_seconds(left)}"
            for name, left in record.slots.items()
        ]
    lines += beside_state(state, store)
    if places:
        held = sum(1 for place in places if ": held by " in place)
        lines.append(f"a pool of this name: {held} of the {len(places)} places on record are held")
    lines += [f"  {place}" for place in places]
    lines += _candidate_lines(record)
    lines += _history_lines(record)
    return lines


def _holder_lines(record: Record, now: float) -> Iterator[str]:
    if record.holdings and (share := share_of(record.holdings)):
        yield f"shared: {share}"
    for holding in record.holdings[:_SHARERS]:
        yield from _holding_lines(holding, now)
    if more := len(record.holdings[_SHARERS:]):
        yield f"and {more} more holders: see `status {record.key.name}`"


def _holding_lines(holding: Holding, now: float) -> Iterator[str]:
    if holding.foreign:
        yield (
            f"held: the value at its key is not ours ({holding.holder}); it counts as held until"
            " somebody removes it"
        )
        return
    since = ""
    if holding.held_for is not None:
        since = f" for {say_seconds(holding.held_for)}, since {iso(now - holding.held_for)}"
    yield f"held by {holding.holder}{since}, term {holding.token}"
    facts = facts_of(holding)
    if facts.get("state") == "stopping":
        yield f"{holding.holder} is stopping: its command was asked to end"
    if rank := rank_of(holding.meta):
        after = say_seconds(rank.step_down_after)
        yield f"priority {rank.priority}: steps down for a higher one, {after} into its term"
    if holding.remaining is not None:
        yield _ttl_line(holding, holding.remaining)
    if "isolation" in facts:
        where = f"its process is {facts.get('pid', '?')} on {facts.get('host', '?')}"
        yield f"{where}, isolation {facts['isolation']}"


def _ttl_line(holding: Holding, left: float) -> str:
    of = "" if holding.ttl is None else f" of {say_seconds(holding.ttl)}"
    if holding.ttl is not None and left < _NEARLY_OUT * holding.ttl:
        return (
            f"ttl: only {say_seconds(left)}{of} left: it has not renewed for a while; is the holder"
            " gone, frozen or cut off? Nobody else can have it before the ttl is out"
        )
    return f"ttl: {say_seconds(left)}{of} left; the holder renews it"


def _notice_lines(record: Record, now: float) -> Iterator[str]:
    if PAUSE in record.fields:
        when = read_notice(record.fields[PAUSE].value).get("when")
        since = f" since {iso(float(when))}" if isinstance(when, int | float) else ""
        yield f"paused{said_by(record, PAUSE)}{since}: nobody may hold it until `unpause`"
    if RESIGN in record.fields and record.holdings:
        notice = read_notice(record.fields[RESIGN].value)
        if notice.get("token") in [holding.token for holding in record.holdings]:
            to = f", to hand over to {notice['to']}" if notice.get("to") else ""
            yield f"its holder was {asked_to(record)}{to}{said_by(record, RESIGN)}"
    if record.closed_for > 0:
        left = say_seconds(record.closed_for)
        if record.reserved_for:
            yield f"reserved for {record.reserved_for} for another {left}"
        else:
            yield f"closed for another {left}: its last holder asked for that (--at-least-for)"


def _candidate_lines(record: Record) -> Iterator[str]:
    if record.candidates:
        names = ", ".join(candidate.holder for candidate in record.candidates)
        yield f"standing by: {names}"
    elif record.holdings:
        yield "nobody is known to stand by"


def _history_lines(record: Record) -> Iterator[str]:
    present, endings = {holding.token for holding in record.holdings}, endings_of(record)
    ended = [past for past in record.history if past.token not in present]
    for past in sorted(ended, key=lambda past: past.token, reverse=True)[:_LAST]:
        before = f"before: {past.holder} from {iso(past.started)}"
        how = f": {describe_ending(endings[past.token])}" if past.token in endings else ""
        if past.ended is None:
            yield f"{before}; its ttl ran out{how}"
        else:
            after = say_seconds(max(0.0, past.ended - past.started))
            yield f"{before}, released after {after}{how}"


# -- why a job ran or did not ----------------------------------------------------------------------

_LAST_RUNS = 3
# Seconds by which a start or an instance's clock may be off without being mentioned.
_CLOCK_OFF = 2.0


def explain_job(
    record: Record,
    up: Sequence[fleet.SignOfLife],
    now: float,
    at: float | None = None,
    *,
    gone: bool = False,
    zone: tzinfo | None = None,
) -> list[str]:
    """Explain a job, a sentence a line, the answer first; `at`: explain the slot of this instant.

    `gone`: no instance that is up has the job. `zone`: the time zone in which `at` was read.
    """
    facts = read_job(record.fields)
    lines = list(_slot_lines(record, at, now) if at is not None else _last_run_lines(record))
    if at is not None and zone is not None:
        there = datetime.fromtimestamp(at, zone).isoformat(sep=" ", timespec="seconds")
        lines.insert(0, f"about {there} ({facts.get('timezone')}, the zone of the job)")
    if PAUSE in record.fields:
        lines.append(f"paused{said_by(record, PAUSE)}: no slot runs until `unpause`")
    following = fleet.next_slot(record, now)
    if gone:
        lines.append(
            "no instance that is up has this job: it was removed from their files, or the"
            " instances that have it are down"
        )
    elif following is not None:
        coming = f"in {say_seconds(max(0.0, following - now))}"
        lines.append(f"schedule {facts.get('schedule')}: next {coming}, at {iso(following)}")
    elif facts.get("schedule"):
        lines.append(f"schedule {facts['schedule']}")
    if fleet.is_by_the_clock(facts):
        lines.append(describe_up(up, now) + ("" if up else ": nothing will run"))
    return lines


def _last_run_lines(record: Record) -> Iterator[str]:
    runs = fleet.runs_in(record)
    if not runs:
        yield "nothing is on record yet"
    for run in runs[: -_LAST_RUNS - 1 : -1]:
        yield from _run_lines(record, run)


def _run_lines(record: Record, run: SlotRecord) -> Iterator[str]:
    since = f" (and {run.count - 1} before it)" if run.count > 1 else ""
    what = f"slot {run.slot}{since}: {fleet.result_of(run)}"
    by = f" on {run.instance}" if run.instance else ""
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    why = f": {said}" if (said := fleet.why_and_who(run)) else ""
    yield what + by + attempt + why
    if run.started is not None and run.started - run.due > _CLOCK_OFF and run.slot[:1].isdigit():
        late, jitter = run.started - run.due, read_job(record.fields).get("jitter")
        planned = ""
        if isinstance(jitter, int | float) and late <= jitter + _CLOCK_OFF:
            planned = f", within its jitter of {say_seconds(jitter)}, as planned"
        yield f"  it began {say_seconds(late)} after its slot{planned}"
    yield from _clock_lines(record, run)


def _clock_lines(record: Record, run: SlotRecord) -> Iterator[str]:
    for past in record.history:
        if past.token == run.token and run.started is not None:
            off = run.started - past.started
            if abs(off) > _CLOCK_OFF:
                way = "ahead of" if off > 0 else "behind"
                yield (
                    f"  the clock of {run.instance} was {say_seconds(abs(off))} {way} the store's"
                )


def _slot_lines(record: Record, at: float, now: float) -> Iterator[str]:
    found = [run for run in fleet.runs_in(record) if run.since - 1 < at < run.due + 1]
    for run in found:
        yield from _run_lines(record, run)
    if found:
        return
    facts = read_job(record.fields)
    since, following = facts.get("since"), fleet.next_slot(record, at - 1)
    if isinstance(since, int | float) and at < since:
        yield f"its schedule is known only since {iso(since)}: before that, nothing was due"
    elif any(first <= at <= last for first, last in pruned_spans(record.fields)):
        yield "the ledger has forgotten that far back (keep_runs, keep_for)"
    elif following is None or abs(following - at) > 1:
        coming = f"; the next one after it was {iso(following)}" if following is not None else ""
        yield f"the schedule {facts.get('schedule')} has no slot at {iso(at)}{coming}"
    elif at > now:
        yield f"it is not due before {iso(at)}"
    elif now - at < MISSED_AFTER:
        yield (
            "nothing is on record yet: the instance that runs it records its start; it counts as"
            f" missed {say_seconds(MISSED_AFTER)} after its time"
        )
    else:
        yield (
            "nothing is on record: no instance was up, or none reached the store; the next"
            " instance that starts, or the sweep of those that run, records it as missed"
        )
