"""What is known of drawn changes that no test noticed: why none can, or which test does since."""

from __future__ import annotations

from tests.mutants.change import Change

_MOMENT = "differs at one instant of the clock only"

_WHY: dict[tuple[str, str], str] = {
    (
        "cron/fleet.py",
        (
            "now - self._set_written_at >= _WRITE_SET_EVERY"
            " -> (now - self._set_written_at > _WRITE_SET_EVERY)"
        ),
    ): _MOMENT,
    (
        "net/subscriptions.py",
        "_now() >= min(until, waiter.recheck_at) -> (_now() > min(until, waiter.look_at))",
    ): _MOMENT,
    (
        "cron/zygote.py",
        "signum < signal.SIGRTMIN -> (signum <= signal.SIGRTMIN)",
    ): "a signal that nobody sends",
    ("election.py", "30 -> 31"): "the bound beside it is reached long before",
    ("serve/http.py", "True -> False"): "the pages are closed before the process ends",
    (
        "stores/etcd/renewing.py",
        "len(states) > kv.BATCH // 2 -> (len(states) >= kv.BATCH // 2)",
    ): "the same leases are looked at, in other groups",
    ("stores/quorum/take.py", "1e6 -> 1000001.0"): "a pause that is a millionth shorter",
    ("stores/redis/records.py", "3 -> 4"): "a holder is quoted, and has no blank",
    ("supervise/guard.py", "0 -> 1"): "descriptor 0 is standard input, and never a process",
    ("supervise/kernel.py", "4 -> 5"): "nobody reads the fifth number",
    (
        "cli/run.py",
        "ending.seconds >= _HINT_BELOW -> (ending.seconds > _HINT_BELOW)",
    ): _MOMENT,
    ("locks/inside.py", "4096 -> 4097"): "it reads to the end in pieces of any size",
    ("supervise/launch.py", "0 -> 1"): "descriptor 0 is standard input, and never a pipe of ours",
    ("supervise/launch.py", "65536 -> 65537"): "it reads to the end in pieces of any size",
}
"""By file and change."""

_SINCE: dict[tuple[str, str], str] = {
    (
        "cron/agenda.py",
        "self._plan(name, pending) -> pass",
    ): "test_looks_of_one_job_come_each_in_its_time",
    (
        "cron/executor.py",
        "self._port.now() + _WITHIN -> (self._port.now() - _WITHIN)",
    ): "test_a_job_that_is_met_while_all_is_paused_has_a_second_to_be_paused_too",
    (
        "cron/executor.py",
        "True -> False",
    ): "test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over",
    (
        "cron/jobs.py",
        "False -> True",
    ): "test_a_function_that_waits_for_its_retry_is_not_begun_again_once_its_instance_stops",
    (
        "cron/jobs.py",
        "self._wait_until(clock.now() + drain) -> pass",
    ): "test_a_stop_lets_a_coroutine_end_within_the_drain",
    (
        "cron/judging.py",
        (
            "text and text.isprintable() and len(text) < 60"
            " -> (text or text.isprintable() or len(text) < 60)"
        ),
    ): "test_why_names_nothing_that_a_stranger_wrote_beside_its_lease",
    (
        "cron/worker.py",
        "spec.on_failure or () -> (spec.on_failure and ())",
    ): "test_it_is_told_how_the_run_ended_and_what_it_says_comes_before_its_end",
    (
        "locks/elections.py",
        "refuse_generator(work) -> pass",
    ): "test_run_refuses_a_generator_before_anything_is_asked",
    (
        "locks/leases.py",
        "self.valid -> (not (self.valid))",
    ): "test_a_lease_shows_whether_it_is_valid",
    (
        "stores/etcd/kv.py",
        (
            'wall - number_in(fields.get("since"), wall)'
            " -> (wall + number_in(fields.get('since'), wall))"
        ),
    ): "test_a_holder_has_held_since_it_wrote_so_by_the_wall_clock",
    (
        "stores/etcd/renewing.py",
        (
            "(yield from self._verify_each(batch)) and proved"
            " -> ((yield from self._verify_each(batch)) or proved)"
        ),
    ): "test_of_a_batch_nothing_is_proved_of_which_a_part_is_not",
    (
        "stores/quorum/changes.py",
        "holding + len(self.quorum.names) -> (holding - len(self.quorum.names))",
    ): "test_of_one_node_that_says_so_nobody_knows_yet_and_a_larger_ballot_may_tell",
    (
        "stores/quorum/changes.py",
        'No("high", now=int(now)) -> None',
    ): "test_a_node_whose_clock_is_behind_the_ballot_tells_its_time",
    (
        "stores/quorum/take.py",
        "False -> True",
    ): "test_a_used_slot_refuses_for_certain_only_if_the_lease_was_given_back",
    (
        "stores/redis/subscription.py",
        "_now() >= until -> (not (_now() >= until))",
    ): "test_a_server_that_confirms_no_subscription_is_given_up_in_time",
    ("cron/schedule.py", "3 -> 4"): "test_fixed_times_end",
    (
        "net/subscriptions.py",
        "self._end_waits() -> pass",
    ): "test_who_relied_on_a_reader_that_was_interrupted_has_to_look",
    (
        "stores/sqlite/engine.py",
        "where is not None -> (not (where is not None))",
    ): "test_doctor_warns_where_a_file_excludes_nobody_else",
    (
        "supervise/campaign.py",
        "clock.now() < until -> (not (clock.now() < until))",
    ): "test_the_pause_between_terms_is_waited_for_and_ends_at_a_signal",
    (
        "supervise/guard.py",
        "self._init.kill() -> pass",
    ): "test_what_is_left_in_a_namespace_is_killed_when_its_term_ends",
    (
        "supervise/kernel.py",
        "True -> False",
    ): "test_a_call_that_failed_says_why",
}
"""By file and change, the test that was written for it."""


def why(change: Change) -> str:
    """Empty where the change should be noticed."""
    return _WHY.get(_key(change), "")


def since(change: Change) -> str:
    """The test that was written for a change that none had noticed; else empty."""
    return _SINCE.get(_key(change), "")


def _key(change: Change) -> tuple[str, str]:
    return change.file, change.text.partition(": ")[2]
