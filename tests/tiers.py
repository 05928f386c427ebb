"""Which tests `make test` leaves to `make test-all`, and which run few at a time; why.

A test is named by its file below tests/, or by file and function. `kept` are the ids of
parametrisations that `make test` runs all the same (fnmatch); without any it leaves them all.
Regression tests of defects that were mended are never left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

THIN, REST = "not full", "full"


@dataclass(frozen=True)
class Left:
    """Tests that only `make test-all` runs."""

    test: str
    why: str
    kept: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    def names(self, item: pytest.Item) -> bool:
        return self.test in (_file(item), f"{_file(item)}::{_function(item)}")

    def leaves(self, item: pytest.Item) -> bool:
        return self.names(item) and not any(fnmatchcase(_case(item), kept) for kept in self.kept)


def _file(item: pytest.Item) -> str:
    inside = item.path.is_relative_to(TESTS)
    return item.path.relative_to(TESTS).as_posix() if inside else str(item.path)


def _function(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _case(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return call.id if call else ""


PROCESSES = "starts processes and looks at the clock: a deadline is the subject"
MANY = "starts many processes or threads at once: whatever runs beside it would be late"

TIMING: dict[str, str] = {
    "chaos/test_suspend.py": PROCESSES,
    "cli/test_exit_codes.py": PROCESSES,
    "cron/test_disproved.py": PROCESSES,
    "cron/test_processes.py": PROCESSES,
    "cron/test_workers.py": PROCESSES,
    "e2e/test_cotyledon.py": PROCESSES,
    "e2e/test_demo.py": PROCESSES,
    "e2e/test_disproved.py": PROCESSES,
    "e2e/test_draining.py": PROCESSES,
    "e2e/test_etcd_examples.py": PROCESSES,
    "e2e/test_faults.py": PROCESSES,
    "e2e/test_fleet_example.py": PROCESSES,
    "e2e/test_lead.py": PROCESSES,
    "e2e/test_once_job.py": PROCESSES,
    "e2e/test_quorum_jobs.py": PROCESSES,
    "e2e/test_telnet_leader.py": PROCESSES,
    "e2e/test_terminal.py": PROCESSES,
    "e2e/test_work.py": PROCESSES,
    "faults/test_exit_when_lost.py": PROCESSES,
    "faults/test_gevent.py": PROCESSES,
    "faults/test_guard.py": PROCESSES,
    "faults/test_guard_at_start.py": PROCESSES,
    "faults/test_redis_switchover.py": PROCESSES,
}
"""Files whose tests run after all others, few at a time: what they measure is not then the load."""

CROWD: dict[str, str] = {
    "chaos/test_chaos.py": MANY,
    "chaos/test_recovery.py": MANY,
    "combined/test_fleets.py": MANY,
    "faults/test_quorum_schedules.py": MANY,
    "faults/test_sqlite_lines.py": MANY,
    "faults/test_sqlite_processes.py": MANY,
    "unit/test_keeper_stress.py": MANY,
}
"""Files whose tests run at the very end, one at a time."""

SEEDS = "more seeds of the same worlds"
STORES = "other stores: the subject is above them; each store has such a test in `make test`"
PAIRS = "kept are twelve in which any two values of isolation, fault, worker and store meet"
FAULTS = "kept are those in which each store meets another fault, and each fault both workers"

LEFT: tuple[Left, ...] = (
    Left("chaos/test_chaos.py::test_no_random_schedule_has_two_workers_at_once", SEEDS, ("0",)),
    *(
        Left(f"cron/test_processes.py::{test}", STORES, (store,))
        for test, store in {
            "test_each_slot_runs_once_through_kills_and_freezes": "redis",
            "test_a_run_whose_instance_is_killed_is_lost_and_retried": "etcd",
            "test_a_run_longer_than_the_ttl_ends_well_while_its_instance_claims_other_slots": (
                "postgresql"
            ),
            "test_a_term_lets_runs_end_and_starts_no_other": "sqlite",
            "test_a_drain_that_takes_too_long_stops_the_runs": "redis",
            "test_a_hup_reads_the_jobs_anew_and_keeps_them_if_they_are_broken": "sqlite",
            "test_what_a_command_writes_and_how_it_ended_is_kept": "redis",
            "test_a_schedule_that_changes_lets_the_run_that_is_on_end": "sqlite",
            "test_a_worker_that_is_killed_leaves_nothing_behind_and_its_run_is_lost": "quorum",
        }.items()
    ),
    Left("cron/test_simulation.py::test_no_slot_runs_twice_whatever_comes_together", SEEDS, ("0",)),
    *(
        Left(f"e2e/test_cotyledon.py::{test}", STORES, (store,))
        for test, store in {
            "test_every_worker_gets_its_turn_and_none_prints_into_another_s": "sqlite",
            "test_a_killed_worker_is_restarted_and_its_lease_is_taken_over": "redis",
            "test_on_term_the_turn_ends_in_order_and_the_service_exits": "etcd",
        }.items()
    ),
    Left(
        "e2e/test_faults.py::test_the_worker_dies_inside_the_lease_when_the_store_is_away",
        FAULTS,
        (
            *("obedient-sqlite-silent", "obedient-redis-black hole", "obedient-etcd-one-way loss"),
            *("obedient-postgresql-killed", "stubborn-redis-killed", "stubborn-etcd-silent"),
            *("stubborn-postgresql-black hole", "stubborn-redis-one-way loss"),
        ),
    ),
    *(
        Left(f"e2e/test_faults.py::{test}", STORES, (store,))
        for test, store in {
            "test_a_short_outage_stops_nobody": "redis",
            "test_an_instance_that_is_killed_takes_its_worker_along": "etcd",
            "test_an_instance_that_was_frozen_past_its_lease_kills_at_once": "sqlite",
            "test_what_the_command_leaves_behind_is_stopped_before_the_release": "postgresql",
            "test_a_stopped_worker_keeps_its_lease_and_dies_when_the_store_is_away": "redis",
        }.items()
    ),
    *(
        Left(f"e2e/test_lead.py::{test}", STORES, (store,))
        for test, store in {
            "test_on_term_the_next_one_leads": "redis",
            "test_a_candidate_obeys_signals": "sqlite",
            "test_a_command_that_ends_gives_the_others_their_turn": "etcd",
            "test_a_holder_that_is_asked_to_resign_hands_over": "postgresql",
            "test_a_lease_is_handed_to_the_candidate_that_was_named": "redis",
            "test_nobody_works_while_it_is_paused": "sqlite",
            "test_a_silent_store_ends_the_term_inside_the_lease_and_one_leads_again": "etcd",
        }.items()
    ),
    *(
        Left(f"e2e/test_once_job.py::{test}", STORES, (store,))
        for test, store in {
            "test_of_five_instances_one_calls_and_four_say_who_did": "redis",
            "test_the_next_slot_runs_after_its_holder_was_killed": "etcd",
            "test_a_lock_inside_the_command_fails_closed": "postgresql",
        }.items()
    ),
    *(
        Left(f"e2e/test_work.py::{test}", STORES, (store,))
        for test, store in {
            "test_one_of_four_works_and_term_drains": "postgresql",
            "test_two_seats_are_held_by_two": "redis",
            "test_a_worker_that_is_killed_is_replaced": "etcd",
            "test_workers_drain_when_their_parent_is_killed": "sqlite",
            "test_a_command_that_does_not_exist_ends_the_service": "redis",
        }.items()
    ),
    Left(
        "faults/test_exit_when_lost.py",
        "longer leases and the calmer holder: a ttl of 15 s takes 20 s a round",
        ("1s-*", "3s-black_hole-busy", "3s-frozen_store-waits"),
    ),
    Left(
        "faults/test_guard.py::test_the_tree_is_dead_before_another_can_lead",
        PAIRS,
        (
            *(
                "pidns-supervisor killed---stubborn-sqlite",
                "pgroup-supervisor killed---daemon-etcd",
            ),
            *(
                "pidns-supervisor stopped---daemon-etcd",
                "pgroup-supervisor stopped---stubborn-sqlite",
            ),
            *("pidns-guard killed---stubborn-etcd", "pgroup-guard killed---daemon-sqlite"),
            *("pidns-both killed---daemon-sqlite", "pgroup-both killed---stubborn-etcd"),
            "pidns-guard stopped, supervisor killed---daemon-sqlite",
            "pgroup-guard stopped, supervisor killed---stubborn-etcd",
            "pidns-supervisor stopped, guard killed---stubborn-sqlite",
            "pidns-supervisor stopped, guard killed---daemon-etcd",
        ),
    ),
    Left("sim/test_simulator.py::test_no_history_breaks_a_rule", SEEDS, ("*-0",)),
    Left(
        "sim/test_simulator.py::test_a_store_that_forgets_lets_beliefs_overlap_and_tokens_grow",
        SEEDS,
        ("0",),
    ),
)


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves, and what does not run together with all others."""
    for item in items:
        if any(left.leaves(item) for left in LEFT):
            item.add_marker(pytest.mark.full)
        if _file(item) in TIMING:
            item.add_marker(pytest.mark.timing)
        if _file(item) in CROWD:
            item.add_marker(pytest.mark.crowd)


def stale(items: Iterable[pytest.Item]) -> list[str]:
    """Entries that name nothing in their file, which was collected whole."""
    cases: dict[str, list[str]] = {left.test: [] for left in LEFT}
    files = set()
    for item in items:
        files.add(_file(item))
        for name in (_file(item), f"{_file(item)}::{_function(item)}"):
            if name in cases:
                cases[name].append(_case(item))
    return [
        f"{left.test}[{kept}]"
        for left in LEFT
        if left.file in files
        for kept in (left.kept or ("*",))
        if not any(fnmatchcase(case, kept) for case in cases[left.test])
    ]
