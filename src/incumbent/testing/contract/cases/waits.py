"""Cases: a hint may be early, late, lost or spurious; it never delays an answer past `until`."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Granted, Refused
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.marks import needs

__all__ = ["WaitCases"]

HINTED_WITHIN = 5.0
PATIENCE = 15.0
"""A waiter that was told of nothing would come back only after this."""


class WaitCases:
    """wait_change returns at `until` at the latest, and soon after a release."""

    def test_a_wait_for_nothing_ends_at_until(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        started = clock.now()
        bench.store.wait_change(bench.key(), seen, started + 0.2)
        assert clock.now() - started < 0.2 + HINTED_WITHIN

    def test_a_wait_whose_time_is_over_returns_at_once(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        over = clock.now() - 1
        assert _took(lambda: bench.store.wait_change(bench.key(), seen, over)) < 1

    def test_a_waiter_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        with _waiting(bench, bench.refused().seen) as waiter:
            bench.give(grant)
            assert waiter.result(HINTED_WITHIN) < HINTED_WITHIN

    def test_all_waiters_are_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        seen = bench.refused().seen
        with _waiting(bench, seen) as one, _waiting(bench, seen) as two:
            bench.give(grant)
            assert max(one.result(HINTED_WITHIN), two.result(HINTED_WITHIN)) < HINTED_WITHIN

    def test_a_release_before_the_wait_is_not_missed(self, bench: Bench) -> None:
        grant = bench.granted()
        seen = bench.refused().seen
        bench.give(grant)
        started = clock.now()
        bench.store.wait_change(bench.key(), seen, started + PATIENCE)
        assert clock.now() - started < HINTED_WITHIN

    def test_a_record_is_seen_as_a_refusal_is(self, bench: Bench) -> None:
        assert bench.read().seen == ""
        bench.granted()
        assert bench.read().seen == bench.refused().seen != ""

    def test_a_reader_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        with _waiting(bench, bench.read().seen) as waiter:
            bench.give(grant)
            assert waiter.result(HINTED_WITHIN) < HINTED_WITHIN

    def test_a_waiter_is_told_of_another_meta(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"old")
        with _waiting(bench, bench.read().seen) as waiter:
            bench.renew(grant, meta=b"new")
            assert waiter.result(HINTED_WITHIN) < HINTED_WITHIN

    def test_another_meta_before_the_wait_is_not_missed(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"old")
        seen = bench.refused().seen
        bench.renew(grant, meta=b"new")
        started = clock.now()
        bench.store.wait_change(bench.key(), seen, started + PATIENCE)
        assert clock.now() - started < HINTED_WITHIN

    def test_a_renewal_that_changes_nothing_is_no_change(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"same")
        seen = bench.refused().seen
        bench.renew(grant)
        bench.renew(grant, meta=b"same")
        assert bench.refused().seen == seen == bench.read().seen

    @needs("candidates")
    def test_who_waits_is_told_of_a_candidates_grant(self, bench: Bench) -> None:
        bench.give(bench.granted())
        with _waiting(bench, bench.read().seen) as waiter:
            bench.granted(candidacy=bench.long)
            assert waiter.result(HINTED_WITHIN) < HINTED_WITHIN

    def test_a_waiter_that_is_told_of_nothing_knows_when_to_try_again(self, bench: Bench) -> None:
        bench.granted(ttl=bench.ttl)
        refusal = bench.take()
        if isinstance(refusal, Refused):
            assert refusal.retry_after is not None
            assert 0 <= refusal.retry_after <= bench.ttl + 0.1
            bench.outlive(refusal.retry_after)
        assert isinstance(bench.take(), Granted) or isinstance(refusal, Granted)

    def test_a_wait_on_a_name_that_nobody_knows_ends_at_until(self, bench: Bench) -> None:
        started = clock.now()
        bench.store.wait_change(bench.key("unknown"), "", started + 0.1)
        assert clock.now() - started < HINTED_WITHIN

    def test_a_wait_with_a_strange_memory_is_harmless(self, bench: Bench) -> None:
        started = clock.now()
        bench.store.wait_change(bench.key(), "what another version has seen", started + 0.1)
        assert clock.now() - started < HINTED_WITHIN

    def test_a_request_whose_time_is_over_answers_quickly(self, bench: Bench) -> None:
        key, over = bench.key(), clock.now() - 1
        for ask in (
            lambda: bench.store.read(key, over),
            lambda: bench.store.give(key, bench.draw(), None, over),
            lambda: bench.store.renew([], over),
        ):
            assert _took(ask) < 1


def _took(ask: Callable[[], object]) -> float:
    started = clock.now()
    try:
        ask()
    except StoreError:
        pass  # no time left is a reason not to try
    return clock.now() - started


@contextmanager
def _waiting(bench: Bench, seen: str) -> Iterator[Future[float]]:
    """A waiter in a thread of its own; its result says for how long it waited."""

    def wait() -> float:
        with bench.another() as mine:
            started = clock.now()
            mine.store.wait_change(mine.key(), seen, started + PATIENCE)
            return clock.now() - started

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait)
        # Whether it waits already cannot be seen from here; told early or late, it must return.
        time.sleep(0.05)
        yield waiter
