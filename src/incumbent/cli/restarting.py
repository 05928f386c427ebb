"""What follows a term: the exit, or another candidacy after a pause. Pure: chance is handed in."""

from __future__ import annotations

import signal
from enum import Enum
from typing import Final

from incumbent.cli.exits import FAULT, LOST, OK, TOO_LONG
from incumbent.durations import backoff_delay
from incumbent.errors import ConfigError
from incumbent.supervise.run import Ending

__all__ = ["ENDING_SIGNALS", "Backoff", "Restart", "code_of_signal", "exit_after", "restart_from"]

ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""They begin an orderly stop; others are for CMD alone."""

_BASE, _CAP = 0.5, 30.0
_RESIGNED: Final = "broken"


class Restart(Enum):
    """After which ends of CMD to stand again."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


def restart_from(text: str | None) -> Restart:
    """`--restart`; raises ConfigError."""
    try:
        return Restart(text or "always")
    except ValueError:
        raise ConfigError(
            f"restart={text!r}: always, on-failure or never", name="restart"
        ) from None


def code_of_signal(signum: int) -> int:
    """The exit code when a signal ended it: 0 for TERM, which is how services are stopped."""
    return OK if signum == signal.SIGTERM else 128 + signum


def exit_after(restart: Restart, ending: Ending, *, at_keyboard: bool = False) -> int | None:
    """With which code to exit after a term; None: stand again.

    `at_keyboard`: CMD had the terminal, so a ^C reached CMD and not us, and is obeyed all the same.
    """
    kind, _, name = ending.cause.partition(":")
    if kind == "signal":
        return code_of_signal(signal.Signals[name])
    if ending.survivors or kind == "guard":
        return FAULT
    if ending.leaving:
        # It came while the term was ending for another reason.
        return code_of_signal(signal.Signals[ending.leaving])
    by_itself = ending.outlived or not ending.cause
    if by_itself and at_keyboard and ending.status == 128 + signal.SIGINT:
        return ending.status
    if restart is Restart.NEVER:
        return _code_of_the_only_term(ending)
    done = restart is Restart.ON_FAILURE and not ending.cause and ending.status == 0
    return OK if done else None


def _code_of_the_only_term(ending: Ending) -> int:
    if ending.cause == "at_most_for":
        return TOO_LONG
    # What CMD itself failed with is not masked.
    own = ending.status if ending.outlived or not ending.cause else None
    return own or (LOST if ending.cause else 0)


class Backoff:
    """Pauses between terms, or between starts; `healthy` (seconds): a term that long ends a row."""

    def __init__(self, healthy: float) -> None:
        self._healthy = healthy
        self._tries = 0

    def after(self, seconds: float, jitter: float, *, cause: str = "") -> float:
        """Seconds to wait after a term of `seconds`; `jitter` is uniform in [0, 1)."""
        if seconds > self._healthy:
            self._tries = 0
        if cause == "paused":
            # The pause itself is waited out as a candidate.
            return 0.0
        if cause == _RESIGNED:
            # Never nothing: the others hear of it only now, and it was asked for to be theirs.
            return _BASE + backoff_delay(0, jitter, base=_BASE)
        delay = backoff_delay(self._tries, jitter, base=_BASE, cap=_CAP)
        self._tries += 1
        return delay
