"""Numbers that are none (NaN, infinite, below 0, True, huge) are refused, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import incumbent
from incumbent import (
    Client,
    ConfigError,
    Election,
    Group,
    Jobs,
    Lock,
    MultiLock,
    Policy,
    Semaphore,
    Shards,
)
from incumbent.fencing import Token, headers, replace_file, with_token, write_redis

STORE = "memory:numbers"
NONE_OF_THEM: tuple[Any, ...] = (
    nan,
    inf,
    -inf,
    -1,
    True,
    1e300,
    10**400,
    "nan",
    "inf",
    "-1",
    "",
    [],
    1j,
)
NO_NUMBERS = (*NONE_OF_THEM, timedelta(seconds=-1), timedelta.max)


def leading(use: Callable[[Election, Any], object]) -> Callable[[Any], object]:
    def call(number: Any) -> object:
        election = Election("led", store=STORE)
        with election.lead(0) as term:
            try:
                return use(election, number)
            finally:
                assert not term.stopping

    return call


def held(use: Callable[[Any, Any], object]) -> Callable[[Any], object]:
    def call(number: Any) -> object:
        with Lock("held", store=STORE) as lease:
            try:
                return use(lease, number)
            finally:
                lease.check()

    return call


def tick(run: Any) -> None:
    """A job."""


def of_setting(name: str) -> Callable[[Any], object]:
    return lambda number: Lock("a", store=STORE, **{name: number})


def of_policy(name: str) -> Callable[[Any], object]:
    return lambda number: Policy(**{name: number})


TIMES: dict[str, Callable[[Any], object]] = {
    **{
        f"Lock({name}=)": of_setting(name)
        for name in (
            *("timeout", "ttl", "grace", "lock_delay"),
            *("at_most_for", "at_least_for", "once_per"),
        )
    },
    **{
        f"Policy({name}=)": of_policy(name)
        for name in (
            *("ttl", "grace", "renew_every", "request_timeout", "margin", "lock_delay"),
            "rho",
        )
    },
    "acquire": lambda number: Lock("a", store=STORE).acquire(number),
    "check": held(lambda lease, number: lease.check(number)),
    "wait_lost": held(lambda lease, number: lease.wait_lost(number)),
    "MultiLock": lambda number: MultiLock(["a"], store=STORE, timeout=number),
    "campaign": lambda number: Election("a", store=STORE).campaign(number),
    "observe": lambda number: Election("a", store=STORE).observe(number),
    "resign": leading(lambda election, number: election.resign(number)),
    "step_down_after": lambda number: Election(
        "a", store=STORE, priority=1, step_down_after=number
    ),
    "Group": lambda number: Group("a", store=STORE, ttl=number),
    "read": lambda number: Client(STORE).read("a", number),
    "scan": lambda number: Client(STORE).scan("", number),
    "exclusive": lambda number: incumbent.exclusive("a", store=STORE, timeout=number)(
        lambda: None
    )(),
    "once": lambda number: incumbent.once("a", per=number, store=STORE)(lambda: None)(),
    "every": lambda number: Jobs(store=STORE).every(number)(tick),
    "stop": lambda number: Jobs(store=STORE).stop(number),
    "drain": lambda number: Jobs(store=STORE).run(drain=number),
}

COUNTS: dict[str, Callable[[Any], object]] = {
    "permits": lambda number: Semaphore("a", number, store=STORE),
    "permits of an election": lambda number: Election("a", store=STORE, permits=number),
    "priority": lambda number: Election("a", store=STORE, priority=number),
    "count": lambda number: Shards("a", number, store=STORE),
}

TOKENS: dict[str, Callable[[Path, Any], object]] = {
    "replace_file": lambda path, token: replace_file(Token("x", token), path, b"late"),
    "headers": lambda _, token: headers(Token("x", token)),
    "write_redis": lambda _, token: write_redis(Token("x", token), None, ("SET", "a", 1)),
    "with_token": lambda _, token: with_token(Token("x", token), None),
}


@pytest.mark.parametrize("call", TIMES)
@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda it: f"{it!r:.20}")
def test_what_is_no_time_is_refused(call: str, number: Any) -> None:
    with pytest.raises(ConfigError):
        TIMES[call](number)


@pytest.mark.parametrize("call", COUNTS)
@pytest.mark.parametrize("number", [*NONE_OF_THEM, 1.0], ids=lambda it: f"{it!r:.20}")
def test_what_is_no_count_is_refused(call: str, number: Any) -> None:
    with pytest.raises(ConfigError):
        COUNTS[call](number)


@pytest.mark.parametrize("call", TOKENS)
@pytest.mark.parametrize("number", [*NONE_OF_THEM, 2**63, 7.0], ids=lambda it: f"{it!r:.20}")
def test_what_is_no_token_passes_no_guard(call: str, number: Any, tmp_path: Path) -> None:
    path = tmp_path / "guarded"
    replace_file(Token("x", 7), path, b"good")
    with pytest.raises(ConfigError):
        TOKENS[call](path, number)
    assert path.read_bytes() == b"good"
    replace_file(Token("x", 7), path, b"still")


@pytest.mark.usefixtures("looks_often")
def test_a_drain_that_is_no_time_leaves_the_jobs_running() -> None:
    jobs = Jobs(store=STORE)
    jobs.every("1h")(tick)
    jobs.start()
    with pytest.raises(ConfigError):
        jobs.stop(nan)
    assert jobs.stop(1.0)
