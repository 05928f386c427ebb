"""Thousands of random faults on real quorums, and one schedule again.

    python -m tests.quorum.campaign [--seeds A:B] [--jobs N] [--results FILE] [--minutes M]
    python -m tests.quorum.campaign --seed N | --schedule JSON [--shrink]

A line of JSON a finished seed goes to FILE; seeds that are there are not run again. Exit code 1
if two could prove a lease at once, a token did not grow, or nobody ever got the lease again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.quorum.fleet import Fleet, NobodyLed, Outcome
from tests.quorum.schedule import Schedule, draw, from_text, smaller

RESULTS = Path(".quorum.jsonl")
_BATCH = 60
"""Schedules after which masters and contenders are made anew."""


def run_all(
    schedules: Iterable[Schedule], jobs: int, hear: Callable[[Schedule, Outcome | Exception], None]
) -> None:
    """Each job has masters and contenders of its own; `hear` gets each outcome in its turn."""
    todo: dict[int, queue.SimpleQueue[Schedule]] = {3: queue.SimpleQueue(), 5: queue.SimpleQueue()}
    for schedule in schedules:
        todo[schedule.members].put(schedule)
    lock = threading.Lock()

    def work(first: int) -> None:
        for members in (first, 8 - first):
            _drain(todo[members], members, lock, hear)

    threads = [threading.Thread(target=work, args=(5 if at % 3 == 2 else 3,)) for at in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        # What runs is lived through and seen off; nothing more begins.
        for left in todo.values():
            while _next(left) is not None:
                pass
        raise


def _drain(
    todo: queue.SimpleQueue[Schedule],
    members: int,
    lock: threading.Lock,
    hear: Callable[[Schedule, Outcome | Exception], None],
) -> None:
    fleet: Fleet | None = None
    try:
        while (schedule := _next(todo)) is not None:
            fleet = fleet or Fleet(members)
            outcome = _run(fleet, schedule)
            with lock:
                hear(schedule, outcome)
            if isinstance(outcome, Exception):
                # Whatever state it left: not that of the next schedule.
                fleet.close()
                fleet = None
    finally:
        if fleet is not None:
            fleet.close()


def _run(fleet: Fleet, schedule: Schedule) -> Outcome | Exception:
    try:
        return fleet.run(schedule)
    except Exception as error:  # noqa: BLE001 - an outcome like others: it is reported
        return error


def _next(todo: queue.SimpleQueue[Schedule]) -> Schedule | None:
    try:
        return todo.get_nowait()
    except queue.Empty:
        return None


def run_one(schedule: Schedule) -> Outcome:
    """On masters of its own."""
    with Fleet(schedule.members) as fleet:
        return fleet.run(schedule)


def shrink(outcome: Outcome, tries: int = 3) -> Outcome:
    """A smaller schedule that goes wrong as well, if a few tries of each find one."""
    for less in smaller(outcome.schedule):
        for _ in range(tries):
            if (again := run_one(less)).wrong:
                return shrink(again, tries)
    return outcome


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = _parser().parse_args()
    if asked.seed is not None or asked.schedule:
        outcome = run_one(from_text(asked.schedule) if asked.schedule else draw(asked.seed))
        _say(shrink(outcome).report if asked.shrink and outcome.wrong else outcome.report)
        return bool(outcome.wrong)
    return _run_many(asked)


def _run_many(asked: argparse.Namespace) -> int:
    done = finished_seeds(asked.results)
    until = time.monotonic() + asked.minutes * 60
    seeds = [seed for seed in asked.seeds if seed not in done]
    wrong: Counter[str] = Counter()
    began = time.monotonic()
    for start in range(0, len(seeds), _BATCH):
        if time.monotonic() > until:
            break
        batch = [draw(seed) for seed in seeds[start : start + _BATCH]]
        run_all(batch, asked.jobs, lambda one, out: keep(asked.results, wrong, one, out))
    _say(f"{dict(wrong)} in {time.monotonic() - began:.0f} s")
    return int(any(wrong[kind] for kind in ("wrong", "stuck")))


def keep(
    path: Path, counts: Counter[str], schedule: Schedule, outcome: Outcome | Exception
) -> None:
    """Count it, say what is wrong with it, and write it down."""
    verdict = _verdict(outcome)
    counts[verdict] += 1
    if isinstance(outcome, Exception):
        _say(f"{verdict}: {outcome!r}, seed {schedule.seed}: {schedule.text}")
        if verdict != "stuck":
            # Nothing was judged: tried again next time.
            return
        result = {"seed": schedule.seed, "verdict": verdict, "kinds": schedule.kinds}
    else:
        if outcome.wrong:
            _say(outcome.report)
        result = {
            "seed": schedule.seed,
            "verdict": verdict,
            "members": schedule.members,
            "kinds": schedule.kinds,
            "leases": len(outcome.sight.spans),
            "recovery": round(outcome.recovery, 3),
            "errors": outcome.errors,
        }
    _add(path, json.dumps(result))


def _verdict(outcome: Outcome | Exception) -> str:
    if isinstance(outcome, NobodyLed):
        return "stuck"
    if isinstance(outcome, Exception):
        return "not run"
    return "wrong" if outcome.wrong else "fine"


def finished_seeds(path: Path) -> set[int]:
    """Those that were judged."""
    if not path.exists():
        return set()
    return {int(json.loads(line)["seed"]) for line in path.read_text().splitlines()}


def _add(path: Path, line: str) -> None:
    # One write a line: a run that was ended leaves no half of one behind.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, (line + "\n").encode())
    finally:
        os.close(fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.quorum.campaign", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(3000), metavar="A:B")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--schedule", metavar="JSON")
    parser.add_argument("--shrink", action="store_true", help="and look for a smaller one")
    parser.add_argument("--jobs", type=int, default=4, help="schedules at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
