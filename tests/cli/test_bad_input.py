"""What cannot work is refused with 64 and one clear line; nothing is acquired, nothing runs."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import Lock
from tests import tiers
from tests.cli.tool import called, command_line, environment, incumbent, start
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

# Of process starts on a loaded machine. What is to be seen are clients that nest their retries:
# they take a multiple of this.
NOISE = 12.0
"""Seconds that starting Python may take on a busy machine, beside the deadline; what has no
deadline takes many times as long."""


@pytest.fixture
def touched(tmp_path: Path) -> Iterator[Path]:
    """Exists if the command ran, which it must not."""
    path = tmp_path / "touched"
    yield path
    assert not path.exists()


def words_of(store: str, touched: Path, *options: str) -> list[str]:
    return ["-s", store, "run", *(options or ("job",)), "--", "touch", str(touched)]


def run(store: str, touched: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What is refused before it begins needs no process of its own."""
    return called(words_of(store, touched, *options), environment(env))


def refused(done: subprocess.CompletedProcess[str], said: str, code: int = 64) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("incumbent: ")
    assert said in line
    assert len(line) < 500


@pytest.mark.left(tiers.FORMS, "a b")
@pytest.mark.parametrize(
    "name", ["", "a b", "a\nb", "ü", "../x", "a..b", "x" * 201, "x" * 100_000, "*", "a\\b"]
)
def test_a_name_outside_the_alphabet(store: str, touched: Path, name: str) -> None:
    refused(run(store, touched, name), "is not a name")


@pytest.mark.left(tiers.FORMS, "nan")
@pytest.mark.parametrize(
    "ttl", ["0", "-1", "nan", "inf", "1e30", "99d", "0.05", "soon", "", "1s1", "15 x"]
)
def test_a_ttl_that_is_none(store: str, touched: Path, ttl: str) -> None:
    refused(run(store, touched, "job", f"--ttl={ttl}"), "ttl=")


def test_a_ttl_that_does_not_fit_the_grace(store: str, touched: Path) -> None:
    refused(run(store, touched, "job", "--ttl", "5s", "--grace", "4s"), "is too short: drift 100ms")


@pytest.mark.left(tiers.FORMS, "options7*", "options9*")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--grace=-1",), "grace="),
        (("--wait=forever",), "wait="),
        (("--once-per", "0"), "--once-per="),
        (("--at-most-for", "1s", "--at-least-for", "2s"), "--at-least-for=2s"),
        (("--holder", "a b"), "holder="),
        (("-E", "256"), "--busy-exit-code='256'"),
        (("-E", "-1"), "--busy-exit-code='-1'"),
        (("--fair",), "--fair is an order of those that wait: add --wait"),
        (("--result-file", "/nowhere/result"), "--result-file='/nowhere/result'"),
        (("-N", "a/b"), "is not a namespace"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_an_option_that_cannot_work(
    store: str, touched: Path, options: tuple[str, ...], said: str
) -> None:
    refused(run(store, touched, "job", *options), said)


@pytest.mark.left(tiers.FORMS, "redis:*port", "withheld*")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "is not the URL of a store"),
        ("localhost:6379", "localhost:6379 has no scheme: did you mean redis://localhost:6379 ?"),
        ("mongodb://host", "'mongodb' is not the scheme of a known store"),
        ("redis://host:port", "port"),
        ("redis://host?colour=blue", "colour"),
        ("rediss://host?ssl_cert_reqs=none", "ssl_cert_reqs"),
        ("sqlite:///tmp/x.db?colour=blue", "colour"),
        ("withheld:", "--share-store"),
        ("sqlite:///tmp/x.db ", "--store=... begins or ends with a blank or a quote"),
        ("'redis://host'", "begins or ends with a blank or a quote"),
    ],
)
def test_a_store_that_cannot_be_meant(touched: Path, url: str, said: str) -> None:
    refused(run(url, touched), said)


@pytest.mark.left(tiers.FORMS, "*geheim*")
@pytest.mark.parametrize("url", ["'redis://:geheim@host'", '"sqlite:///tmp/x.db"', " redis://h"])
def test_a_variable_with_quotes_or_blanks_is_named_and_its_url_not_shown(
    touched: Path, url: str
) -> None:
    done = incumbent("run", "job", "--", "touch", touched, env={"INCUMBENT_STORE": url})
    refused(done, "INCUMBENT_STORE=... begins or ends with a blank or a quote")
    assert "geheim" not in done.stderr


