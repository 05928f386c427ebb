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
from zlib import crc32

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

    def leaves(self, case: str) -> bool:
        """Whether this parametrisation of the test is not kept."""
        return not any(fnmatchcase(case, kept) for kept in self.kept)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _function(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _case(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return call.id if call else ""


PROCESSES = "starts processes and looks at the clock: a deadline is the subject"
BURNS = "keeps the interpreter busy on purpose, and has 0.1 s to be late"
MANY = "starts many processes or threads at once: whatever runs beside it would be late"

TIMING: dict[str, str] = {
    "chaos/test_suspend.py": PROCESSES,
    "cron/test_disproved.py": PROCESSES,
    "e2e/test_demo_in_time.py": PROCESSES,
    "e2e/test_disproved.py": PROCESSES,
    "e2e/test_faults.py": PROCESSES,
    "e2e/test_lead_in_time.py": PROCESSES,
    "e2e/test_telnet_leader.py": PROCESSES,
    "e2e/test_terminal.py": PROCESSES,
    "top/test_gevent.py": PROCESSES,
    "supervise/test_guard.py": PROCESSES,
    "supervise/test_guard_at_start.py": PROCESSES,
    "stores/redis/test_switchover.py": PROCESSES,
}
"""Files whose tests run after all others, few at a time: what they measure is not then the load."""

CROWD: dict[str, str] = {
    "chaos/test_chaos.py": MANY,
    "chaos/test_recovery.py": MANY,
    "e2e/test_sharing.py": MANY,
    "combined/test_fleets.py": MANY,
    "page/test_viewers.py": MANY,
    "top/test_exit_when_lost.py": BURNS,
    "stores/quorum/test_schedules.py": MANY,
    "stores/redis/test_fair_crowd.py": MANY,
    "stores/sqlite/test_lines.py": MANY,
}
"""Files whose tests run at the very end, one at a time."""

SEEDS = "more seeds of the same worlds"
STORES = "other stores: the subject is above them, and each has such a test in `make test`"
SIDES = "the other side (blocking or asyncio), signal or isolation, which goes the same way"
PAIRS = "kept are twelve in which any two values of isolation, fault, worker and store meet"
MEET = "kept are those in which each store, each fault and each worker is met"
LONG = "long for what it shows beside the tests that are kept"
CRASHES = "the other way to lose a server, which goes the same way"
BROWSER = (
    "needs a browser, which is larger than all servers; the page is read as HTML in `make test`"
)
FORMS = "more forms of the same mistake: unit tests of names, durations and URLs have them all"
NET = "shows that the tests would see a defect: it changes with the tests, not with the product"

FRAMEWORKS = "needs web frameworks and queues, in an environment of their own"

# What of contention, crowds and clients is left where the same cases run on Redis and in memory. A
# store must have a case that is named here, or the name is stale.
_HELD_BEFORE = ("*-held_before",)
_RACES: dict[str, tuple[str, ...]] = {
    "test_of_many_takers_one_is_granted": _HELD_BEFORE,
    "test_of_many_takers_through_one_client_one_is_granted": (),
    "test_nobody_is_granted_a_closed_name": (),
    "test_of_many_takers_one_has_the_slot": _HELD_BEFORE,
    "test_of_many_writers_with_the_same_guard_one_writes": ("*-removed",),
    "test_three_hundred_fields_are_all_kept_beside_a_lease": (),
}
_SHARED_RACES: dict[str, tuple[str, ...]] = {
    "test_of_many_takers_as_many_are_granted_as_there_are_permits": _HELD_BEFORE,
}
_CLIENTS: dict[str, tuple[str, ...]] = {
    "test_nothing_is_free_sooner_for_a_clock_that_is_off": ("*-ahead",),
    "test_everything_ends_in_time_whatever_a_clock_says": (),
    "test_a_slot_is_kept_as_long_as_asked_whatever_a_clock_says": (),
    "test_a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says": (),
    "test_an_answer_that_came_too_late_answers_no_other_request": ("*-take", "*-give"),
    "test_a_name_that_nobody_resolves_delays_nobody_past_until": ("*-take",),
}

# (file, why, {test: what `make test` keeps}), or for a whole file "*".
_TABLE: tuple[tuple[str, str, dict[str, tuple[str, ...]]], ...] = (
    (
        "chaos/test_chaos.py",
        SEEDS,
        {"test_no_random_schedule_has_one_worker_too_many": ("0",)},
    ),
    (
        "chaos/test_chaos.py",
        NET,
        {
            "test_the_judge_sees_every_planted_bug": (),
            "test_the_same_schedules_without_a_bug_have_no_overlap": (),
        },
    ),
    (
        "chaos/test_recovery.py",
        LONG,
        {"test_after_a_single_fault_one_leads_again": ()},
    ),
    (
        "chaos/test_suspend.py",
        SIDES,
        {
            "test_a_command_that_slept_past_its_lease_is_killed_when_it_wakes": (
                *("supervisor-pidns", "guard-pgroup"),
            )
        },
    ),
    (
        "cli/test_bad_input.py",
        FORMS,
        {
            "test_a_name_outside_the_alphabet": ("a b",),
            "test_a_ttl_that_is_none": ("nan",),
            "test_an_option_that_cannot_work": ("options7*", "options9*"),
            "test_a_store_that_cannot_be_meant": ("redis:*port", "withheld*"),
            "test_a_variable_that_is_about_one_start_is_named_and_changes_none": ("ONCE_PER",),
            "test_a_black_hole_gets_69_within_the_deadline": ("command0-*", "command3-*"),
            "test_an_address_that_never_answers_gets_69_within_the_deadline": ("command1-*",),
            "test_a_campaign_that_cannot_work": ("words0-*",),
            "test_a_duration_of_wait_without_its_sign_shows_it": ("words0",),
            "test_an_answer_that_cannot_be_written_is_told_in_one_line": ("status",),
            "test_a_foreign_value_counts_as_held_and_stays": ("write0",),
            "test_a_store_that_is_named_and_empty_is_refused": ("named0",),
        },
    ),
    (
        "cli/test_own_store.py",
        LONG,
        {"test_the_template_keeps_the_contract_by_its_one_fixture": ()},
    ),
    (
        "cli/test_own_store.py",
        FORMS,
        {
            "test_a_command_that_needs_more_of_a_store_says_what_to_use_instead": (
                *("cron*", "*--slot*", "break*"),
            )
        },
    ),
    (
        "cli/test_exit_codes.py",
        SIDES,
        {
            "test_a_signal_ends_the_wait_and_leaves_nothing_behind": ("2", "15"),
            "test_the_commands_own_code_is_untouched": ("0", "75"),
            "test_an_end_that_the_ledger_cannot_be_told_in_time_is_lost_here_and_there": ("7",),
        },
    ),
    (
        "cli/test_said_and_granted.py",
        STORES,
        {"test_what_is_said_of_a_name_on_redis_is_what_a_take_gets": ("full",)},
    ),
    ("combined/test_fleets.py", LONG, {"*": ()}),
    (
        "combined/test_worlds.py",
        NET,
        {"test_the_plans_find_what_was_wrong_in_the_code_of_then": ()},
    ),
    (
        "cron/test_processes.py",
        STORES,
        {
            "test_each_slot_runs_once_through_kills_and_freezes": ("redis",),
            "test_a_run_whose_instance_is_killed_is_lost_and_retried": ("etcd",),
            "test_a_run_longer_than_the_ttl_ends_well_while_its_instance_claims_other_slots": (
                "postgresql",
            ),
            "test_a_term_lets_runs_end_and_starts_no_other": ("sqlite",),
            "test_a_drain_that_takes_too_long_stops_the_runs": ("redis",),
            "test_a_hup_reads_the_jobs_anew_and_keeps_them_if_they_are_broken": ("sqlite",),
            "test_what_a_command_writes_and_how_it_ended_is_kept": ("redis",),
            "test_a_schedule_that_changes_lets_the_run_that_is_on_end": ("sqlite",),
            "test_a_worker_that_is_killed_leaves_nothing_behind_and_its_run_is_lost": ("quorum",),
        },
    ),
    (
        "cron/test_simulation.py",
        SEEDS,
        {
            "test_no_slot_runs_twice_whatever_comes_together": ("0", "1"),
            "test_each_slot_runs_at_most_once_and_is_on_record": ("0",),
            "test_clocks_one_to_two_hours_behind_run_nothing_that_the_ledger_has_forgotten": ("1",),
        },
    ),
    (
        "cron/test_simulation.py",
        NET,
        {
            "test_a_planted_bug_is_seen": (),
            "test_a_planted_bug_that_needs_wrong_clocks_is_seen_by_chance": (),
            "test_without_a_bug_the_same_plans_show_no_fault": (),
            "test_a_simulation_that_remembers_answers_shows_what_one_without_shows": (),
        },
    ),
    (
        "coming_from/test_rows.py",
        "installs the libraries of which `make test` has no other use",
        {
            "test_both_calls_of_a_row_do_what_the_page_says": (
                *("redis-py:*", "python-redis-lock:*", "redlock-ng:*", "filelock:*"),
            )
        },
    ),
    ("release/test_packages.py", LONG, {"*": ()}),
    (
        "fencing/test_frozen.py",
        STORES,
        {
            "test_the_late_write_of_a_frozen_holder_is_refused": (
                *("sqlite", "postgresql", "redis", "file", "http"),
            ),
            "test_a_frozen_holder_that_nobody_replaced_may_write": ("sqlite",),
        },
    ),
    (
        "deploy/test_promtool.py",
        "promtool is brought by `make test-all` alone: it is 19 MB",
        {
            "*": (),
        },
    ),
    (
        "e2e/test_cotyledon.py",
        STORES,
        {
            "test_every_worker_gets_its_turn_and_none_prints_into_another_s": ("sqlite",),
            "test_a_killed_worker_is_restarted_and_its_lease_is_taken_over": ("redis",),
            "test_on_term_the_turn_ends_in_order_and_the_service_exits": ("etcd",),
        },
    ),
    (
        "e2e/test_demo.py",
        SIDES,
        {"test_an_ended_demo_ends_its_processes_and_removes_its_folder": ("15-*",)},
    ),
    (
        "e2e/test_etcd_examples.py",
        LONG,
        {"test_the_client_stops_inside_the_lease_without_a_majority_and_comes_back": ()},
    ),
    (
        "e2e/test_faults.py",
        MEET,
        {
            "test_the_worker_dies_inside_the_lease_when_the_store_is_away": (
                *("obedient-sqlite-silent", "obedient-redis-black hole"),
                *("obedient-etcd-one-way loss", "stubborn-redis-killed"),
                *("stubborn-etcd-silent", "stubborn-postgresql-black hole"),
            )
        },
    ),
    (
        "e2e/test_faults.py",
        STORES,
        {
            "test_a_short_outage_stops_nobody": ("redis",),
            "test_an_instance_that_is_killed_takes_its_worker_along": ("etcd",),
            "test_an_instance_that_was_frozen_past_its_lease_kills_at_once": ("sqlite",),
            "test_what_the_command_leaves_behind_is_stopped_before_the_release": ("postgresql",),
            "test_a_stopped_worker_keeps_its_lease_and_dies_when_the_store_is_away": ("redis",),
        },
    ),
    ("e2e/test_fleet_example.py", LONG, {"*": ()}),
    (
        "e2e/test_lead.py",
        STORES,
        {
            "test_on_term_the_next_one_leads": ("redis",),
            "test_a_candidate_obeys_signals": ("sqlite",),
            "test_a_command_that_ends_gives_the_others_their_turn": ("etcd",),
            "test_a_holder_that_is_asked_to_resign_hands_over": ("postgresql",),
            "test_a_lease_is_handed_to_the_candidate_that_was_named": ("redis",),
            "test_the_instance_of_higher_priority_takes_over_once_it_is_there": ("postgresql",),
        },
    ),
    (
        "e2e/test_lead_in_time.py",
        STORES,
        {
            "test_nobody_works_while_it_is_paused": ("sqlite",),
            "test_a_silent_store_ends_the_term_inside_the_lease_and_one_leads_again": ("etcd",),
        },
    ),
    (
        "e2e/test_once_job.py",
        STORES,
        {
            "test_of_five_instances_one_calls_and_four_say_who_did": ("redis",),
            "test_the_next_slot_runs_after_its_holder_was_killed": ("etcd",),
            "test_a_lock_inside_the_command_fails_closed": ("postgresql",),
        },
    ),
    (
        "e2e/test_quorum_jobs.py",
        LONG,
        {"test_each_slot_of_a_job_runs_once_while_servers_are_killed_and_emptied": ()},
    ),
    (
        "e2e/test_quorum_jobs.py",
        "the other servers, which are equals",
        {"test_of_five_instances_one_runs_it_whatever_server_is_down": ("1",)},
    ),
    (
        "e2e/test_sharing.py",
        STORES,
        {
            "test_who_is_killed_at_work_leaves_room_and_nobody_is_beside_too_many": (
                *("redis-permits", "etcd-permits"),
            ),
        },
    ),
    (
        "e2e/test_telnet_leader.py",
        SIDES,
        {
            "test_the_program_closes_its_session_before_another_opens_one": ("killed-*",),
            "test_told_to_end_the_leader_hangs_up_and_the_next_one_follows_at_once": ("leader.py",),
        },
    ),
    (
        "e2e/test_work.py",
        STORES,
        {
            "test_one_of_four_works_and_term_drains": ("postgresql",),
            "test_two_permits_are_held_by_two": ("redis",),
            "test_a_worker_that_is_killed_is_replaced": ("etcd",),
            "test_workers_drain_when_their_parent_is_killed": ("sqlite",),
            "test_a_command_that_does_not_exist_ends_the_service": ("redis",),
        },
    ),
    (
        "stores/etcd/test_cluster.py",
        CRASHES,
        {
            "test_a_client_acts_again_soon_after_its_endpoint_went": ("frozen",),
            "test_a_coroutine_acts_again_soon_after_its_endpoint_went": ("killed",),
            "test_a_waiter_whose_member_went_hears_of_the_release_elsewhere": ("frozen-*",),
            "test_a_lost_leader_costs_an_election_and_no_lease": ("killed",),
            "test_a_client_of_a_leader_that_is_cut_off_goes_to_the_others": ("parted*",),
            "test_without_a_quorum_a_holder_stops_believing_inside_its_lease": ("frozen",),
        },
    ),
    (
        "stores/etcd/test_foreign.py",
        LONG,
        {
            "test_beside_two_loops_of_etcdctl_ours_gets_its_share_and_nobody_overlaps": (),
            "test_who_waits_no_more_takes_its_ticket_away_though_it_waits_for_others": (),
        },
    ),
    (
        "stores/etcd/test_line.py",
        LONG,
        {
            "test_if_the_first_two_in_line_die_the_others_wait_until_their_places_end": (),
            "test_two_hundred_waiters_in_processes_threads_and_tasks_get_it_for_few_requests": (),
        },
    ),
    (
        "stores/redis/test_failovers.py",
        NET,
        {"test_a_rule_that_is_left_out_shows": ("an answer*", "a master*")},
    ),
    (
        "stores/redis/test_spared.py",
        STORES,
        {
            "test_who_has_heard_that_the_first_in_line_looked_asks_nobody": (
                *("one-async", "sentinel-sync", "cluster-async"),
            )
        },
    ),
    (
        "stores/redis/test_valkey.py",
        STORES,
        {"test_after_a_failover_only_the_new_master_is_believed": ()},
    ),
    (
        "top/test_lock_delay.py",
        STORES,
        {
            "test_a_failed_holder_keeps_the_name_closed_for_the_delay_beyond_its_belief": (
                *("sqlite", "redis", "etcd"),
            )
        },
    ),
    (
        "top/test_elections_stores.py",
        STORES,
        dict.fromkeys(
            (
                "test_metadata_a_proclamation_and_the_end_reach_an_observer_in_time",
                "test_a_transfer_goes_to_the_named_one_of_three_candidates",
                "test_a_reservation_for_a_candidate_that_is_gone_ends_by_itself",
                "test_a_resignation_wakes_the_next_candidate",
                "test_who_stands_by_beside_a_body_takes_over_at_once_behind_one_that_left",
            ),
            ("memory", "sqlite", "redis"),
        ),
    ),
    (
        "top/test_multi_stores.py",
        STORES,
        {
            "test_two_processes_that_name_them_in_another_order_neither_overlap_nor_deadlock": (
                *("sqlite", "etcd"),
            ),
            **dict.fromkeys(
                (
                    "test_all_names_are_held_or_none_is",
                    "test_a_waiter_gets_all_of_them_when_the_last_is_free",
                    "test_while_it_waits_for_a_name_those_behind_it_are_left_to_others",
                    "test_tasks_of_one_loop_never_overlap",
                ),
                ("memory", "sqlite", "redis", "etcd", "postgresql", "mysql"),
            ),
        },
    ),
    (
        "top/test_priority.py",
        STORES,
        {
            "test_the_preferred_one_takes_over_from_a_leader_that_ends_its_work": (
                *("redis", "postgresql", "etcd"),
            )
        },
    ),
    ("mutants/test_draw.py", NET, {"test_the_same_seed_draws_the_same_changes": ()}),
    (
        "top/test_exit_when_lost.py",
        "longer leases, and a fault and a kind of holder that are met beside another",
        {"*": ("1s-black_hole-busy", "1s-frozen_store-waits")},
    ),
    (
        "top/test_gevent.py",
        STORES,
        {
            "test_a_hub_that_is_kept_does_not_cost_the_lease": (),
            "test_a_hub_that_is_kept_does_not_cost_a_lease_on_etcd": ("etcd",),
            "test_a_hub_that_is_kept_does_not_cost_a_lease_on_mysql": (),
            "test_a_hub_that_is_kept_does_not_cost_a_lease_on_postgresql": (),
        },
    ),
    (
        "supervise/test_guard.py",
        PAIRS,
        {
            "test_the_tree_is_dead_before_another_can_lead": (
                *("pidns-supervisor killed---stubborn-sqlite",),
                *("pgroup-supervisor killed---daemon-etcd",),
                *("pidns-supervisor stopped---daemon-etcd",),
                *("pgroup-supervisor stopped---stubborn-sqlite",),
                *("pidns-guard killed---stubborn-etcd", "pgroup-guard killed---daemon-sqlite"),
                *("pidns-both killed---daemon-sqlite", "pgroup-both killed---stubborn-etcd"),
                "pidns-guard stopped, supervisor killed---daemon-sqlite",
                "pgroup-guard stopped, supervisor killed---stubborn-etcd",
                "pidns-supervisor stopped, guard killed---stubborn-sqlite",
                "pidns-supervisor stopped, guard killed---daemon-etcd",
            )
        },
    ),
    (
        "supervise/test_guard.py",
        SIDES,
        {
            "test_a_process_group_has_nobody_to_kill_it_when_both_are_away": ("*worker0",),
            "test_with_supervisor_and_guard_stopped_the_command_outlives_the_lease": ("*pidns",),
            "test_a_guard_that_is_stopped_alone_stops_nobody": ("*pgroup",),
            "test_a_guard_that_was_stopped_heeds_the_proofs_in_its_queue": ("*pidns",),
            "test_the_death_of_the_guard_is_a_fault_of_ours_and_gives_the_lease_back": ("*pgroup",),
            "test_a_thawed_supervisor_says_that_the_lease_is_over": ("*pidns",),
            "test_a_guard_leaves_with_a_supervisor_that_is_killed": ("*pgroup",),
            "test_one_guard_serves_many_terms_that_signals_end_in_order": ("*pidns",),
        },
    ),
    (
        "supervise/test_guard_at_start.py",
        SIDES,
        {
            "test_a_guard_that_does_not_answer_lets_nothing_run_and_the_lease_is_given_back": (
                *("ahead-*-pidns", "late-*-pgroup"),
            ),
            "test_a_candidate_whose_guard_froze_ends_when_it_is_elected": ("pidns",),
            "test_a_candidate_replaces_the_waiting_process_that_was_killed": ("pgroup",),
            "test_a_candidate_leaves_neither_process_nor_folder": ("15-pgroup", "9-pidns"),
            "test_a_supervisor_that_is_killed_leaves_no_folder": ("pidns",),
            "test_in_a_container_everything_is_dead_before_another_can_lead": (
                *("supervisor-9-options2", "supervisor-19-options0", "guard-9-options1"),
            ),
        },
    ),
    (
        "stores/etcd/test_sharing.py",
        FORMS,
        {"test_of_hundreds_at_rest_one_that_is_deleted_is_gone_at_the_next_renewal": ("8", "299")},
    ),
    (
        "stores/mysql/test_bad_input.py",
        FORMS,
        {
            "test_a_row_that_was_edited_by_hand_is_granted_to_nobody_and_left_as_it_is": (
                *("expires=0", "version=0", "rest='x'"),
            ),
            "test_a_rest_that_another_version_wrote_is_granted_to_nobody": ("incumbent2*",),
            "test_a_value_beside_a_record_that_cannot_be_read_is_said": ("slot",),
            "test_a_clock_that_stands_still_in_a_statement_is_refused": (),
            "test_a_binary_log_of_statements_is_refused": (),
            "test_a_field_that_is_larger_than_a_packet_is_refused_before_it_is_sent": (),
            "test_a_record_that_has_grown_too_large_keeps_what_it_has": (),
            "test_a_proxy_that_commits_each_statement_is_found": (),
        },
    ),
    (
        "stores/mysql/test_incarnation.py",
        LONG,
        {
            "test_leases_outlive_a_server_that_was_killed": (),
            "test_a_replica_is_refused_until_it_is_promoted_and_then_waits": (),
        },
    ),
    (
        "stores/mysql/test_network.py",
        SIDES,
        {
            "test_a_network_that_swallows_delays_nobody_past_the_deadline": (
                *("sync-blackhole", "async-drop_replies"),
            ),
            "test_a_connection_that_dies_between_two_calls_is_no_error": ("sync",),
            "test_many_threads_share_few_connections": (),
            "test_a_child_that_was_forked_in_the_middle_of_a_request_leaves_its_answer_alone": (),
        },
    ),
    (
        "stores/mysql/test_options.py",
        FORMS,
        {
            "test_a_malformed_url_is_refused_without_being_shown": ("*@x@*", "*:port*"),
            "test_a_client_shows_its_certificate": (),
            "test_a_certificate_of_another_host_is_refused": (),
        },
    ),
    ("stores/mysql/test_same_as_model.py", SEEDS, {"*": ()}),
    (
        "stores/mysql/test_server.py",
        SIDES,
        {
            "test_a_lease_outlives_the_end_of_every_session": ("sync",),
            "test_a_session_that_the_server_ended_for_idling_is_opened_again": (),
            "test_a_server_that_shuts_down_and_comes_back_is_used_again": (),
            "test_a_statement_that_an_operator_kills_is_in_doubt_and_was_rolled_back": ("QUERY",),
            "test_no_connection_left_is_an_outage_that_passes": (),
            "test_a_row_that_is_locked_for_a_moment_is_waited_for": (),
            "test_a_table_that_is_locked_for_a_backup_delays_for_a_second_at_most": (),
        },
    ),
    (
        "stores/mysql/test_waiting.py",
        LONG,
        {
            "test_a_hundred_tasks_wait_without_a_thread_each": (),
            "test_a_waiter_whose_loop_is_blocked_keeps_no_other_waiting": (),
            "test_a_line_is_not_lost_over_a_restart": (),
        },
    ),
    (
        "stores/postgresql/test_bad_input.py",
        FORMS,
        {
            "test_a_malformed_url_is_refused_without_being_shown": ("*ses/ame*", "*:port*"),
            "test_missing_rights_are_final_and_said": ("usage",),
        },
    ),
    (
        "stores/postgresql/test_failover.py",
        SIDES,
        {
            "test_of_several_hosts_the_primary_is_found": ("sync-standby *", "async-primary *"),
            "test_a_first_host_that_is_frozen_leaves_time_for_the_second": ("async",),
        },
    ),
    (
        "stores/quorum/test_schedules.py",
        SEEDS,
        {"test_no_random_schedule_lets_two_prove_it_or_a_token_shrink": ("0",)},
    ),
    (
        "stores/quorum/test_schedules.py",
        NET,
        {
            "test_the_judge_sees_two_holders_where_a_single_master_forgets": (),
            "test_two_of_three_wiped_in_turn_give_two_holders_only_without_the_quarantine": (),
        },
    ),
    (
        "stores/quorum/test_same_as_model.py",
        SEEDS,
        {"test_the_servers_together_answer_as_the_model_does": ("0",)},
    ),
    (
        "stores/redis/test_same_as_model.py",
        SEEDS,
        {"test_the_scripts_answer_as_the_model_does": ("0",)},
    ),
    (
        "stores/redis/test_lines.py",
        SIDES,
        {
            (
                "test_one_that_is_frozen_when_its_turn_comes_costs_its_heartbeat"
                "_and_believes_nothing"
            ): ("sync-default", "async-fair"),
            (
                "test_frozen_processes_ahead_cost_one_heartbeat_together"
                "_however_many_places_they_have"
            ): ("1-3-default", "2-1-fair"),
        },
    ),
    (
        "stores/redis/test_renewals.py",
        SIDES,
        {"test_threads_that_burn_cpu_cost_no_lease": ("4-*",)},
    ),
    (
        "stores/sqlite/test_lines.py",
        SIDES,
        {
            "test_none_of_four_greedy_processes_keeps_the_others_waiting": ("asynchronous",),
            "test_waiters_that_died_or_froze_keep_a_free_name_from_nobody_for_long": ("19",),
        },
    ),
    (
        "stores/redis/test_switchover.py",
        SIDES,
        {
            "test_what_a_waiter_hears_from_the_old_master_is_no_lease": ("sync",),
            "test_after_a_switchover_waiters_listen_at_the_new_master": ("async",),
        },
    ),
    (
        "quorum/test_simulator.py",
        SEEDS,
        {"test_no_history_breaks_a_rule": ("4-*",)},
    ),
    (
        "quorum/test_simulator.py",
        NET,
        {
            "test_a_rule_that_is_left_out_shows": (
                *("a minority is enough", "no uptime quarantine", "promises are not kept"),
            )
        },
    ),
    (
        "recorded/test_recorded.py",
        "20 s an engine; `python -m tests.recorded` shows all of one that was changed",
        {"test_the_stores_see_the_same_requests_as_recorded": ()},
    ),
    ("shards/test_failing_servers.py", LONG, {"*": ()}),
    (
        "shards/test_real_processes.py",
        STORES,
        {
            "test_64_shards_over_8_processes_survive_kills_freezes_and_departures": ("redis",),
        },
    ),
    (
        "shards/test_stores.py",
        STORES,
        {"*": ("sqlite", "redis", "etcd")},
    ),
    (
        "shards/test_simulated.py",
        SEEDS,
        {"*": ("0", "")},
    ),
    (
        "sim/test_simulator.py",
        SEEDS,
        {
            "test_no_history_breaks_a_rule": ("*-0",),
            "test_a_store_that_forgets_lets_beliefs_overlap_and_tokens_grow": ("0",),
        },
    ),
    (
        "cron/test_against_croniter.py",
        "the other zones: what is known to differ and a change of clocks are kept",
        {
            "test_schedules_agree_with_croniter_but_for_what_is_known": (
                *("*-Europe/Berlin", "[*]/15 2 *", "1-59/7 *", "23 0-23/2 *", "0 0 L *"),
            )
        },
    ),
    ("support/test_support_etcd.py", NET, {"*": ()}),
    (
        "contract/test_redis.py",
        SIDES,
        {
            **_SHARED_RACES,
            "test_of_many_takers_one_has_the_slot": _HELD_BEFORE,
            "test_of_many_writers_with_the_same_guard_one_writes": ("*-removed",),
            "test_three_hundred_fields_are_all_kept_beside_a_lease": ("blocking",),
            "test_nothing_is_free_sooner_for_a_clock_that_is_off": (
                "blocking-ahead",
                "async-behind",
            ),
            "test_everything_ends_in_time_whatever_a_clock_says": (
                "async-ahead",
                "blocking-behind",
            ),
            "test_a_slot_is_kept_as_long_as_asked_whatever_a_clock_says": ("async",),
            "test_a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says": ("blocking",),
            "test_a_place_in_line_is_kept_whatever_a_clock_says": ("async",),
            "test_a_name_that_nobody_resolves_delays_nobody_past_until": (
                "*-take",
                "*-wait_change",
            ),
        },
    ),
    ("contract/test_etcd.py", STORES, {**_RACES, **_CLIENTS}),
    ("contract/test_postgresql.py", STORES, {**_RACES, **_SHARED_RACES, **_CLIENTS}),
    (
        "contract/test_mysql.py",
        STORES,
        {
            **_RACES,
            **_SHARED_RACES,
            **_CLIENTS,
            "test_a_pause_survives_a_restart": (),
            "test_a_restart_ends_nothing_where_leases_survive_it": ("blocking",),
            "test_a_wipe_ends_what_was_believed": (),
            "test_a_wipe_ends_what_was_shared": (),
            "test_fields_survive_a_restart": (),
            "test_the_token_grows_over_a_restart": (),
            "test_versions_do_not_come_back_after_a_restart": (),
        },
    ),
    ("contract/test_quorum.py", STORES, {**_RACES, **_CLIENTS}),
    ("contract/test_sqlite.py", STORES, {**_RACES, **_SHARED_RACES}),
    ("contract/test_failovers.py", LONG, {"*": ()}),
    (
        "testing/test_clients.py",
        SIDES,
        {
            "test_every_clock_of_the_other_process_is_off": ("behind",),
            "test_its_deadlines_are_those_of_the_asker": ("ahead",),
            "test_errors_come_from_there_and_it_starts_again_after_a_close": ("ahead",),
        },
    ),
    ("contract/test_wired_all.py", LONG, {"*": ()}),
    (
        "contract/test_bites_at_once.py",
        SEEDS,
        {
            "test_a_store_that_reads_and_then_writes_is_caught": ("*-0",),
            "test_a_client_that_breaks_a_rule_is_caught": ("*-0",),
        },
    ),
    ("page/test_browser.py", BROWSER, {"*": ()}),
    (
        "docs/test_blocks.py",
        "starts what the other pages start",
        {"test_the_blocks_of_a_page_run_in_order": ("docs/index.md", "docs/sqlite.md")},
    ),
    (
        "docs/test_readme.py",
        "starts the fleet of the README, and waits for a Redis that has just started",
        {"test_the_shell_of_the_readme_runs_from_top_to_bottom": ()},
    ),
    ("cookbook/test_django.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_django_mariadb.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_fastapi.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_flask.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_queues.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_schedulers.py", FRAMEWORKS, {"*": ()}),
    ("cookbook/test_scripts.py", FRAMEWORKS, {"*": ()}),
    ("release/test_first_hour.py", "installs what a new user would", {"*": ()}),
    (
        "tooz_driver/test_locks.py",
        STORES,
        {
            "test_a_lock_is_renewed_without_a_heartbeat": ("redis",),
            "test_a_lock_that_is_broken_is_lost_before_another_has_it": ("redis",),
            "test_the_lock_of_a_dead_process_goes_to_the_next_one_after_its_ttl": ("redis",),
        },
    ),
    (
        "tooz_driver/test_leaders.py",
        STORES,
        {
            "test_a_leader_that_an_operator_broke_leads_no_longer_and_is_elected_anew": ("redis",),
            "test_after_a_crash_another_leads_once_the_ttl_is_over": ("redis",),
            "test_on_other_stores_it_is_the_same": (),
        },
    ),
    ("docs/test_site.py", "needs MkDocs and a browser; `make docs` builds the site", {"*": ()}),
    ("page/test_viewers.py", LONG, {"*": ()}),
    ("stores/postgresql/test_mutants.py", NET, {"*": ("a_stranger_*", "the_token_*")}),
)

TURNS = frozenset(
    {
        *("contract/test_etcd.py", "contract/test_postgresql.py", "contract/test_quorum.py"),
        "contract/test_mysql.py",
        *("contract/test_redis_layouts.py", "contract/test_redis_valkey.py"),
        *("contract/test_sqlite.py", "contract/test_wired.py"),
    }
)
"""Contract suites of which `make test` runs each case once: which side, and which loop of asyncio,
depends on its name.

Redis and the specification in memory run each case on both sides, and on both loops.
"""

LEFT: tuple[Left, ...] = tuple(
    Left(file if test == "*" else f"{file}::{test}", why, kept)
    for file, why, tests in _TABLE
    for test, kept in tests.items()
)


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves, and what does not run together with all others."""
    by_test = {left.test: left for left in LEFT}
    for item in items:
        file = _file(item)
        named = (by_test.get(file), by_test.get(f"{file}::{_function(item)}"))
        if _is_other_side(item) or any(left and left.leaves(_case(item)) for left in named):
            item.add_marker(pytest.mark.full)
        if file in TIMING:
            item.add_marker(pytest.mark.timing)
        if file in CROWD:
            item.add_marker(pytest.mark.crowd)


def _is_other_side(item: pytest.Item) -> bool:
    """Whether a case of a contract suite has its turn on the other side."""
    if _file(item) not in TURNS:
        return False
    sides = ("blocking", "async", "uvloop")
    side = "uvloop" if item.get_closest_marker("uvloop") else _case(item).partition("-")[0]
    turn = sides[crc32(_function(item).encode()) % 3]
    return side in sides and side != turn


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
