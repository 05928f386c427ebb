"""What follows a term: an exit code, or a pause that grows and is spread."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.model import Holding, Refused
from incumbent.supervise.campaign import Backoff, Campaign, Restart, exit_after, restart_from
from incumbent.supervise.run import Ending

ALWAYS, ON_FAILURE, NEVER = Restart.ALWAYS, Restart.ON_FAILURE, Restart.NEVER


@pytest.mark.parametrize(
    ("restart", "cause", "status", "code"),
    [
        (ALWAYS, "", 0, None),
        (ALWAYS, "", 1, None),
        (ALWAYS, "expired", None, None),
        (ALWAYS, "guard", None, 125),
        (ALWAYS, "signal:SIGTERM", 0, 0),
        (ALWAYS, "signal:SIGINT", 130, 130),
        (ALWAYS, "signal:SIGHUP", None, 129),
        (ON_FAILURE, "", 0, 0),
        (ON_FAILURE, "", 3, None),
        (ON_FAILURE, "taken", 0, None),
        (NEVER, "", 3, 3),
        (NEVER, "taken", 0, 123),
        (NEVER, "at_most_for", None, 124),
    ],
)
def test_a_term_is_followed_by_an_exit_or_another(
    restart: Restart, cause: str, status: int | None, code: int | None
) -> None:
    assert exit_after(restart, Ending(cause, status, 1.0)) == code


@pytest.mark.parametrize(
    ("restart", "status", "code"),
    [(ALWAYS, 0, None), (ON_FAILURE, 0, None), (NEVER, 0, 123), (NEVER, 3, 3)],
)
def test_a_command_that_outlived_its_lease_was_no_success(
    restart: Restart, status: int, code: int | None
) -> None:
    ending = Ending("taken", status, 1.0, outlived=True)
    assert exit_after(restart, ending) == code
    interrupted = Ending("taken", 130, 1.0, outlived=True)
    assert exit_after(restart, interrupted, at_keyboard=True) == 130


def test_what_outlives_kill_is_not_followed_by_another_term() -> None:
    assert exit_after(ALWAYS, Ending("expired", None, 1.0, survivors=(7,))) == 125


def test_a_signal_that_came_while_the_term_was_ending_is_obeyed() -> None:
    assert exit_after(ALWAYS, Ending("taken", 0, 1.0, leaving="SIGTERM")) == 0
    assert exit_after(ALWAYS, Ending("", 7, 1.0, leaving="SIGINT")) == 130
    assert exit_after(ALWAYS, Ending("guard", 137, 1.0, leaving="SIGTERM")) == 125


def test_an_interrupt_at_the_keyboard_reaches_us_through_the_command() -> None:
    assert exit_after(ALWAYS, Ending("", 130, 1.0), at_keyboard=True) == 130
    assert exit_after(ALWAYS, Ending("", 130, 1.0)) is None


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_long_term() -> None:
    backoff = Backoff(healthy=15.0)
    longest = [backoff.after(1.0, 1.0) for _ in range(8)]
    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.after(15.1, 1.0) == 0.5
    assert backoff.after(1.0, 0.0) == 0.0


def test_who_resigned_lets_others_go_first() -> None:
    assert 0.5 <= Backoff(15.0).after(1.0, 0.0, cause="broken") <= 1.0
    assert Backoff(15.0).after(1.0, 0.9, cause="paused") == 0.0


def test_a_restart_that_is_none_is_refused() -> None:
    assert restart_from(None) is ALWAYS
    with pytest.raises(ConfigError, match="restart='sometimes'"):
        restart_from("sometimes")


def test_the_pause_between_terms_is_waited_for_and_ends_at_a_signal() -> None:
    signals: list[int] = []
    ours, its = socket.socketpair()
    with ours, its:
        between = SimpleNamespace(
            situation=SimpleNamespace(note_backing_off=lambda: None),
            signals=SimpleNamespace(fd=ours.fileno(), take=lambda: signals),
            _report_alive=lambda _: None,
            _handle_signal=lambda signum: 128 + signum,
        )
        began = clock.now()
        assert Campaign._back_off(cast("Any", between), 0.05) is None
        assert clock.now() - began >= 0.05
        signals.append(15)
        its.send(b"x")
        assert Campaign._back_off(cast("Any", between), 1e6) == 143


def test_standing_by_and_the_end_of_an_outage_are_said_once_each() -> None:
    said: list[str] = []
    situation = SimpleNamespace(
        note_outcome=lambda answer: (
            answer.holders[0].holder if isinstance(answer, Refused) else None
        )
    )
    standing: Any = SimpleNamespace(
        _report_alive=lambda: None,
        situation=situation,
        say=said.append,
        _answered=False,
        _is_away=False,
        _last_line="",
    )
    held, away = Refused("held", (Holding("b"),)), StoreUnavailable("gone")
    for answer in (away, held, held, away, away, held, held):
        Campaign._on_refusal(standing, answer)
    assert said == [
        "standing by: held by b",
        "the store answers again; standing by: held by b",
    ]
