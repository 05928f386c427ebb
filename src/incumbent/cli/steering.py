"""`break` and `resign` end a holding; `pause` and `unpause` switch a name, or every job."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.operator import REQUEST_TIMEOUT, Operator, open_client, read_until
from incumbent.cli.parser import CommandRequest
from incumbent.cli.text import print_json, say
from incumbent.cron.fleet import CONTROL, jobs_of
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError
from incumbent.locks.clients import Client
from incumbent.model import ABSENT, ByVersion, Holding, Key, Parting, Record, Released, Stale
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.notices import BREAK, PAUSE, read_notice
from incumbent.runtime.link import link_for
from incumbent.stores.findings import said_by
from incumbent.supervise.codes import BUSY, OK

_SCAN_WITHIN = 5.0
_RESERVED = 5.0
"""Seconds for which a name is reserved for a successor, at most."""


def command(request: CommandRequest) -> int:
    switches = request.command in ("pause", "unpause")
    every_job = request.on("all")
    if switches and every_job == (request.text("name") is not None):
        raise ConfigError(f"{request.command}: give a NAME, or --all for every job", name="name")
    with open_client(request) as client:
        if every_job:
            return _every_job(request, Operator(request, client, "fields", "notices", name=CONTROL))
        operator = Operator(request, client, "notices")
        if switches:
            return _pause(operator) if request.command == "pause" else _unpause(operator)
        return _end_holding(request, operator)


# -- break and resign ------------------------------------------------------------------------------


def _end_holding(request: CommandRequest, operator: Operator) -> int:
    record, to = operator.read(), request.text_or("to", "")
    if request.text("to") is not None:
        _check_successor(operator.client, record, to)
    if not record.holdings:
        return operator.answer("free", f"nobody holds it{operator.hint(record)}")
    holding = record.holdings[0]
    if holding.foreign:
        line = f"the value at its key is not ours ({holding.holder}); left alone"
        return operator.answer("foreign", line, BUSY)
    breaks = request.command == "break"
    last = max(record.holdings, key=lambda one: one.token)
    # One notice is enough: for a shared lease it is also for all earlier holdings.
    # Also with --force: a holder that is alive learns of it by its next renewal, and stops.
    operator.ask_to_end(last, to, BREAK if breaks else "")
    if request.on("force"):
        return max(_remove(operator, one) for one in record.holdings)
    return _await_ends(operator, record, to, breaks=breaks)


def _check_successor(client: Client, record: Record, to: str) -> None:
    can = link_for(client).engine.capabilities
    if not (can.candidates and can.reservations):
        raise ConfigError("to: this store keeps no list of candidates", name="to")
    if any(holding.permits is not None for holding in record.holdings):
        raise ConfigError(
            f"to: {record.key.name!r} is a shared lease, and no holder can pass its part on to"
            f" {to!r}",
            name="to",
        )
    names = [candidate.holder for candidate in record.candidates]
    if to not in names:
        known = f"candidates are {', '.join(names)}" if names else "there are no candidates"
        what = f"to={to!r} is not a candidate for {record.key.name!r}: {known}"
        raise ConfigError(what, name="to")


def _remove(operator: Operator, holding: Holding) -> int:
    until, shared = clock.now() + REQUEST_TIMEOUT, holding.permits is not None
    how = Parting(shared=shared)
    outcome = operator.store.give(operator.key, holding.claim, holding.token, until, parting=how)
    if not isinstance(outcome, Released):
        return operator.answer("ended", f"{holding.holder} has released it meanwhile")
    left = say_seconds(holding.remaining or holding.ttl or TTL_DEFAULT)
    line = (
        f"removed; {holding.holder} may still act beside the next holder for up to {left},"
        " unless its next renewal tells it earlier"
    )
    return operator.answer("removed", line, holder=holding.holder)


def _await_ends(operator: Operator, record: Record, to: str, *, breaks: bool) -> int:
    """Wait for the end of all present holdings; later ones of a shared lease are left alone."""
    ended, outcome = [], "ended" if breaks else "resigned"
    for holding in record.holdings:
        record, how = operator.await_end(holding)
        if how is None:
            return operator.still_held(holding, "; --force?" if breaks else "")
        ended.append(f"{holding.holder} {how}")
    line = "; ".join(ended)
    # Either one exclusive holding was waited for, or several shared ones.
    if holding.permits is not None:
        return operator.answer(outcome, line)
    if to:
        # Wait until another holder leads, at most while the name is reserved for the successor.
        until = clock.now() + _RESERVED

        def led(record: Record) -> bool:
            return any(present.token != holding.token for present in record.holdings[:1])

        record = read_until(operator.client, operator.key.name, until, led)
    holder_now = record.holdings[0].holder if record.holdings else None
    line += f"; {holder_now} holds it now" if holder_now else ""
    if breaks:
        return operator.answer(outcome, line, holder=holding.holder)
    if not to or holder_now == to:
        return operator.answer(outcome, line, holder=holding.holder, leader=holder_now)
    line = f"{line}; {to} did not take it"
    return operator.answer("not_transferred", line, BUSY, holder=holding.holder, leader=holder_now)


# -- pause and unpause -----------------------------------------------------------------------------


def _pause(operator: Operator) -> int:
    hint = operator.hint(operator.read())
    # The first pause stays on record, with its author and reason.
    until = clock.now() + REQUEST_TIMEOUT
    outcome = operator.store.put(operator.key, PAUSE, operator.pause_value(), ABSENT, until)
    record = operator.read()
    before = f"was paused before{said_by(record, PAUSE)}" if isinstance(outcome, Stale) else ""
    if not record.holdings:
        return operator.answer("paused", before or f"paused; nobody held it{hint}")
    holding = record.holdings[0]
    if holding.foreign:
        line = f"paused; the value at its key is not ours ({holding.holder}) and stays"
        return operator.answer("paused", before or line)
    ended = before or "paused"
    for holding in record.holdings:
        _, how = operator.await_end(holding)
        if how is None:
            return operator.still_held(holding, "; it is paused for all others")
        ended += f"; {holding.holder} {how}"
    return operator.answer("paused", ended)


def _unpause(operator: Operator) -> int:
    record = operator.read()
    if PAUSE not in record.fields:
        return operator.answer("unpaused", f"was not paused{operator.hint(record)}")
    operator.store.put(operator.key, PAUSE, None, None, clock.now() + REQUEST_TIMEOUT)
    return operator.answer("unpaused", "may be held again")


def _every_job(request: CommandRequest, operator: Operator) -> int:
    """Pause or unpause every job; the switch of all jobs comes first, so that new jobs find it."""
    value = operator.pause_value(all=True) if request.command == "pause" else None
    guard = None if value is None else ABSENT
    operator.store.put(operator.key, PAUSE, value, guard, clock.now() + REQUEST_TIMEOUT)
    jobs = jobs_of(operator.client.scan("", _SCAN_WITHIN))
    changed = [job.key.name for job in jobs if _switch(operator, job, value)]
    done = f"{request.command}d"
    if request.on("json"):
        names = [job.key.name for job in jobs]
        print_json(request, {"outcome": done, "exit_code": OK, "changed": changed, "jobs": names})
        return OK
    kept = len(jobs) - len(changed)
    more = f"; {kept} left as they were" if kept else ""
    say(f"{len(changed)} of {len(jobs)} jobs {done}{more}")
    return OK


def _switch(operator: Operator, record: Record, value: bytes | None) -> bool:
    """Switch one job; True if it changed. A job that was paused by its name stays paused."""
    key, until = Key(record.key.namespace, record.key.name), clock.now() + REQUEST_TIMEOUT
    if value is not None:
        return not isinstance(operator.store.put(key, PAUSE, value, ABSENT, until), Stale)
    field = record.fields.get(PAUSE)
    if field is None or read_notice(field.value).get("all") is not True:
        return False
    guard = ByVersion(field.version)
    return not isinstance(operator.store.put(key, PAUSE, None, guard, until), Stale)
