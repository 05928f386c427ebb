"""`history`: what became of a job's slots; of any other name, who held it when."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.ledger_text import result_of, run_as_json, runs_in, took, when_of
from incumbent.cli.parser import Request
from incumbent.cli.text import iso, past_as_json, print_json, since_of, table
from incumbent.clients import Client
from incumbent.cron.ledger import Run, running
from incumbent.durations import say_seconds
from incumbent.model import Past, Record
from incumbent.store_url import store_url
from incumbent.supervise.codes import OK

__all__ = ["command"]

_WITHIN = 2.0
_HEAD = ("STARTED", "DURATION", "HOLDER", "TOKEN")
_RUNS_HEAD = ("SLOT", "RESULT", "TOOK", "WHO", "WHY")


def command(request: Request) -> int:
    """See the module."""
    since = request.text("since")
    start = float("-inf") if since is None else since_of(since, clock.wall())
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = client.read(request.name, _WITHIN)
    runs = runs_in(record)
    if runs:
        _show_runs(request, record, [run for run in runs if run.due >= start])
        return OK
    past = [it for it in record.history if it.started >= start]
    if request.on("json"):
        print_json([past_as_json(it) for it in past])
    else:
        table([_HEAD, *(_row(record, it) for it in past)])
    return OK


# -- runs ----------------------------------------------------------------------------------------


def _show_runs(request: Request, record: Record, runs: list[Run]) -> None:
    if request.on("json"):
        print_json([run_as_json(run) for run in runs])
        return
    now = {run.slot for run in running(record)}
    table([_RUNS_HEAD, *(_run_row(run, running=run.slot in now) for run in runs)])
    if request.on("verbose"):
        for run in runs:
            if run.output:
                print(f"\n{when_of(run)}:\n{run.output}")


def _run_row(run: Run, *, running: bool) -> tuple[str, ...]:
    lasted = took(run)
    if running and run.started is not None:
        lasted = say_seconds(max(0.0, clock.wall() - run.started))
    return (when_of(run), result_of(run), lasted, run.instance or "-", run.why)


# -- holdings ------------------------------------------------------------------------------------


def _row(record: Record, past: Past) -> tuple[str, ...]:
    return (iso(past.started), _duration(record, past), past.holder, str(past.token))


def _duration(record: Record, past: Past) -> str:
    if past.ended is not None:
        return say_seconds(max(0.0, past.ended - past.started))
    held = any(holding.token == past.token for holding in record.holdings)
    return "holds it" if held else "ran out"
