"""`make chaos`, and one schedule again.

    python -m tests.chaos [--shared] [--seeds A:B] [--jobs N] [--results FILE] [--minutes M]
                          [--write PAGE] [--on STORE]
    python -m tests.chaos [--shared] --seed N | --schedule JSON [--shrink]

--shared: names that several may hold, instead of one leader. --on: all on this store, instead of
the one that is drawn; such results are counted and not kept. A line of JSON a finished seed goes
to FILE; seeds that are there are not run again. Exit code 1 if workers lived at once that may not,
or a term did not grow.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path

from tests.chaos import table
from tests.chaos.runner import NobodyLed, Outcome, run, shrink
from tests.chaos.schedule import Schedule, draw, draw_shared, from_text, may_overlap
from tests.support.servers import ServerFailed

RESULTS, SHARED_RESULTS = Path(".chaos.jsonl"), Path(".chaos-shared.jsonl")


def main() -> int:
    # As for ^C: the fleets that run are lived through and seen off, none is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = _parser().parse_args()
    asked.results = asked.results or (SHARED_RESULTS if asked.shared else RESULTS)
    if asked.seed is not None or asked.schedule:
        schedule = from_text(asked.schedule) if asked.schedule else _drawn(asked)(asked.seed)
        outcome = run(schedule)
        _say(shrink(outcome).report if asked.shrink and outcome.sight.wrong else outcome.report)
        return _code(outcome)
    code = _run_many(asked)
    if asked.write:
        table.write(Path(asked.write), table.read(asked.results), shared=asked.shared)
    return code


def _run_many(asked: argparse.Namespace) -> int:
    done = set() if asked.on else {result.seed for result in table.read(asked.results)}
    until = time.monotonic() + asked.minutes * 60
    seeds = (seed for seed in asked.seeds if seed not in done and time.monotonic() < until)
    left = map(_drawn(asked), seeds)
    code = finished = led = 0
    for finished, outcome in enumerate(_outcomes(left, asked.jobs), 1):
        if not asked.on:
            table.add(asked.results, table.result_of(outcome))
        code = max(code, _code(outcome))
        if _code(outcome):
            _say(outcome.report)
        elif finished % 100 == 0:
            _say(f"{finished} schedules")
        led += len(outcome.sight.terms)
    if asked.on:
        _say(f"{finished} schedules on {asked.on}, {led} terms")
    return code


def _outcomes(schedules: Iterator[Schedule], jobs: int) -> Iterator[Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            running |= {pool.submit(run, one) for one in islice(schedules, jobs - len(running))}
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                try:
                    yield future.result()
                except (NobodyLed, ServerFailed) as error:
                    # Nothing was judged: neither a pass nor an overlap, and tried again next time.
                    _say(f"not run: {error}")


def _drawn(asked: argparse.Namespace) -> Callable[[int], Schedule]:
    return partial(draw_shared if asked.shared else draw, on=asked.on)


def _code(outcome: Outcome) -> int:
    schedule = outcome.schedule
    return 1 if outcome.sight.wrong and not may_overlap(schedule, schedule.isolation) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(5000), metavar="A:B")
    parser.add_argument("--shared", action="store_true", help="semaphores, readers and writers")
    parser.add_argument("--on", default="", metavar="STORE", help="such as mysql")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--schedule", metavar="JSON")
    parser.add_argument("--shrink", action="store_true", help="and look for a smaller one")
    parser.add_argument("--jobs", type=int, default=8, help="schedules at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--write", metavar="PAGE", help="put the table of all results into a page")
    return parser


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
