"""Combined faults by the thousand, and one plan again.

    python -m tests.combined [--world W] [--seeds A:B] [--minutes M] [--jobs N] [--results FILE]
                             [--write PAGE]
    python -m tests.combined --world W --seed N | --plan JSON [--shrink]

A line of JSON a finished seed goes to FILE; seeds that are there are not run again. Exit code 1
if any history breaks a rule.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.combined import table
from tests.combined.plan import Plan, from_text, to_text
from tests.combined.worlds import WORLDS, World
from tests.history.checker import Broken
from tests.quorum.fleet import ContenderDied, NobodyLed, Starved
from tests.support.servers import ServerFailed

RESULTS = Path(".combined.jsonl")
_SHOWN = 5


def main() -> int:
    """See the module."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = _parser().parse_args()
    if asked.seed is not None or asked.plan:
        return _one(asked)
    until = time.monotonic() + asked.minutes * 60
    code = 0
    for name in [asked.world] if asked.world else WORLDS:
        code = max(code, _many(WORLDS[name], asked, until))
    if asked.write:
        table.write(asked.write, table.read(asked.results))
    return code


def _one(asked: argparse.Namespace) -> int:
    world = WORLDS[asked.world or "leases"]
    plan = from_text(asked.plan) if asked.plan else world.draw(asked.seed)
    broken = world.play(plan)
    if broken and asked.shrink:
        plan = world.shrink(plan, broken[0].rule)
        broken = world.play(plan)
    _say(report(world, plan, broken))
    return int(bool(broken))


def _many(world: World, asked: argparse.Namespace, until: float) -> int:
    done = {result.seed for result in table.read(asked.results) if result.world == world.name}
    seeds = asked.seeds or range(200 if world.real else 5000)
    wrong = 0
    with ThreadPoolExecutor(asked.jobs if world.real else 1) as pool:
        todo = [seed for seed in seeds if seed not in done]
        for plan, broken in pool.map(lambda seed: _play(world, seed, until), todo):
            if broken is None:
                continue
            table.add(asked.results, table.result_of(world.name, plan, broken))
            if broken:
                wrong += 1
                _say(report(world, plan, broken))
    _say(f"{world.name}: {wrong} histories broke a rule")
    return int(wrong > 0)


def _play(world: World, seed: int, until: float) -> tuple[Plan, list[Broken] | None]:
    plan = world.draw(seed)
    if time.monotonic() > until:
        return plan, None
    try:
        return plan, world.play(plan)
    except (NobodyLed, Starved, ContenderDied, ServerFailed, OSError) as error:
        # Nothing was judged: neither a pass nor a failure, and tried again next time.
        _say(f"not run: {error!r}, {world.name} seed {seed}")
        return plan, None


def report(world: World, plan: Plan, broken: list[Broken]) -> str:
    """What broke, in which plan, and how to see it again."""
    said = "\n".join(f"  {one}" for one in broken[:_SHOWN]) or "  nothing broken"
    again = f"python -m tests.combined --world {world.name} --plan '{to_text(plan)}'"
    return f"{world.name}: {plan}\n{said}\nagain: {again}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.combined", description=__doc__)
    parser.add_argument("--world", choices=list(WORLDS))
    parser.add_argument("--seeds", type=_seeds, metavar="A:B")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plan", metavar="JSON")
    parser.add_argument("--shrink", action="store_true", help="and look for a smaller one")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    return parser


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
