"""`cron module:jobs`: the Jobs object of a module, as `jobs.run()` would run it."""

from __future__ import annotations

import sys
from importlib import import_module

from incumbent.cli.exits import UNPROVED, say
from incumbent.cli.parser import Request
from incumbent.cli.settings import lock_times
from incumbent.cron.events import Events
from incumbent.cron.jobs import Jobs
from incumbent.errors import ConfigError, StoreError
from incumbent.options import default_holder
from incumbent.store_url import store_url

__all__ = ["find_jobs", "serve_module"]


def serve_module(request: Request) -> int:
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
        return jobs.run(said=Events(instance=holder), drain=request.text("drain") or "25s")
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
    if not isinstance(found, Jobs):
        raise ConfigError(f"{target} is a {type(found).__name__}, no incumbent.Jobs", name="file")
    return found
