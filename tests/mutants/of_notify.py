"""Mutations of notifications."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_m = in_area("supervision")
_OUTBOX, _TERMS, _JOBS = (
    *("tests/notify/test_outbox.py", "tests/notify/test_terms.py", "tests/notify/test_jobs.py"),
)

MUTATIONS: tuple[Mutation, ...] = (
    _m(
        "a leader without a proof pings",
        "supervise/news.py",
        "if self._runs and view.leading and view.healthy else None",
        "if self._runs and view.healthy else None",
        f"{_TERMS}::test_no_ping_without_a_proof_and_a_running_command",
    ),
    _m(
        "a leader whose command has ended pings",
        "supervise/news.py",
        "        self._runs = False\n        if ending.failed:",
        "        if ending.failed:",
        f"{_TERMS}::test_between_two_terms_no_command_runs",
    ),
    _m(
        "a ping that is retried is not asked for again",
        "notify/outbox.py",
        "        if letter.post is None or letter.asks_again:",
        "        if letter.post is None:",
        f"{_OUTBOX}::test_a_beat_that_is_retried_is_asked_for_again",
    ),
    _m(
        "a command that crashes in a loop pings at each start",
        "notify/outbox.py",
        "self._beat, self._beat_at = (every, ping), clock.now() + every",
        "self._beat, self._beat_at = (every, ping), clock.now()",
        f"{_OUTBOX}::test_beats_that_begin_again_and_again_do_not_ping",
    ),
    _m(
        "each retry of a message has an id of its own",
        "notify/outbox.py",
        "        if letter.post is None or letter.asks_again:",
        "        if True:",
        f"{_OUTBOX}::test_a_retry_has_the_same_id_and_a_signature_of_its_own_instant",
    ),
    _m(
        "notifications wait without bound",
        "notify/outbox.py",
        "        if len(self._waiting) >= MOST:",
        "        if False:",
        f"{_OUTBOX}::test_more_letters_than_have_room_are_dropped_counted_and_said",
    ),
    _m(
        "a redirect is an acceptance",
        "notify/outbox.py",
        "TryOutcome(200 <= status < 300,",
        "TryOutcome(200 <= status < 400,",
        f"{_OUTBOX}::test_a_redirect_is_not_followed",
    ),
    _m(
        "an end waits for a receiver that hangs",
        "notify/outbox.py",
        "            self._ended.get(timeout=within)",
        "            self._ended.get(timeout=within + 40.0)",
        f"{_OUTBOX}::test_neither_put_nor_close_waits_for_a_receiver_that_hangs",
    ),
    _m(
        "an end that is not on record is told",
        "cron/instance.py",
        "            self._news.ended(self._spec_of(job), slot, state)\n",
        "        self._news.ended(self._spec_of(job), slot, state or 'failed')\n",
        f"{_JOBS}::test_only_an_end_that_is_on_record_is_told",
    ),
    _m(
        "a loss that is retried is told",
        "cron/news.py",
        "        return own_loss and not fails_for_good(self.spec, self._run, clock.wall())",
        "        return False",
        f"{_JOBS}::test_a_loss_that_another_instance_retries_is_not_told",
    ),
    _m(
        "a command finds the secret that signs",
        "supervise/launch.py",
        '    *("INCUMBENT_NOTIFY_SECRET", "INCUMBENT_NOTIFY_SECRET_FILE"),\n',
        "",
        f"{_TERMS}::test_a_run_that_is_skipped_tells_nobody_and_a_command_finds_no_secret",
    ),
)
