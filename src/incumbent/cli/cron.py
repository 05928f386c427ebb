"""`cron FILE`: runs jobs by the clock; `--check` shows every problem, or the next runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.cli.receivers import webhook_of
from incumbent.cli.settings import health, number, policy_of
from incumbent.cli.text import print_json, say, source_of, table
from incumbent.cron.events import Events
from incumbent.cron.fields import steps_without_effect
from incumbent.cron.load import LoadedJobs, load_jobs
from incumbent.cron.schedule import CronSchedule, find_zone, slot_id
from incumbent.cron.serving import serve_jobs
from incumbent.cron.spec import JobSpec, Problem
from incumbent.cron.worker import MAX_RUNS, WorkerSettings
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError, StoreError
from incumbent.locks.options import LockSettings, default_holder
from incumbent.notify.outbox import read_secrets
from incumbent.serve.situation import Situation
from incumbent.stores.names import make_key
from incumbent.stores.url import store_url
from incumbent.supervise.codes import OK, UNPROVED, USAGE

if TYPE_CHECKING:
    from incumbent.cron.jobs import Jobs

_RUNS = 3
"""The number of runs of each job that `--check` shows."""
_HEAD = ("NEXT RUN", "UTC", "JOB", "SCHEDULE")
_DRAIN = "25s"
_MOST_RUNS = 100_000


def command(request: CommandRequest) -> int:
    if request.on("check"):
        return _check(request)
    try:
        return _serve_module(request) if _is_module(request.name) else _serve_file(request)
    except StoreError as error:
        say(f"the store could not be proved, nothing ran: {error}")
        return UNPROVED


# -- serving as one instance of a fleet, until TERM ------------------------------------------------


def _serve_file(request: CommandRequest) -> int:
    """Serve the jobs of a file. All instances of a fleet do so; each slot of each job runs once."""
    loaded = _load(request)
    _say_problems(request, loaded)
    if loaded.errors:
        return USAGE
    fleet = _fleet_from(request)

    events = Events(instance=fleet.holder)
    webhook = webhook_of(request)
    reread = partial(_reread, request)
    return serve_jobs(loaded.specs, fleet, reread, events, partial(health, request), webhook)


def _reread(request: CommandRequest) -> tuple[JobSpec, ...]:
    if os.path.exists(request.name) and not os.path.isfile(request.name):  # noqa: PTH110, PTH113
        # A pipe could be read at the start; now it would hold up the loop, and the runs with it.
        raise ConfigError(f"{request.name}: only a regular file is read again", name="file")
    again = _load(request)
    if again.errors:
        raise ConfigError("; ".join(map(str, again.errors)), name="file")
    return again.specs


def _load(request: CommandRequest) -> LoadedJobs:
    loaded = load_jobs(request.name, os.environ, clock.wall())
    if any(spec.notify is not None for spec in loaded.specs):
        try:
            read_secrets()
        except ConfigError as error:
            problems = (*loaded.problems, Problem(request.name, 1, 1, str(error)))
            return LoadedJobs((), problems)
    return loaded


def _fleet_from(request: CommandRequest) -> WorkerSettings:
    make_key(request.namespace, "x")
    policy_of(request)
    drain = parse_duration(request.text_or("drain", _DRAIN), "drain")
    holder = request.text_or("holder", default_holder())
    lock: LockSettings = {"holder": holder, "grace": request.text("grace")}
    if (ttl := request.text("ttl")) is not None:
        lock["ttl"] = ttl
    # The holder is also part of a field's name.
    if not 1 <= len(holder) <= 200 or not holder.isprintable() or " " in holder:
        raise ConfigError("holder: 1 to 200 printable characters without blanks", name="holder")
    return WorkerSettings(
        store_url(request.text("store")),
        request.namespace,
        holder,
        lock,
        request.text_or("isolate", "auto"),
        request.on("share_store"),
        drain,
        number(request, "max_runs", 1, _MOST_RUNS, MAX_RUNS),
    )


def _serve_module(request: CommandRequest) -> int:
    """Run the jobs of module:name; options that were given overrule the object's settings."""
    jobs = _find_jobs(request.name)
    ttl = policy_of(request).ttl
    for dest in ("max_runs", "notify"):
        if request.text(dest) is not None:
            text = f"{dest} is for a file of commands, not for functions"
            raise ConfigError(text, name=dest)
    store, holder = request.text("store"), request.text_or("holder", default_holder())
    situation = Situation(request.namespace, holder, ttl=ttl)
    jobs.overrule(
        store=None if store is None else store_url(store),
        namespace=request.text("namespace"),
        holder=holder,
        ttl=request.text("ttl"),
        grace=request.text("grace"),
        situation=situation,
    )
    with health(request, situation):
        return jobs.run(on_event=Events(instance=holder), drain=request.text_or("drain", _DRAIN))


