"""`python -m tests.sim --profile X --seeds A:B [--trace]`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.profiles import PROFILES
from tests.sim.runner import SimulationFailure, replay, run

_STEP = 1000


def main(args: list[str] | None = None) -> int:
    """Exit code 0 if every history kept the rules, 1 with the history that did not."""
    asked = _parser().parse_args(args)
    names = list(PROFILES) if asked.profile == "all" else [asked.profile]
    if asked.trace:
        for name in names:
            _say(replay(name, asked.seeds.start))
        return 0
    try:
        for name in names:
            _run(name, asked.seeds)
    except SimulationFailure as failure:
        _say(str(failure))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--profile", default="all", choices=["all", *PROFILES])
    parser.add_argument("--seeds", type=_seeds, default=range(10_000), metavar="A:B")
    parser.add_argument("--trace", action="store_true", help="show the history of the first seed")
    return parser


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _run(name: str, seeds: range) -> None:
    started = time.perf_counter()
    done = acquired = lost = overlaps = 0
    for start in range(seeds.start, seeds.stop, _STEP):
        tally = run(name, range(start, min(start + _STEP, seeds.stop)))
        done += tally.histories
        acquired += tally.acquired
        lost += tally.lost
        overlaps += tally.overlaps
        took = time.perf_counter() - started
        _say(
            f"{name}: {done} histories ({done / took:.0f}/s), {acquired} leases, {lost} lost,"
            f" {overlaps} overlaps",
            end="\r" if sys.stdout.isatty() and start + _STEP < seeds.stop else "\n",
        )


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
