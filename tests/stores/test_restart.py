"""How long a store that may have lost its data grants nothing."""

from __future__ import annotations

import pytest

from incumbent.policy import TTL_DEFAULT
from incumbent.stores.findings import restart_words, wait_after_restart


@pytest.mark.parametrize("ttl", [0.1, 2.0, TTL_DEFAULT])
def test_a_short_ttl_waits_for_holders_with_the_default(ttl: float) -> None:
    assert wait_after_restart(None, ttl) == TTL_DEFAULT


def test_a_long_ttl_waits_for_itself() -> None:
    assert wait_after_restart(None, 60.0, 20.0) == 60.0


def test_a_longer_ttl_that_was_learnt_counts() -> None:
    assert wait_after_restart(None, 2.0, 20.0, 40.0) == 40.0


@pytest.mark.parametrize("named", [0.0, 1.0, 100.0])
def test_what_the_user_names_is_final(named: float) -> None:
    assert wait_after_restart(named, 60.0, 90.0) == named


def test_the_refusal_names_both_ways_out() -> None:
    said = restart_words("redis://host:6379/0", "started", 3.9, 11.02)
    assert said == (
        "redis://host:6379/0 started 3s ago. For 12s more nobody is given a lease, because a"
        " holder from before may still be working. Wait 12s, or if you know that there is none,"
        " name restart_wait=0 in the store's URL"
    )


def test_what_happened_just_now_is_not_said_in_milliseconds() -> None:
    said = restart_words("x", "started", -0.01, 0.02)
    assert "started less than a second ago. For 1s more" in said
