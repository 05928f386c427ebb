"""Each term of `run`, `lead` and `work` ends on record: `history`, `why` and `status` say how."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.locks.clients import Client
from incumbent.model import ByVersion, Key
from incumbent.rules.endings import ENDINGS, TermEnding, endings_of
from incumbent.supervise.endings import EndingsWriter
from tests.cli.tool import answer, incumbent, start
from tests.support.waiting import eventually

LEAD = ("lead", "job", "--ttl", "8s", "--grace", "0.5s", "--restart", "never")


def terms(store: str, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("-s", store, "history", "job", *more)
    return found


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        ("exit 0", 0, "its command ended with exit 0"),
        ("exit 3", 3, "its command ended with exit 3"),
        ("kill -SEGV $$", 139, "its command was ended by SIGSEGV"),
    ],
)
def test_a_run_leaves_its_exit_code_on_record(store: str, script: str, code: int, why: str) -> None:
    assert incumbent("-s", store, "run", "job", "--", "sh", "-c", script).returncode == code
    (term,) = terms(store)
    assert (term["how"], term["exit_code"], term["why"]) == ("exit", code, why)
    assert why in incumbent("-s", store, "history", "job").stdout
    assert why in incumbent("-s", store, "why", "job").stdout
    assert bool(terms(store, "--failed")) is bool(code)


@pytest.mark.parametrize("command", ["run", "lead"])
def test_a_command_that_cannot_start_is_on_record(store: str, command: str) -> None:
    done = incumbent("-s", store, command, "job", "--", "no-such-command")
    assert done.returncode == 127
    (term,) = terms(store, "--failed")
    assert (term["how"], term["exit_code"]) == ("not_started", 127)
    assert "no-such-command" in term["why"]


def test_a_leader_that_is_stopped_says_by_which_signal(store: str) -> None:
    leader = start("-s", store, *LEAD, "--", "sleep", "60")
    eventually(lambda: answer("-s", store, "status", "job")["holder"])
    leader.send_signal(signal.SIGTERM)
    leader.communicate(timeout=60)
    (term,) = terms(store)
    assert (term["how"], term["why"]) == ("stopped", "its instance was stopped by SIGTERM")
    assert terms(store, "--failed") == []


def test_a_leader_that_was_asked_to_stop_says_by_whom(store: str) -> None:
    leader = start("-s", store, *LEAD, "--", "sleep", "60")
    eventually(lambda: answer("-s", store, "status", "job")["holder"])
    incumbent("-s", store, "resign", "job", "--reason", "maintenance")
    leader.communicate(timeout=60)
    (term,) = terms(store)
    assert term["how"] == "asked"
    assert term["why"].startswith("asked to resign")
    assert "(maintenance)" in term["why"]


def test_a_leader_that_was_killed_leaves_no_word_and_that_counts_as_a_failure(store: str) -> None:
    leader = start("-s", store, "lead", "job", "--ttl", "3s", "--", "sleep", "60")
    eventually(lambda: answer("-s", store, "status", "job")["holder"])
    leader.kill()
    leader.communicate(timeout=60)
    eventually(lambda: not answer("-s", store, "status", "job")["holder"])
    (term,) = terms(store, "--failed")
    assert (term["how"], term["ended"]) == (None, None)
    assert "its ttl ran out" in incumbent("-s", store, "why", "job").stdout


# -- the writer ------------------------------------------------------------------------------------


class Away:
    """A store that gives no answer while it is `away`, and changes the field before a write."""

    def __init__(self, client: Client) -> None:
        self.client, self.away, self.others = client, False, list[TermEnding]()

    def read(self, key: Key, until: float) -> Any:
        if self.away:
            raise StoreUnavailable("no answer")
        return self.client.read(key.name)

    def put(self, key: Key, field: str, value: bytes, guard: ByVersion, until: float) -> Any:
        store = self.client._link.store
        if self.others:
            other = self.others.pop()
            EndingsWriter().write(lease_on(self.client, store), other)
        return store.put(key, field, value, guard, until)


def lease_on(client: Client, store: Any) -> Any:
    link = SimpleNamespace(engine=client._link.engine, store=store)
    return SimpleNamespace(belief=SimpleNamespace(link=link, key=Key("default", "job")))


def ending(token: int) -> TermEnding:
    return TermEnding(token, "exit", 1_800_000_000.0, 3)


def on_record(client: Client) -> list[int]:
    return sorted(endings_of(client.read("job")))


def test_an_ending_that_the_store_did_not_take_is_written_with_the_next(store: str) -> None:
    with Client(store) as client:
        away = Away(client)
        writer, lease = EndingsWriter(), lease_on(client, away)
        away.away = True
        writer.write(lease, ending(1))
        assert on_record(client) == []
        away.away = False
        writer.write(lease, ending(2))
        assert on_record(client) == [1, 2]
        writer.write(lease, ending(3))
        assert on_record(client) == [1, 2, 3]


def test_an_instance_that_writes_at_the_same_time_loses_nothing(store: str) -> None:
    with Client(store) as client:
        away = Away(client)
        away.others = [ending(5)]
        EndingsWriter().write(lease_on(client, away), ending(4))
        assert on_record(client) == [4, 5]


def test_a_field_that_was_edited_by_hand_is_replaced(store: str) -> None:
    with Client(store) as client:
        client._link.store.put(Key("default", "job"), ENDINGS, b"{oops", None, 1e12)
        EndingsWriter().write(lease_on(client, client._link.store), ending(4))
        assert on_record(client) == [4]
        assert json.loads(client.read("job").fields[ENDINGS].value)[0]["token"] == 4
