"""Cases: a store that restarted may have forgotten who still believes; it waits one ttl."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Granted, Refused, Renewed
from incumbent.stores.notices import PAUSE, encode_notice
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.marks import needs

__all__ = ["RestartCases"]


class RestartCases:
    """What was believed of a store ends with its restart, and tokens still grow."""

    @needs("wipe", "restart_wait")
    def test_a_store_that_lost_its_data_grants_nothing_for_one_ttl(self, bench: Bench) -> None:
        _grants_nothing_for_one_ttl(bench, empty=True)

    @needs("restart", "restart_wait")
    def test_a_store_that_kept_its_data_grants_nothing_for_one_ttl(self, bench: Bench) -> None:
        _grants_nothing_for_one_ttl(bench, empty=False)

    @needs("wipe")
    def test_a_wipe_ends_what_was_believed(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, empty=True)

    @needs("restart", "ends_by_restart")
    def test_a_restart_ends_what_was_believed(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, empty=False)

    @needs("restart", "survives_restart")
    def test_a_restart_ends_nothing_where_leases_survive_a_failover(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.restart(empty=False)
        assert bench.renew(grant) == Renewed()
        bench.refused()

    @needs("wipe", "fencing")
    def test_the_token_grows_over_a_wipe(self, bench: Bench) -> None:
        _token_grows(bench, empty=True)

    @needs("restart", "fencing")
    def test_the_token_grows_over_a_restart(self, bench: Bench) -> None:
        _token_grows(bench, empty=False)

    @needs("restart", "fields")
    def test_fields_survive_a_restart(self, bench: Bench) -> None:
        bench.put("state", b"kept")
        bench.restart(empty=False)
        assert bench.read().fields["state"].value == b"kept"

    @needs("restart", "notices")
    def test_a_pause_survives_a_restart(self, bench: Bench) -> None:
        _admitted(bench, "other")
        bench.put(PAUSE, encode_notice(who="operator"))
        bench.restart(empty=False)
        _admitted(bench, "other")
        outcome = bench.take(ttl=bench.ttl)
        assert isinstance(outcome, Refused)
        assert outcome.reason == "paused"

    @needs("restart", "fields")
    def test_versions_do_not_come_back_after_a_restart(self, bench: Bench) -> None:
        first = bench.put("state", b"1")
        bench.restart(empty=False)
        assert bench.put("state", b"2") != first


def _grants_nothing_for_one_ttl(bench: Bench, *, empty: bool) -> None:
    _admitted(bench)
    bench.restart(empty=empty)
    for name in ("job", "never-seen"):
        with pytest.raises(StoreUnavailable) as caught:
            # Long enough that the wait is not over before a slow machine has asked.
            bench.take(name, ttl=bench.long)
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= bench.long + 2
    _admitted(bench)


def _ends_what_was_believed(bench: Bench, *, empty: bool) -> None:
    grant = _admitted(bench)
    bench.restart(empty=empty)
    assert bench.renew(grant) == Gone("store_restarted")


def _token_grows(bench: Bench, *, empty: bool) -> None:
    first = _admitted(bench)
    bench.give(first)
    bench.restart(empty=empty)
    assert _admitted(bench).token > first.token


def _admitted(bench: Bench, name: str = "job") -> Granted:
    """A grant as soon as the wait is over; a server of this test's own may be young as well."""
    for _ in range(5):
        try:
            outcome = bench.take(name, ttl=bench.ttl)
        except StoreUnavailable as error:
            bench.outlive(error.retry_after or bench.ttl)
        else:
            if isinstance(outcome, Granted):
                return outcome
            bench.outlive(bench.ttl)
    raise AssertionError("the store never granted again")
