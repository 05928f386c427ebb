"""Errors tell apart what happened, carry their numbers, and travel between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from incumbent import errors
from incumbent.errors import (
    AcquireTimeout,
    AlreadyReleased,
    ConfigError,
    Error,
    LeaseLost,
    LockError,
    Misuse,
    NotAcquired,
    NotCandidate,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)

REFUSAL = {"name": "job", "held_by": "alice", "reason": "closed", "retry_after": 2.5, "waited": 1.5}
OUTAGE = {"name": "job", "permanent": True, "retry_after": 3.0}

EVERY: list[tuple[Exception, dict[str, object]]] = [
    (Error("it went wrong"), {}),
    (LockError("it went wrong", name="job"), {"name": "job"}),
    (
        NotCandidate("no such candidate", name="job", candidates=("a", "b")),
        {"name": "job", "candidates": ("a", "b")},
    ),
    (
        NotAcquired(
            "held", name="job", held_by="alice", reason="closed", retry_after=2.5, waited=1.5
        ),
        REFUSAL,
    ),
    (
        AcquireTimeout(
            "held", name="job", held_by="alice", reason="closed", retry_after=2.5, waited=1.5
        ),
        REFUSAL,
    ),
    (
        LeaseLost("gone", name="job", reason="taken", namespace="rows"),
        {"name": "job", "reason": "taken", "namespace": "rows"},
    ),
    (StoreError("away", name="job", permanent=True, retry_after=3.0), OUTAGE),
    (StoreUnavailable("away", name="job", permanent=True, retry_after=3.0), OUTAGE),
    (OutcomeUnknown("perhaps", name="job", permanent=True, retry_after=3.0), OUTAGE),
    (Misuse("your code"), {}),
    (NotHeld("your code"), {}),
    (AlreadyReleased("your code"), {}),
    (ConfigError("ttl=0 is out of range", name="ttl"), {"name": "ttl"}),
]
KINDS = [type(error) for error, _ in EVERY]


def fields_of(error: Exception) -> dict[str, object]:
    return dict(vars(error))


def test_every_public_error_is_looked_at_here() -> None:
    assert {kind.__name__ for kind in KINDS} == set(errors.__all__)


@pytest.mark.parametrize(("error", "fields"), EVERY)
def test_an_error_carries_its_fields(error: Exception, fields: dict[str, object]) -> None:
    assert fields_of(error) == fields


@pytest.mark.parametrize(("error", "fields"), EVERY)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(
    error: Exception, fields: dict[str, object], protocol: int
) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert fields_of(back) == fields


@pytest.mark.parametrize(("error", "fields"), EVERY)
def test_an_error_can_be_copied(error: Exception, fields: dict[str, object]) -> None:
    for back in (copy.copy(error), copy.deepcopy(error)):
        assert (type(back), str(back), fields_of(back)) == (type(error), str(error), fields)


def test_a_note_travels_with_its_error() -> None:
    error = LeaseLost("gone", name="job")
    error.add_note("the release was not confirmed")
    back = pickle.loads(pickle.dumps(error))
    assert back.__notes__ == ["the release was not confirmed"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_is_kept_as_it_is(kind: type[Exception]) -> None:
    message = "100 % {of} it: \u00e4, \\n"
    assert str(kind(message)) == message
    assert kind(message).args == (message,)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_can_be_made_without_a_word(kind: type[Exception]) -> None:
    assert not str(kind())


@pytest.mark.parametrize("kind", [LockError, NotAcquired, AcquireTimeout, LeaseLost, StoreError])
def test_only_the_message_comes_without_its_word(kind: type[LockError]) -> None:
    with pytest.raises(TypeError):
        kind("held", "job")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (LockError, Exception),
        (NotAcquired, LockError),
        (AcquireTimeout, NotAcquired),
        (AcquireTimeout, TimeoutError),
        (LeaseLost, LockError),
        (NotCandidate, LockError),
        (StoreError, LockError),
        (StoreUnavailable, StoreError),
        (OutcomeUnknown, StoreError),
        (Misuse, RuntimeError),
        (NotHeld, Misuse),
        (AlreadyReleased, NotHeld),
        (ConfigError, ValueError),
    ],
)
def test_an_error_is_caught_as_its_parent(kind: type[Exception], parent: type[Exception]) -> None:
    assert issubclass(kind, parent)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NotAcquired, StoreError),
        (StoreUnavailable, OutcomeUnknown),
        (StoreUnavailable, NotAcquired),
        (OutcomeUnknown, NotAcquired),
        (LeaseLost, NotAcquired),
        (Misuse, LockError),
        (ConfigError, LockError),
    ],
)
def test_answers_that_differ_are_never_caught_as_each_other(
    one: type[Exception], other: type[Exception]
) -> None:
    assert not issubclass(one, other)
    assert not issubclass(other, one)
