"""`python -m tests.chaos.planted BUG ...`: the command line with a bug, for the judge to see.

`reading` and `with_seats` are no bugs: a reader of a read-write lock, whose writer is a plain
`run`, and an election with two seats, neither of which the command line has.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from incumbent import clock
from incumbent.cli import lead, run
from incumbent.cli.main import main
from incumbent.lease import LeaseMachine, Proof
from incumbent.model import UNLIMITED
from incumbent.supervise import child, guard
from incumbent.supervise.plan import GuardVerdict, WatchedTerm, judge

_LATE = 3.0
_seats = 2


def no_deadline_in_the_guard() -> None:
    """It kills when the supervisor is gone, and never because time is up."""

    def supervised_is_enough(watch: WatchedTerm, now: float, *, supervised: bool) -> GuardVerdict:
        return GuardVerdict.WAIT if supervised else judge(watch, now, supervised=False)

    guard.judge = supervised_is_enough  # type: ignore[attr-defined]


def killing_after_the_deadline() -> None:
    """Supervisor and guard are late by the same."""

    def late(machine: LeaseMachine, now: float) -> Proof:
        proof = prove(machine, now)
        return proof._replace(
            stop_at=proof.stop_at + _LATE, deadline=proof.deadline + _LATE, lost_reason=""
        )

    prove = LeaseMachine.proof
    LeaseMachine.proof = late  # type: ignore[assignment, method-assign]
    no_deadline_in_the_guard()


def giving_back_before_all_is_gone() -> None:
    """The lease goes when CMD ends; what it left behind lives on."""
    child.Child._nothing_left = lambda self: True  # type: ignore[method-assign]
    child.Child.close = lambda self: None  # type: ignore[method-assign]


def a_clock_that_misses_suspend() -> None:
    """Deadlines on CLOCK_MONOTONIC, which stands still while the machine sleeps."""
    clock.now = time.monotonic


def reading() -> None:
    """`incumbent run` beside all others who read."""
    run._permits_of = lambda request: UNLIMITED


def with_seats() -> None:
    """`incumbent lead` as a candidate for one of two seats."""
    lead.CandidateLock = partial(lead.CandidateLock, permits=_seats)  # type: ignore[assignment, attr-defined]


def one_permit_too_many() -> None:
    """A semaphore of two lets three in, and an election with two seats as well."""
    global _seats  # noqa: PLW0603 - each process has one of these
    _seats = 3
    run._permits_of = lambda request: 3


def a_writer_beside_others() -> None:
    """A writer asks as a reader does."""
    reading()


PLANTED: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        no_deadline_in_the_guard,
        killing_after_the_deadline,
        giving_back_before_all_is_gone,
        a_clock_that_misses_suspend,
        one_permit_too_many,
        a_writer_beside_others,
    )
}

if __name__ == "__main__":
    plants = {**PLANTED, "reading": reading, "with_seats": with_seats}
    line = sys.argv[1:]
    while line[0] in plants:
        plants[line.pop(0)]()
    sys.exit(main(line))
