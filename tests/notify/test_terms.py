"""What receivers are told about leaders and runs; a dead man's switch hears of a proved leader."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from incumbent import Lock, clock
from incumbent.cli.parser import parse
from incumbent.cli.settings import news_of
from incumbent.errors import ConfigError
from incumbent.locks.leases import Lease
from incumbent.notify.outbox import Post
from incumbent.notify.receivers import Receiver, parse_ping, parse_receiver
from incumbent.rules.endings import ENDINGS, TermEnding, with_ending
from incumbent.serve.situation import Situation
from incumbent.supervise.news import TermNews
from tests import tiers
from tests.cli.tool import command_line, environment, incumbent
from tests.cron.fleet import real_processes
from tests.notify import listening as faults
from tests.notify.listening import SECRET, listening, nobody
from tests.support.waiting import eventually

HOOK = parse_receiver("https://hook.example/SECRETPATH", "notify")
TIMES = ("--ttl", "6", "--grace", "1.5")


class Sent:
    """In place of an outbox: what would be sent, at once."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.beats: list[Callable[[], Receiver | None]] = []

    def put(self, receiver: Receiver, what: str, compose: Callable[[], Post | None]) -> None:
        post = compose()
        if post is not None and post.webhook is not None:
            self.kinds.append(post.webhook.kind)

    def beat(self, every: float, ping: Callable[[], Receiver | None]) -> None:
        self.beats.append(ping)


@pytest.fixture
def lease(request: pytest.FixtureRequest) -> Iterator[Lease]:
    with Lock("x", store=f"memory:{request.node.name}").acquire(0) as taken:
        yield taken


def ignore(_: str) -> None:
    """Logs nothing."""


def news_with(sent: Sent) -> TermNews:
    news = TermNews(HOOK, parse_ping("https://ping.example/", "ping"), 60.0, 2.0, ignore)
    news._outbox = sent  # type: ignore[assignment]
    return news


def record(lease: Lease, *endings: TermEnding) -> None:
    value = None
    for ending in endings:
        value = with_ending(value, ending)
    store = lease.belief.link.store
    store.put(lease.belief.key, ENDINGS, value, None, clock.now() + 10)


def bad(token: int, how: str = "exit", at: float | None = None) -> TermEnding:
    return TermEnding(token, how, clock.wall() if at is None else at, 4, "why")


def test_a_term_is_told_with_its_begin_and_its_bad_end(lease: Lease) -> None:
    sent = Sent()
    news = news_with(sent)
    for ending in (
        bad(1),
        bad(1, "lost"),
        TermEnding(1, "exit", 0.0, 0),
        TermEnding(1, "asked", 0.0),
    ):
        news.elected(lease)
        news.ended(lease, ending)
    told = ["leader.elected"] * 4
    told[1:1], told[3:3] = ["leader.failed"], ["leader.lost"]
    assert sent.kinds == told


def test_a_name_that_flaps_is_told_once_until_it_has_calmed_down(lease: Lease) -> None:
    sent = Sent()
    news = news_with(sent)
    record(lease, bad(1), bad(2), bad(3))
    for _ in range(3):
        news.ended(lease, bad(3))
        news.elected(lease)
    assert sent.kinds == ["leader.flapping"]
    record(lease, bad(1, at=0.0), bad(2, at=0.0), bad(3, at=0.0))
    news.elected(lease)
    assert sent.kinds[1:] == ["leader.elected"]
    record(lease, bad(4), bad(5), bad(6))
    news.ended(lease, bad(6))
    assert sent.kinds[2:] == ["leader.flapping"]


def test_no_ping_without_a_proof_and_a_running_command(lease: Lease) -> None:
    sent, situation = Sent(), Situation("x", "me", ttl=3.0, is_candidate=True)
    news = news_with(sent)
    news.command_runs(situation, runs=True)
    (ping,) = sent.beats
    assert ping() is None
    situation.note_leading(lease)
    situation.pulse(clock.now() + 60)
    assert ping() is not None
    # The main loop, which would stop the command, does not turn.
    situation.pulse(clock.now() - 60)
    assert ping() is None
    situation.pulse(clock.now() + 60)
    news.command_runs(situation, runs=False)
    assert ping() is None
    news.command_runs(situation, runs=True)
    lease.release()
    assert ping() is None


