"""Stores that race, and clients that break the rules of hosts, are caught: in 20 of 20 runs.

The same stores pass without a bug in test_memory, test_wired and test_wired_all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import pytest

from incumbent.testing.contract import Bench, StoreContract, World, races, sides
from incumbent.testing.contract.bench import ANSWER_WITHIN, DRIVERS
from incumbent.testing.contract.processes import A_DAY
from tests import tiers
from tests.contract import mutants_of_clients as clients
from tests.contract import mutants_of_races as racing
from tests.contract.wired import WireEngine, wire_world
from tests.contract.worlds import FaultyMemoryStore, MemoryWorld

pytestmark = pytest.mark.left(tiers.NET)

RUNS = 20

Case: TypeAlias = "tuple[str, dict[str, Any]]"
ONE_TAKER: Case = ("of_many_takers_one_is_granted", {"past": races.held_before})
ONE_OF_A_LOOP: Case = ("of_many_takers_through_one_client_one_is_granted", {})
GIVEN_MEANWHILE: Case = ("what_is_given_back_meanwhile_is_granted_once_and_stays_granted", {})
RACES: list[tuple[type[FaultyMemoryStore], str, dict[str, Any]]] = [
    (racing.ReadsThenWrites, *ONE_TAKER),
    (racing.TakesAreNotCompared, *ONE_TAKER),
    (racing.TakesAreNotCompared, ONE_TAKER[0], {"past": races.expired}),
    (racing.TakesAreNotCompared, ONE_TAKER[0], {"past": races.closed_before}),
    (racing.TakesAreNotCompared, "a_claim_that_is_taken_many_times_at_once_is_one_grant", {}),
    (
        racing.TakesAreNotCompared,
        "of_many_takers_as_many_are_granted_as_there_are_permits",
        {"past": races.held_before},
    ),
    (racing.TakesAreNotCompared, "of_many_takers_one_has_the_slot", {"past": races.held_before}),
    (racing.RenewalsAreNotCompared, *GIVEN_MEANWHILE),
    (racing.GivesAreNotCompared, *GIVEN_MEANWHILE),
    (
        racing.PutsAreNotCompared,
        "of_many_writers_with_the_same_guard_one_writes",
        {"past": "removed"},
    ),
    (
        racing.PutsAreNotCompared,
        "of_many_writers_with_the_same_guard_one_writes",
        {"past": "written"},
    ),
    (racing.PutsAreNotCompared, "who_holds_it_no_more_writes_nothing_over_the_next_holder", {}),
]
"""In memory, where nothing but Python's change of threads comes between a read and a write."""

NOTHING_SOONER = "nothing_is_free_sooner_for_a_clock_that_is_off"
IN_TIME = "everything_ends_in_time_whatever_a_clock_says"
IN_A_CHILD = "a_forked_child_uses_no_connection_of_its_parent"
TOO_LATE = "an_answer_that_came_too_late_answers_no_other_request"
CLIENTS: list[tuple[type[WireEngine], str, dict[str, Any]]] = [
    (clients.ReadsThenWrites, ONE_TAKER[0], {"past": races.fresh}),
    (clients.ReadsThenWrites, *ONE_TAKER),
    (clients.ReadsThenWrites, *ONE_OF_A_LOOP),
    (clients.ReadsThenWrites, "sixty_claims_that_join_a_line_at_once_all_stand_in_it", {}),
    (clients.ReadsThenWrites, "a_lease_costs_as_many_round_trips_as_declared", {}),
    (clients.RenewsOneByOne, "a_hundred_renewals_go_together", {}),
    (clients.RepeatsByItself, "a_release_that_a_store_repeats_by_itself_is_no_loss", {}),
    (clients.RepeatsByItself, "a_write_that_a_store_repeats_by_itself_is_not_stale", {}),
    (clients.TakesAnInterruptionForAnOutage, TOO_LATE, {"operation": "read"}),
    (
        clients.ResolvesWithoutADeadline,
        "a_name_that_nobody_resolves_delays_nobody_past_until",
        {"operation": "take"},
    ),
    (clients.CountsOnItsOwnClock, NOTHING_SOONER, {"offset": A_DAY}),
    (clients.CountsOnItsOwnClock, NOTHING_SOONER, {"offset": -A_DAY}),
    (clients.CountsOnItsOwnClock, IN_TIME, {"offset": A_DAY}),
    (clients.CountsOnItsOwnClock, "a_slot_is_kept_as_long_as_asked_whatever_a_clock_says", {}),
    (clients.CountsOnItsOwnClock, "a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says", {}),
    (clients.CountsOnItsOwnClock, "a_place_in_line_is_kept_whatever_a_clock_says", {}),
    (clients.ChildUsesItsParentsConnections, IN_A_CHILD, {}),
    (clients.UsesInterruptedConnectionsAgain, TOO_LATE, {"operation": "take"}),
    (clients.UsesInterruptedConnectionsAgain, TOO_LATE, {"operation": "renew"}),
    (clients.UsesInterruptedConnectionsAgain, TOO_LATE, {"operation": "read"}),
]
"""Behind a network."""

run_after_run = pytest.mark.parametrize("run", range(RUNS))
each_side = pytest.mark.parametrize("driver", DRIVERS)


def _name(of: object) -> str | None:
    if isinstance(of, dict):
        return "-".join(getattr(value, "__name__", str(value)) for value in of.values())
    return None


@contextmanager
def _bench(world: World, driver: str) -> Iterator[Bench]:
    with closing(Bench(world, DRIVERS[driver], ttl=10.5)) as bench:
        yield bench


@contextmanager
def _wired(kind: type[WireEngine], driver: str) -> Iterator[Bench]:
    threaded = kind is clients.ChildUsesItsParentsConnections
    with wire_world(kind, threaded=threaded) as world, _bench(world, driver) as bench:
        yield bench


def _is_caught(bench: Bench, case: str, how: dict[str, Any]) -> None:
    # Whatever becomes of a case that got another request's answer: it is red.
    with pytest.raises((Exception, pytest.fail.Exception)):
        getattr(StoreContract(), f"test_{case}")(bench, **how)


@run_after_run
@each_side
@pytest.mark.parametrize(("bug", "case", "how"), RACES, ids=_name)
def test_a_store_that_reads_and_then_writes_is_caught(
    bug: type[FaultyMemoryStore],
    case: str,
    how: dict[str, Any],
    driver: str,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Beside many busy processes threads that wait for each other use up most of it.
    monkeypatch.setattr(races, "RACE_FOR", 10 * races.RACE_FOR)
    with _bench(MemoryWorld(bug()), driver) as bench:
        _is_caught(bench, case, how)


@run_after_run
@each_side
@pytest.mark.parametrize(("bug", "case", "how"), CLIENTS, ids=_name)
def test_a_client_that_breaks_a_rule_is_caught(
    bug: type[WireEngine],
    case: str,
    how: dict[str, Any],
    driver: str,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A child that asks its parent's server gets no answer: this test need not wait for that.
    monkeypatch.setattr(sides, "REQUEST_WITHIN", 1.0 if case == IN_A_CHILD else ANSWER_WITHIN)
    with _wired(bug, driver) as bench:
        _is_caught(bench, case, how)
