"""Whoever can write to the store names things as he likes: no terminal and no log obeys him."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import Client, Lock, NotAcquired, clock
from incumbent.cron.events import Events, log_event
from incumbent.cron.fleet import PRESENCE, UP, encode
from incumbent.cron.ledger import JOB, RUN, SlotRecord, SlotState
from incumbent.cron.ledger import encode as encode_run
from incumbent.errors import Error, LockError
from incumbent.model import Ask, Key, Refused
from incumbent.printable import json_line, printable, printable_lines
from incumbent.rules.notices import PAUSE, RESIGN, encode_notice
from incumbent.runtime.link import link_for
from incumbent.serve.health import SystemdNotifier
from incumbent.serve.situation import Situation
from tests.cli.tool import answer, incumbent

# Clears a screen and colours it, in both forms that terminals know; rings; writes from right to
# left; forges a line.
EVIL = "eve\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2028\nincumbent: all is well"
SHOWN = r"eve\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2028\nincumbent: all is well"
APART = EVIL.replace("\n", " ")
JOB_NAME = "nightly"


@pytest.fixture
def planted(store: str) -> Iterator[str]:
    """A store in which every text that can be is EVIL."""
    with Client(store) as client:
        raw = link_for(client).store
        until = clock.now() + 10
        for name in (EVIL, "job", "asked", JOB_NAME):
            meta = json.dumps({"isolation": EVIL, "state": EVIL}).encode()
            raw.take(Key("default", name), "c" * 32, Ask(60.0, EVIL, meta=meta), until)
        fields = {
            ("paused", PAUSE): json.dumps({"who": EVIL, "reason": EVIL}).encode(),
            ("asked", RESIGN): encode_notice(who=EVIL, reason=EVIL, to=EVIL, token=1),
            (JOB_NAME, JOB): encode(schedule=EVIL, timezone="UTC", command=EVIL, since=0),
            (PRESENCE, UP + EVIL): encode(since=clock.wall(), seen=clock.wall(), jobs=1),
        }
        for (name, field), value in fields.items():
            raw.put(Key("default", name), field, value, None, until)
        for slot in (f"manual/{EVIL}", "2026-11-21T05:30:00Z"):
            run = SlotRecord(
                slot, SlotState.FAILED, 1_795_000_000.0, EVIL, 5, why=EVIL, output=f"{APART}\nmore"
            )
            raw.put(Key("default", JOB_NAME), RUN + slot, encode_run(run), None, until)
        yield store


def is_safe(text: str) -> bool:
    """Whether a terminal shows it as it is, and no line in it is another's."""
    lines = text.split("\n")
    return all(map(str.isprintable, lines)) and not any(
        line.startswith("incumbent: all is well") for line in lines
    )


COMMANDS = [
    ("status",),
    ("status", "--all"),
    ("status", "job"),
    ("status", "paused"),
    ("status", "asked"),
    ("why", "job"),
    ("why", "paused"),
    ("why", "asked"),
    ("why", JOB_NAME),
    ("why", JOB_NAME, "--at", "2026-11-18T11:06:40Z"),
    ("jobs",),
    ("history", "job"),
    ("history", JOB_NAME),
    ("-v", "history", JOB_NAME),
    ("wait", "job", "--timeout", "2s"),
    ("pause", "paused"),
    ("resign", "job", "--to", "bob"),
    ("run", "job", "--", "true"),
    ("run", "job", "--wait=2s", "--", "true"),
    ("run", "paused", "--", "true"),
    ("doctor",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_passes_on_what_a_terminal_would_obey(
    planted: str, words: tuple[str, ...]
) -> None:
    done = incumbent("-s", planted, *words)
    assert is_safe(done.stdout), done.stdout
    assert is_safe(done.stderr), done.stderr
    if words[0] not in ("doctor", "pause", "resign") and "paused" not in words:
        assert "eve\\x1b[2J" in done.stdout + done.stderr, "it is shown, as what it is"


def test_json_has_the_text_itself_in_escapes(planted: str) -> None:
    done = incumbent("-s", planted, "--json", "status", "job")
    assert is_safe(done.stdout)
    assert answer("-s", planted, "status", "job")["holder"] == EVIL
    done = incumbent("-s", planted, "--log-format", "json", "run", "job", "--", "true")
    assert is_safe(done.stderr)
    assert EVIL in json.loads(done.stderr)["message"]


def test_an_error_message_has_one_line_and_its_attributes_the_text(planted: str) -> None:
    with pytest.raises(NotAcquired) as caught:
        Lock("job", store=planted).acquire(0)
    assert is_safe(str(caught.value))
    assert SHOWN in str(caught.value)
    assert caught.value.held_by == EVIL


@pytest.mark.parametrize("kind", LockError.__subclasses__())
def test_every_error_about_a_lease_is_printable(kind: type[Error]) -> None:
    assert str(kind(EVIL)) == SHOWN


def test_events_are_lines_of_printable_json(tmp_path: Path) -> None:
    with (tmp_path / "events").open("wb") as file:
        Events(file.fileno(), instance="a")("skipped", why=EVIL)
    text = (tmp_path / "events").read_text()
    assert is_safe(text)
    assert json.loads(text)["why"] == EVIL


def test_the_log_of_an_application_gets_one_line_for_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "incumbent.jobs"):
        log_event("skipped", job="x", why=EVIL)
    assert caplog.messages == [f"skipped job=x why={SHOWN}"]


def test_a_leaders_name_sets_no_variable_of_the_service_manager(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        situation = Situation("x", "us", is_candidate=True)
        notifier = SystemdNotifier(situation, {"NOTIFY_SOCKET": path})
        situation.note_outcome(Refused("held", holders=()))
        situation.note_standby("eve\nMAINPID=1")
        seen: list[str] = []
        while not any("eve" in text for text in seen):
            seen.append(manager.recv(4096).decode())
        notifier.close()
    assert all(text.isprintable() for text in seen), seen


@pytest.mark.parametrize("text", ["plain", "ü 名 🙂", EVIL, "\udc80", "\U000e0001", "\t", ""])
def test_what_is_printable_stays_and_the_rest_is_an_escape(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert (printable(text) == text) == text.isprintable()
    assert printable_lines(f"{text}\n{text}").count("\n") == 1 + 2 * text.count("\n")
    assert json_line({"x": text}).isprintable()
    assert json.loads(json_line({"x": text})) == {"x": text}