def test_between_two_terms_no_command_runs(lease: Lease) -> None:
    """A command that ended with nothing left of it ended in one phase."""
    sent, situation = Sent(), Situation("x", "me", ttl=3.0, is_candidate=True)
    news = news_with(sent)
    situation.note_leading(lease)
    situation.pulse(clock.now() + 60)
    news.command_runs(situation, runs=True)
    news.ended(lease, TermEnding(1, "exit", 0.0, 0))
    assert sent.beats[0]() is None


# -- processes -------------------------------------------------------------------------------------


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, command: str) -> subprocess.Popen[bytes]:
        line = ("-s", f"sqlite:///{tmp_path}/leases.db", "lead", "x", *TIMES, *options)
        with (tmp_path / "said").open("ab") as said:
            process = subprocess.Popen(
                command_line(*line, "--", "sh", "-c", command),
                env=environment({"INCUMBENT_NOTIFY_SECRET": SECRET, "FOLDER": str(tmp_path)}),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@real_processes
def test_a_leader_pings_as_long_as_it_leads(
    leading: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with listening() as server:
        url = f"{server.url}/SECRETPATH"
        (tmp_path / "url").write_text(f"{url}\n")
        options = ("--ping", f"@{tmp_path}/url", "--ping-every", "1s", "--notify", url)
        process = leading(*options, command="sleep 1000")
        eventually(lambda: len(server.paths()) >= 4)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        pings = len([it for it in server.requests if it.method == "GET"])
        assert pings >= 3
        (message,) = server.webhooks()
        assert (message["type"], message["data"]["name"]) == ("leader.elected", "x")
    assert "SECRETPATH" not in (tmp_path / "said").read_text()


@real_processes
@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("fault", [faults.HANGS, faults.SLOW, "503", "refuses"])
def test_a_bad_receiver_costs_a_leader_nothing(
    leading: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, fault: str
) -> None:
    """It leads for two ttls in one term, and ends at once: its linger is 2 s, a request 10 s."""
    with listening("503" if fault == "refuses" else fault) as server:
        url = nobody() if fault == "refuses" else server.url
        process = leading(
            *("--ping", f"{url}/SECRETPATH", "--ping-every", "1s", "--notify", f"{url}/SECRETPATH"),
            command="sleep 12; touch $FOLDER/led; sleep 1000",
        )
        eventually((tmp_path / "led").exists, within=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    said = (tmp_path / "said").read_text()
    assert said.count("leading, term") == 1
    assert "SECRETPATH" not in said
    assert "not sent before the end" in said


def run(tmp_path: Path, *words: str, command: str) -> subprocess.CompletedProcess[str]:
    store = f"sqlite:///{tmp_path}/leases.db"
    line = ("-s", store, "run", "x", *words, "--", "sh", "-c", command)
    return incumbent(*line, env={"INCUMBENT_NOTIFY_SECRET": SECRET}, within=120)


@real_processes
@pytest.mark.left(tiers.LONG, "*run.failed*")
@pytest.mark.parametrize(
    ("command", "code", "kind", "words"),
    [
        ("exit 0", 0, None, ()),
        ("exit 3", 3, "run.failed", ()),
        ("sleep 100", 124, "run.timed_out", ("--at-most-for", "1s")),
    ],
)
def test_a_run_pings_its_begin_and_its_end(
    tmp_path: Path, command: str, code: int, kind: str | None, words: tuple[str, ...]
) -> None:
    with listening() as server:
        url = f"{server.url}/SECRETPATH"
        done = run(tmp_path, *words, "--ping", url, "--notify", url, command=command)
        assert done.returncode == code
        pings = [it.path for it in server.requests if it.method == "GET"]
        end = "/SECRETPATH" if code == 0 else f"/SECRETPATH/{code}"
        assert pings == ["/SECRETPATH/start", end]
        messages = server.webhooks()
        assert [message["type"] for message in messages] == ([] if kind is None else [kind])
        assert all(message["data"]["namespace"] == "default" for message in messages)
    assert "SECRETPATH" not in done.stdout + done.stderr


@real_processes
def test_a_run_that_is_skipped_tells_nobody_and_a_command_finds_no_secret(tmp_path: Path) -> None:
    with listening() as server:
        url = f"{server.url}/SECRETPATH"
        nested = f"{command_line('run')[0]} -m incumbent"
        done = run(
            tmp_path,
            *("--ping", url, "--notify", url, "--share-store"),
            command=f"env; {nested} run x --ping {url} -- true; test $? = 75",
        )
        assert done.returncode == 0, done.stderr
        assert server.paths() == ["/SECRETPATH/start", "/SECRETPATH"]
    assert SECRET not in done.stdout
    assert "INCUMBENT_NOTIFY" not in done.stdout


# -- options ---------------------------------------------------------------------------------------


WRONG: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
    (("--notify", "SECRETPATH"), {}, "notify: the URL begins with https://"),
    (("--notify", "https://h/SECRETPATH"), {}, "there is no secret"),
    (("--notify", "https://h/"), {"INCUMBENT_NOTIFY_SECRET": "SECRETPATH"}, "a secret is whsec_"),
    (("--notify", "https://h/"), {"INCUMBENT_NOTIFY_SECRET_FILE": "/none"}, "cannot be read"),
    (("--ping", "@/none"), {}, "cannot be read"),
)
OF_LEADERS: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
    (("--ping-every", "5s"), {}, "add --ping"),
    (("--ping", "https://h/", "--ping-every", "0"), {}, "--ping-every"),
)


@pytest.mark.parametrize(
    ("command", "words", "env", "text"),
    [
        *((("run",), *wrong) for wrong in WRONG),
        *((("lead",), *wrong) for wrong in (WRONG[0], WRONG[1], *OF_LEADERS)),
        *((("work", "--workers", "1"), *wrong) for wrong in (WRONG[0], WRONG[1], *OF_LEADERS)),
    ],
)
def test_what_cannot_be_used_is_a_usage_error(
    command: tuple[str, ...], words: tuple[str, ...], env: dict[str, str], text: str
) -> None:
    request = parse([command[0], "x", *command[1:], *words, "--", "true"], {})
    with mock.patch.dict(os.environ, env), pytest.raises(ConfigError) as raised:
        news_of(request, ignore)
    said = request.as_typed(str(raised.value))
    assert text in said
    assert "SECRETPATH" not in said


@pytest.mark.left(tiers.SIDES, "*command1*")
@pytest.mark.parametrize("command", [("run",), ("lead",), ("work", "--workers", "1")])
def test_a_receiver_that_cannot_be_used_keeps_anything_from_running(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    ran = tmp_path / "ran"
    words = (command[0], "x", *command[1:], "--notify", "https://h/SECRETPATH")
    done = incumbent("-s", f"sqlite:///{tmp_path}/x.db", *words, "--", "touch", ran)
    assert (done.returncode, ran.exists()) == (64, False)
    assert "there is no secret" in done.stderr
    assert "SECRETPATH" not in done.stderr


def test_what_tells_nobody_loads_nothing_for_it() -> None:
    assert news_of(parse(["run", "x", "--", "true"], {}), ignore) is None
    assert (
        news_of(parse(["run", "x", "--ping", "https://h/", "--", "true"], {}), ignore) is not None
    )


# -- doctor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [("200", 0), ("404", 69), (faults.GARBAGE, 69)])
def test_doctor_sends_a_test_message(tmp_path: Path, status: str, code: int) -> None:
    with listening(status) as server:
        url = f"{server.url}/SECRETPATH"
        line = ("-s", f"sqlite:///{tmp_path}/x.db", "doctor", "--test-notify", "--notify", url)
        done = incumbent(*line, env={"INCUMBENT_NOTIFY_SECRET": SECRET})
        assert done.returncode == code, done.stdout
        assert [message["type"] for message in server.webhooks()] == ["test"]
    assert "SECRETPATH" not in done.stdout + done.stderr
    assert f"127.0.0.1:{server.port} accepts" in done.stdout
