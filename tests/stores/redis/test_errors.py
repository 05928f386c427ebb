"""What a Redis server may answer instead of doing it, as the contract's three answers."""

from __future__ import annotations

import pickle

import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.redis.site import Demoted, Moved, answered_error

WHERE = "redis://here:6379/0"
IN_A_SCRIPT = " script: 3c7c0b, on @user_script:12."

NOT_SENT = {
    "LOADING Redis is loading the dataset in memory": "loading",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set": "its master",
    "CLUSTERDOWN The cluster is down": "cluster is down",
    "CLUSTERDOWN Hash slot not served": "cluster is down",
    "READONLY You can't write against a read only replica.": "address of the master",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL": "busy",
    "OOM command not allowed when used memory > 'maxmemory'.": "raise its maxmemory",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable": "disk",
    "NOREPLICAS Not enough good replicas to write.": "min-replicas-to-write",
    "TRYAGAIN Multiple keys request during rehashing of slot": "is moving",
    "ASK 3999 127.0.0.1:6381": "is moving",
    "ERR max number of clients reached": "raise its maxclients",
    "WRONGTYPE Operation against a key holding the wrong kind of value": "another type of value",
    "NOSCRIPT No matching script. Please use EVAL.": "forgotten a script",
}
FINAL_AT_FIRST = {
    "MOVED 3999 127.0.0.1:6381": r"redis\+cluster://",
    "CROSSSLOT Keys in request don't hash to the same slot": "do not share a slot",
    "NOAUTH Authentication required.": "wants a password",
    "WRONGPASS invalid username-password pair or user is disabled.": "refuses the user name",
    "NOPERM this user has no permissions to run the 'info' command": "ACL rule",
    "DENIED Redis is running in protected mode": "protected mode",
    "ERR unknown command 'EVALSHA', with args beginning with:": "lacks a command",
}
UNKNOWN = (
    "ERR user_script:12: Script attempted to access a non local key in a cluster node",
    "NOPERM this user has no permissions" + IN_A_SCRIPT,
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "UNKILLABLE Sorry the script already executed write commands",
    "ERR something that nobody has heard of",
    "",
)


@pytest.mark.parametrize("text", [*NOT_SENT, *FINAL_AT_FIRST])
def test_a_refusal_is_certainly_not_applied_and_says_what_to_do(text: str) -> None:
    error = answered_error(text, WHERE, "the-key", served=False)
    assert isinstance(error, StoreUnavailable)
    assert error.permanent == (text in FINAL_AT_FIRST or text.startswith("WRONGTYPE"))
    assert WHERE in str(error)
    with pytest.raises(StoreUnavailable, match=(NOT_SENT | FINAL_AT_FIRST)[text]):
        raise error
    # Once the server has served us, only another type of value is for good.
    assert answered_error(text, WHERE, served=True).permanent == text.startswith("WRONGTYPE")


@pytest.mark.parametrize("text", UNKNOWN)
def test_anything_else_was_perhaps_applied(text: str) -> None:
    error = answered_error(text, WHERE, served=False)
    assert isinstance(error, OutcomeUnknown)
    assert error.permanent == text.startswith("NOPERM")


@pytest.mark.parametrize("code", ["READONLY", "OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE"])
def test_a_refusal_of_a_scripts_first_write_is_a_refusal(code: str) -> None:
    for text in (
        f"{code} some words{IN_A_SCRIPT}",
        f"ERR Error running user_script: @1: -{code} x",
    ):
        assert isinstance(answered_error(text.replace("-", " "), WHERE), StoreUnavailable)


@pytest.mark.parametrize("text", ["READONLY no", "MASTERDOWN no"])
def test_a_server_that_became_a_replica_is_told_apart(text: str) -> None:
    assert isinstance(answered_error(text, WHERE), Demoted)


@pytest.mark.parametrize(
    ("text", "address", "ask"),
    [
        ("MOVED 3999 127.0.0.1:6381", "127.0.0.1:6381", False),
        ("ASK 3999 node.example:7", "node.example:7", True),
        ("MOVED 3999 ::1:6381", "::1:6381", False),
        ("MOVED 3999", "", False),
    ],
)
def test_a_redirection_names_the_node(text: str, address: str, ask: bool) -> None:
    error = answered_error(text, WHERE)
    assert isinstance(error, Moved)
    assert (error.address, error.ask) == (address, ask)


@pytest.mark.parametrize("text", [*NOT_SENT, *FINAL_AT_FIRST, *UNKNOWN])
def test_all_of_them_survive_pickling(text: str) -> None:
    error: StoreError = answered_error(text, WHERE, served=False)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