@pytest.mark.parametrize(
    "words", ["status", "jobs", "status x", "why x", "history x", "wait x", "pause x", "trigger x"]
)
def test_a_namespace_that_is_none_is_refused_by_every_command(store: str, words: str) -> None:
    refused(incumbent("-s", store, "-N", "a b", *words.split()), "'a b' is not a namespace")


@pytest.mark.left(tiers.FORMS, "run")
@pytest.mark.parametrize("command", ["run", "lead"])
def test_a_quoted_command_line_gets_a_hint(store: str, command: str) -> None:
    done = incumbent("-s", store, command, "job", "--", "sleep 5")
    assert done.returncode == 127
    assert "sleep 5: not found; it is one word with blanks in it" in done.stderr
    assert "blanks" not in incumbent("-s", store, command, "job", "--", "nowhere").stderr


def test_a_missing_extra_says_what_to_install(tmp_path: Path, touched: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('redis', 'hiredis'):\n    sys.modules[name] = None\n"
    )
    done = incumbent(*words_of("redis://host", touched), env={"PYTHONPATH": str(tmp_path)})
    refused(done, "pip install 'incumbent[redis]' (hiredis>=3.0)")


def test_a_misspelt_variable_is_refused(store: str, touched: Path) -> None:
    refused(run(store, touched, INCUMBENT_TLL="5"), "INCUMBENT_TLL is not a setting: did you mean")


@pytest.mark.left(tiers.FORMS, "ONCE_PER")
@pytest.mark.parametrize("variable", ["SLOT", "ONCE_PER", "AT_LEAST_FOR", "WAIT"])
def test_a_variable_that_is_about_one_start_is_named_and_changes_none(
    store: str, variable: str
) -> None:
    name = f"INCUMBENT_{variable}"
    for _ in range(2):
        done = incumbent("-s", store, "run", "job", "--", "echo", "ran", env={name: "1h"})
        assert (done.returncode, done.stdout) == (0, "ran\n")
        assert f"ignored: {name} cannot come from the environment: give --" in done.stderr


@pytest.mark.left(tiers.FORMS, "slot0")
@pytest.mark.parametrize("slot", [("--slot", "today"), ("--once-per", "1h")])
def test_what_a_command_is_given_neither_refuses_nor_changes_a_run_inside_of_it(
    store: str, slot: tuple[str, str]
) -> None:
    inner = shlex.join(("env", *command_line("run", "inner", "--", "env")))
    outer = ("run", "outer", "--share-store", *slot, "--", "sh", "-c", f"{inner}; {inner}")
    done = incumbent("-q", "-s", store, *outer)
    assert done.returncode == 0
    assert "INCUMBENT_" not in done.stderr
    assert done.stdout.count("INCUMBENT_LEASE_NAME=inner") == 2
    assert "INCUMBENT_LEASE_SLOT" not in done.stdout


def test_the_environment_makes_no_operator_write_or_remove(store: str) -> None:
    env = {"INCUMBENT_FORCE": "1", "INCUMBENT_FIX": "1", "INCUMBENT_WATCH": "1"}
    holder = start("-s", store, "run", "job", "--", "sleep", "30")
    try:
        look = ("-s", store, "status", "job", "--json")
        eventually(lambda: '"state": "held"' in incumbent(*look, env=env).stdout)
        asked = incumbent("-s", store, "break", "job", env=env)
        # Asked, the holder let go in order: its record was not removed under it.
        assert holder.wait(60) == 123
        assert "was ended at the request of an operator" in holder.communicate()[1]
    finally:
        holder.kill()
        holder.communicate()
    assert asked.returncode == 0
    assert "ignored: INCUMBENT_FORCE cannot come from the environment" in asked.stderr


