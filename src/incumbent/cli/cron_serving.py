"""`cron` without `--check`: this instance's part in the fleet, until TERM."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from incumbent import clock
from incumbent.cli.parser import Request
from incumbent.cli.settings import lock_times
from incumbent.cli.text import say
from incumbent.cron.events import Events
from incumbent.cron.load import load_jobs
from incumbent.cron.serving import serve_jobs
from incumbent.cron.spec import JobSpec
from incumbent.cron.worker import MAX_RUNS, Fleet
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError, StoreError
from incumbent.options import LockSettings, default_holder
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.supervise.codes import UNPROVED, USAGE

if TYPE_CHECKING:
    from incumbent.cron.jobs import Jobs

__all__ = ["find_jobs", "is_module", "max_runs", "serve"]

_DRAIN = "25s"
_MOST_RUNS = 100_000


def serve(request: Request) -> int:
    """Every instance of the fleet runs this; each slot of each job runs once."""
    if is_module(request.name):
        return _serve_module(request)
    loaded = load_jobs(request.name, os.environ, clock.wall())
    for problem in loaded.problems:
        if not (request.on("quiet") and problem.warning):
            say(str(problem))
    if loaded.errors:
        return USAGE
    fleet = fleet_from(request)
    events = Events(instance=fleet.holder)
    try:
        return serve_jobs(loaded.specs, fleet, lambda: _reread(request), events)
    except StoreError as error:
        say(f"the store could not be proved, nothing ran: {error}")
        return UNPROVED


def is_module(name: str) -> bool:
    """Whether it is module:jobs and not a file."""
    module, colon, attribute = name.partition(":")
    looks = colon and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
    return bool(looks) and not os.path.exists(name)  # noqa: PTH110 - any text is a name here


def fleet_from(request: Request) -> Fleet:
    """What the options say; raises ConfigError."""
    make_key(request.namespace, "x")
    lock_times(request)
    drain = parse_duration(request.text("drain") or _DRAIN, "drain")
    holder = request.text("holder") or default_holder()
    lock: LockSettings = {"holder": holder, "grace": request.text("grace")}
    if (ttl := request.text("ttl")) is not None:
        lock["ttl"] = ttl
    _check_holder(holder)
    return Fleet(
        store_url(request.text("store")),
        request.namespace,
        holder,
        lock,
        request.text("isolate") or "auto",
        request.on("share_store"),
        drain,
        max_runs(request.text("max_runs")),
    )


def max_runs(text: str | None) -> int:
    """Of --max-runs; raises ConfigError."""
    if text is None:
        return MAX_RUNS
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_RUNS:
        most = f"a number from 1 to {_MOST_RUNS}"
        raise ConfigError(f"--max-runs={text[:40]!r}: {most}", name="max_runs")
    return int(text)


def _check_holder(holder: str) -> None:
    # It is part of a field's name too.
    if len(holder) > 200 or not holder.isprintable() or " " in holder:
        raise ConfigError("holder: 1 to 200 printable characters without blanks", name="holder")


def _reread(request: Request) -> tuple[JobSpec, ...]:
    loaded = load_jobs(request.name, os.environ, clock.wall())
    if loaded.errors:
        raise ConfigError("; ".join(map(str, loaded.errors)), name="file")
    return loaded.specs


# -- module:jobs -----------------------------------------------------------------------------------


def _serve_module(request: Request) -> int:
    """Run its jobs until TERM; options that were given overrule the object's."""
    jobs = find_jobs(request.name)
    lock_times(request)
    if request.text("max_runs") is not None:
        raise ConfigError(
            "--max-runs is for a file of commands, not for functions", name="max_runs"
        )
    holder = request.text("holder") or default_holder()
    jobs.overrule(
        store=store_url(request.text("store")) if request.text("store") is not None else None,
        namespace=request.text("namespace"),
        holder=holder,
        ttl=request.text("ttl"),
        grace=request.text("grace"),
    )
    try:
        return jobs.run(said=Events(instance=holder), drain=request.text("drain") or _DRAIN)
    except StoreError as error:
        say(f"the store could not be proved, nothing ran: {error}")
        return UNPROVED


def find_jobs(target: str) -> Jobs:
    """The object that `module:name` names; raises ConfigError."""
    module, _, name = target.partition(":")
    # As `python -m` does: what lies in the working directory can be named.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{target}: {error}", name="file") from error
    # It brings asyncio, which a file of commands does without.
    from incumbent.cron.jobs import Jobs

    if not isinstance(found, Jobs):
        raise ConfigError(f"{target} is a {type(found).__name__}, no incumbent.Jobs", name="file")
    return found
