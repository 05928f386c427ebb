"""How long a lease lives and may be used: the defaults, and what cannot fit."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.durations import Duration
from incumbent.errors import ConfigError
from incumbent.policy import TTL_MAX, TTL_MIN, Policy


def test_the_defaults_are_those_of_the_design() -> None:
    policy = Policy()
    assert (policy.ttl, policy.renew_every, policy.grace) == (15, 3, 5)
    assert (policy.margin, policy.request_timeout, policy.rho) == (0.25, 1, 0.01)
    assert policy.span == pytest.approx(15 * 0.98 - 0.25)
    assert policy.renew_deadline == pytest.approx(15 * 0.98 - 0.25 - 5)


@pytest.mark.parametrize(
    ("ttl", "grace", "margin", "request_timeout"),
    [
        (2, 2 / 3, 0.05, 1 / 3),
        (3, 1, 0.05, 0.5),
        (6, 2, 0.1, 1),
        (60, 5, 1, 1),
        (TTL_MAX, 5, TTL_MAX / 60, 1),
    ],
)
def test_the_defaults_follow_the_ttl(
    ttl: float, grace: float, margin: float, request_timeout: float
) -> None:
    policy = Policy(ttl)
    assert policy.renew_every == pytest.approx(ttl / 5)
    assert policy.grace == pytest.approx(grace)
    assert policy.margin == pytest.approx(margin)
    assert policy.request_timeout == pytest.approx(request_timeout)


def test_what_is_given_is_taken() -> None:
    policy = Policy("30s", grace="2s", renew_every=4, request_timeout="500ms", margin=1, rho=0.02)
    assert (policy.ttl, policy.grace, policy.renew_every) == (30, 2, 4)
    assert (policy.request_timeout, policy.margin, policy.rho) == (0.5, 1, 0.02)
    assert policy.span == pytest.approx(30 * 0.96 - 1)


def test_a_grace_of_nothing_is_allowed() -> None:
    policy = Policy(15, grace=0)
    assert policy.renew_deadline == policy.span


def test_equal_policies_are_equal_however_they_are_written() -> None:
    assert Policy("15s") == Policy(15) == Policy()


@pytest.mark.parametrize(
    "ttl", [0, -1, nan, inf, -inf, 1e30, True, None, "", "0s", TTL_MIN / 2, TTL_MAX + 1, "2d"]
)
def test_a_ttl_that_is_none_is_refused_before_anything_is_sent(ttl: Duration) -> None:
    with pytest.raises(ConfigError, match="ttl=") as caught:
        Policy(ttl)
    assert caught.value.name == "ttl"


@pytest.mark.parametrize("rho", [-0.01, 0.25, 1, nan, inf])
def test_a_drift_bound_that_is_none_is_refused(rho: float) -> None:
    with pytest.raises(ConfigError, match="is not a bound of clock drift") as caught:
        Policy(rho=rho)
    assert caught.value.name == "rho"


@pytest.mark.parametrize("what", ["renew_every", "request_timeout"])
def test_a_step_of_nothing_is_refused(what: str) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Policy(15, **{what: 0})


@pytest.mark.parametrize("what", ["grace", "renew_every", "request_timeout", "margin"])
def test_a_negative_part_is_refused_by_its_name(what: str) -> None:
    with pytest.raises(ConfigError, match=f"{what}=") as caught:
        Policy(15, **{what: -1})
    assert caught.value.name == what


def test_a_ttl_that_is_too_short_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(6, grace=5)
    said = str(caught.value)
    for part in ("ttl=6s", "drift 120ms", "margin 100ms", "grace 5s", "use 5.22s", "780ms to act"):
        assert part in said
    assert "1.2s (renew_every) + 1s (request_timeout)" in said
    assert said.endswith("Use a longer ttl or a shorter grace.")


def test_there_must_be_time_for_one_renewal_and_not_less() -> None:
    left = Policy(10, grace=2).renew_deadline
    with pytest.raises(ConfigError, match="too short"):
        Policy(10, grace=2, renew_every=left - 1, request_timeout=1)
    assert Policy(10, grace=2, renew_every=left - 1.001, request_timeout=1).ttl == 10


def test_the_shortest_ttl_that_works_by_default_is_below_200_ms() -> None:
    assert Policy(0.2).renew_deadline > 0
    with pytest.raises(ConfigError, match="too short"):
        Policy(0.15)


numbers = st.floats(-1, 100) | st.sampled_from([0.0, nan, inf])


@given(ttl=numbers, grace=numbers, renew_every=numbers, request_timeout=numbers, margin=numbers)
def test_a_policy_that_is_not_refused_has_room_for_a_renewal(**parts: float) -> None:
    try:
        policy = Policy(**parts)
    except ConfigError:
        return
    assert 0 < policy.renew_every + policy.request_timeout < policy.renew_deadline
    assert policy.renew_deadline <= policy.span <= policy.ttl
    assert policy.span == pytest.approx(policy.ttl * (1 - 2 * policy.rho) - policy.margin)


@given(st.floats(0.2, TTL_MAX))
def test_the_defaults_fit_every_usual_ttl(ttl: float) -> None:
    policy = Policy(ttl)
    assert policy.renew_every + policy.request_timeout < policy.renew_deadline < ttl