def test_an_unknown_variable_is_told_once_and_ignored(store: str) -> None:
    env = {"INCUMBENT_COLOUR_SCHEME": "x", "INCUMBENT_PORT": "tcp://10.0.0.1:6379"}
    done = incumbent("-s", store, "run", "job", "--once-per", "1h", "--", "true", env=env)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "INCUMBENT_COLOUR_SCHEME" in done.stderr
    assert "INCUMBENT_PORT" not in done.stderr


def test_variables_are_options(store: str, touched: Path) -> None:
    env = {"INCUMBENT_STORE": store, "INCUMBENT_TTL": "0"}
    refused(incumbent("run", "job", "--", "touch", touched, env=env), "INCUMBENT_TTL='0'")


def test_a_missing_separator_shows_the_line_with_it(store: str, touched: Path) -> None:
    refused(incumbent("-s", store, "run", "job", "touch", touched), f"run job -- touch {touched}")


@pytest.mark.left(tiers.FORMS, "words0")
@pytest.mark.parametrize("words", [("job", "--wait", "5"), ("--wait", "5s", "job")])
def test_a_duration_of_wait_without_its_sign_shows_it(
    store: str, touched: Path, words: tuple[str, ...]
) -> None:
    refused(run(store, touched, *words), f"--wait={words[2] if words[0] == 'job' else words[1]}")


@pytest.mark.left(tiers.FORMS, "named0")
@pytest.mark.parametrize("named", [("--store", ""), ("-q",)])
def test_a_store_that_is_named_and_empty_is_refused(touched: Path, named: tuple[str, ...]) -> None:
    empty = {"INCUMBENT_STORE": ""}
    done = incumbent(*named, "run", "job", "--", "touch", touched, env=empty)
    refused(done, "is empty: name a store")


@pytest.mark.left(tiers.FORMS, "words0", "words3", "words4")
@pytest.mark.parametrize(
    "words",
    [
        ("run", "job", "-N", ""),
        ("run", "job", "--result-file", ""),
        ("lead", "job", "--namespace", ""),
        ("lead", "job", "--ping", "https://127.0.0.1/", "--ping-every", ""),
        ("work", "job", "--workers", "2", "--namespace", ""),
    ],
)
def test_an_option_that_was_given_empty_is_not_left_out(
    store: str, touched: Path, words: tuple[str, ...]
) -> None:
    """An unset variable of a script would make it another fleet, or another candidate."""
    done = incumbent("-s", store, *words, "--", "touch", touched)
    assert done.returncode == 64, done.stderr


@pytest.mark.left(tiers.FORMS, "words0", "words4", "words5")
@pytest.mark.parametrize(
    "words",
    [
        ("status", "job", "-N", ""),
        ("status", ""),
        ("pause", "job", "--namespace="),
        ("pause", "--all", ""),
        ("doctor", "-N", ""),
        ("serve", "-N", ""),
        ("serve", "--listen", ""),
        ("resign", "job", "--to", ""),
        ("trigger", "job", "--timeout", ""),
    ],
)
def test_a_question_with_an_empty_option_is_refused(store: str, words: tuple[str, ...]) -> None:
    with Lock("job", store=store):
        done = incumbent("-s", store, *words)
    assert (done.returncode, done.stdout) == (64, ""), done.stderr


def test_a_prefix_that_no_name_has_is_refused(store: str) -> None:
    for prefix in ("\u00fc", "\udcff"):
        done = incumbent("-s", store, "status", "--prefix", prefix)
        refused(done, "no name begins so")


def test_a_message_about_an_option_begins_with_its_flag(store: str) -> None:
    refused(incumbent("-s", store, "pause", "job", "--reason", "a\tb"), "incumbent: --reason: at")


@pytest.mark.parametrize("option", ["--namespace", "--holder", "--drain"])
def test_jobs_get_no_default_for_an_option_that_is_empty(
    store: str, tmp_path: Path, option: str
) -> None:
    (tmp_path / "jobs.toml").write_text('[[job]]\nname = "x"\nevery = "1h"\ncommand = "true"\n')
    (tmp_path / "ours.py").write_text(f"import incumbent\njobs = incumbent.Jobs({store!r})\n")
    env = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    for what in (str(tmp_path / "jobs.toml"), "ours:jobs"):
        done = incumbent("-s", store, "cron", what, option, "", env=env)
        assert done.returncode == 64, done.stderr