def _is_module(name: str) -> bool:
    """Whether `name` is module:jobs, and not a file."""
    module, colon, attribute = name.partition(":")
    well_formed = (
        colon and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
    )
    return bool(well_formed) and not os.path.exists(name)  # noqa: PTH110 - any text is a name here


def _find_jobs(target: str) -> Jobs:
    module, _, name = target.partition(":")
    # As with `python -m`, modules in the working directory can be imported.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        place = source_of(error)
        text = f"{place}: {type(error).__name__}: {error}" if place else str(error)
        if module.endswith(".py") and Path(module).exists():
            text = f"a module is named without .py: {target.replace('.py:', ':')}"
        raise ConfigError(f"{target}: {text}", name="file") from error
    # Imported only here: it imports asyncio, which a file of commands does not need.
    from incumbent.cron.jobs import Jobs

    if not isinstance(found, Jobs):
        raise ConfigError(
            f"{target} is of type {type(found).__name__}, not an incumbent.Jobs", name="file"
        )
    return found


# -- the next runs ---------------------------------------------------------------------------------


def _check(request: CommandRequest) -> int:
    now = clock.wall()
    if _is_module(request.name):
        # The settings of these jobs were checked when the module was imported.
        specs = _find_jobs(request.name).specs
        loaded = LoadedJobs(specs, tuple(_warnings_of(specs)))
    else:
        loaded = _load(request)
    webhook_of(request)
    if request.on("json"):
        jobs = [_job_as_json(spec, now) for spec in loaded.specs]
        print_json(
            request, {"jobs": jobs, "problems": [asdict(problem) for problem in loaded.problems]}
        )
        return USAGE if loaded.errors else OK
    _say_problems(request, loaded)
    if loaded.errors:
        return USAGE
    runs = [(slot, spec) for spec in loaded.specs for slot in _next_slots(spec, now)]
    # The sort is stable: runs that are due at the same instant stay in the order of the file.
    runs.sort(key=lambda run: run[0])
    rows = [_HEAD]
    for slot, spec in runs:
        local = _local(slot, spec)
        at = f"{local:%a} {local.isoformat(sep=' ', timespec='seconds')} {spec.timezone}"
        rows.append((at, slot_id(slot), spec.name, spec.schedule.describe()))
    table(rows)
    commands = any(spec.argv is not None for spec in loaded.specs)
    if commands and not request.on("share_store") and not request.on("quiet"):
        say(
            "commands get no store (INCUMBENT_STORE=withheld:): one that takes a lock of its own"
            " needs --share-store"
        )
    return OK


def _warnings_of(specs: Iterable[JobSpec]) -> Iterator[Problem]:
    for spec in specs:
        if isinstance(spec.schedule, CronSchedule):
            path, _, line = spec.source.rpartition(":")
            for _, text in steps_without_effect(spec.schedule.expression):
                yield Problem(path, int(line or 1), 1, f"job {spec.name}: {text}", warning=True)


def _say_problems(request: CommandRequest, loaded: LoadedJobs) -> None:
    for problem in loaded.problems:
        if not (request.on("quiet") and problem.warning):
            say(str(problem))


def _next_slots(spec: JobSpec, now: float) -> Iterator[float]:
    for _ in range(_RUNS):
        slot = spec.schedule.next_after(now)
        if slot is None:
            return
        yield slot
        now = slot


def _local(slot: float, spec: JobSpec) -> datetime:
    return datetime.fromtimestamp(slot, find_zone(spec.timezone))


def _job_as_json(spec: JobSpec, now: float) -> dict[str, Any]:
    return {
        "name": spec.name,
        "schedule": spec.schedule.describe(),
        "timezone": spec.timezone,
        "source": spec.source,
        "next": [
            {"slot": slot_id(slot), "local": _local(slot, spec).isoformat()}
            for slot in _next_slots(spec, now)
        ],
    }