def shell(line: str, store: str) -> subprocess.CompletedProcess[str]:
    """`line`, with "$I" for the command; Python writes at once, as it does in most containers."""
    env = environment({"INCUMBENT_STORE": store, "PYTHONUNBUFFERED": "1"})
    line = f"I='{sys.executable} -m incumbent'; {line}"
    return subprocess.run(
        ["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_closed_standard_streams_are_given_to_no_file_and_no_socket(store: str) -> None:
    shows = "import os; [os.write(3, os.readlink(f'/proc/self/fd/{n}').encode()) for n in range(3)]"
    done = shell(f'$I run -q job -- {sys.executable} -c "{shows}" 3>&1 <&- >&- 2>&-', store)
    assert (done.returncode, done.stdout) == (0, "/dev/null" * 3)


@pytest.mark.left(tiers.FORMS, "status")
@pytest.mark.parametrize("words", ["status", "--version"])
def test_an_answer_that_cannot_be_written_is_told_in_one_line(store: str, words: str) -> None:
    refused(shell(f"$I {words} >/dev/full", store), "the answer cannot be written: No space", 125)


@pytest.mark.left(tiers.FORMS, "--help", "run --help")
@pytest.mark.parametrize("words", ["--help", "run --help", "help run"])
def test_help_that_cannot_be_written_says_so(store: str, words: str) -> None:
    for buffered in ("", "env -u PYTHONUNBUFFERED "):
        done = shell(f"{buffered}$I {words} >/dev/full", store)
        refused(done, "the answer cannot be written: No space", 125)


@pytest.mark.left(tiers.FORMS, "words1", "words2")
@pytest.mark.parametrize("words", [("status",), ("why", "job"), ("history", "job")])
def test_what_an_output_cannot_write_is_shown_escaped(store: str, words: tuple[str, ...]) -> None:
    env = environment({"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    with Lock("job", store=store, holder="M\u00fcller\u2192"):
        line = command_line("-s", store, *words)
        done = subprocess.run(line, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"M\xfcller\\u2192" in done.stdout


def test_what_the_system_refuses_is_not_called_a_defect(store: str) -> None:
    done = shell("ulimit -n 12; $I run job -- true", store)
    assert done.returncode == 125
    assert "no file descriptor is free; raise their limit (ulimit -n)" in done.stderr
    assert "defect" not in done.stderr


def test_no_store_named_in_a_container_is_refused(touched: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    refused(incumbent("run", "job", "--", "touch", touched, env=env), "INCUMBENT_STORE=redis://")


def test_nested_use_in_the_child_fails_closed(store: str, touched: Path) -> None:
    nested = [sys.executable, "-m", "incumbent", "run", "other", "--", "touch", str(touched)]
    env = {"INCUMBENT_STORE": store}
    refused(incumbent("run", "-q", "job", "--", *nested, env=env), "--share-store")


def test_a_shared_store_serves_the_child(store: str) -> None:
    nested = [sys.executable, "-m", "incumbent", "run", "-q", "other", "--", "echo", "nested"]
    done = incumbent("-s", store, "run", "-q", "--share-store", "job", "--", *nested)
    assert (done.returncode, done.stdout) == (0, "nested\n")


# -- servers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[RedisServer]:
    with RedisServer(password="right/@:word") as server:
        yield server


def url_of(server: RedisServer) -> str:
    return f"redis://127.0.0.1:{server.port}?restart_wait=0"


@pytest.mark.server
def test_a_wrong_password_is_never_printed(locked: RedisServer, touched: Path) -> None:
    url = f"redis://:hunter2@127.0.0.1:{locked.port}"
    for command in (
        ("run", "-v", "job", "--", "touch", str(touched)),
        ("status", "-v"),
        ("doctor",),
    ):
        done = incumbent("-s", url, *command)
        assert done.returncode == 69
        assert "hunter2" not in done.stderr + done.stdout


@pytest.mark.server
def test_a_password_comes_from_its_file(locked: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\ufeffright/@:word\n", encoding="utf-8")
    env = {"INCUMBENT_STORE": url_of(locked), "INCUMBENT_STORE_PASSWORD_FILE": str(file)}
    done = incumbent("run", "-q", "job", "--", "env", env=env)
    assert done.returncode == 0, done.stderr
    assert "PASSWORD_FILE" not in done.stdout
    assert "right/@:word" not in done.stdout


def test_a_password_file_that_cannot_be_read(touched: Path) -> None:
    env = {"INCUMBENT_STORE_PASSWORD_FILE": "/nowhere/password"}
    refused(run("redis://host", touched, **env), "/nowhere/password cannot be read")


@pytest.mark.left(tiers.FORMS, "write0")
@pytest.mark.parametrize("write", [("SET", "foreign"), ("RPUSH", "foreign")])
def test_a_foreign_value_counts_as_held_and_stays(
    redis_server: RedisServer, touched: Path, write: tuple[str, str]
) -> None:
    key = f"theirs-{write[0]}"
    redis_server.cli(write[0], key, write[1])
    store = f"{redis_server.url}?restart_wait=0&key={{name}}"
    done = incumbent(*words_of(store, touched, key))
    assert done.returncode in (69, 75), done.stderr
    assert key in done.stderr
    assert len(done.stderr.splitlines()) == 1
    for force in ((), ("--force",)):
        assert incumbent("-s", store, "break", key, *force).returncode in (69, 75)
    assert redis_server.cli("EXISTS", key) == "1"


# -- deadlines -----------------------------------------------------------------------------------

BOUNDED = [
    (("run", "job", "--ttl", "1.2", "--", "true"), 0.2),
    (("run", "job", "--wait=0.5", "--", "true"), 0.5),
    (("wait", "job", "--timeout", "0.5"), 0.5),
    (("status",), 2.0),
    (("break", "job"), 2.0),
    (("history", "job"), 2.0),
    (("doctor",), 2.0),
]


@pytest.mark.left(tiers.FORMS, "command0-*", "command3-*")
@pytest.mark.parametrize(("command", "deadline"), BOUNDED)
def test_a_black_hole_gets_69_within_the_deadline(
    proxy: FaultProxy, command: tuple[str, ...], deadline: float
) -> None:
    proxy.blackhole()
    in_time(proxy.url, command, deadline)


@pytest.fixture(scope="module")
def silent_port() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel drops every further SYN."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        yield port
        for sock in waiting:
            sock.close()


@pytest.mark.left(tiers.FORMS, "command1-*")
@pytest.mark.parametrize(("command", "deadline"), BOUNDED[:3])
def test_an_address_that_never_answers_gets_69_within_the_deadline(
    silent_port: int, command: tuple[str, ...], deadline: float
) -> None:
    in_time(f"redis://127.0.0.1:{silent_port}", command, deadline)


def in_time(store: str, command: tuple[str, ...], deadline: float) -> None:
    began = time.monotonic()
    done = incumbent("-s", store, *command)
    took = time.monotonic() - began
    assert done.returncode == 69, done.stderr
    assert took < deadline + 0.1 + NOISE


def test_help_and_version_need_no_store() -> None:
    for words in (("--help",), ("--version",), ("run", "--help")):
        done = incumbent(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    assert environment({"X": "1"})["X"] == "1"


# -- lead and work -------------------------------------------------------------------------------


@pytest.mark.left(tiers.FORMS, "words0-*")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lead", "job", "--ttl", "5s", "--grace", "4s"), "is too short: drift 100ms"),
        (
            ("lead", "job", "--restart", "sometimes"),
            "--restart='sometimes' is not always, on-failure or never",
        ),
        (("lead", "job", "--isolate", "jail"), "--isolate='jail'"),
        (("work", "job"), "--workers is missing"),
        (("work", "job", "--workers", "0"), "--workers='0'"),
        (
            ("work", "job", "--workers", "2", "--permits", "3"),
            "--permits=3 is more than --workers=2",
        ),
    ],
)
def test_a_campaign_that_cannot_work(
    store: str, touched: Path, words: tuple[str, ...], said: str
) -> None:
    refused(incumbent("-s", store, *words, "--", "touch", str(touched)), said)


def test_a_successor_that_does_not_stand_is_refused(store: str) -> None:
    refused(incumbent("-s", store, "resign", "job", "--to", "x"), "there are no candidates")
