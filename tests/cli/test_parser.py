"""The words of a command line, and the line that would have been right."""

from __future__ import annotations

import pytest

from incumbent.cli.lead import worker_name
from incumbent.cli.parser import CommandRequest, UsageError, parse
from incumbent.cli.settings import number
from incumbent.errors import ConfigError
from incumbent.stores.url import with_password


def parsed(line: str, **environ: str) -> CommandRequest:
    return parse(line.split(), {f"INCUMBENT_{name}": value for name, value in environ.items()})


@pytest.mark.parametrize(
    "line",
    [
        "-s memory: run nightly --ttl 5s -- date -u",
        "run -s memory: --ttl 5s nightly -- date -u",
        "run nightly --ttl=5s --store=memory: -- date -u",
    ],
)
def test_options_stand_before_and_after_the_name(line: str) -> None:
    request = parsed(line)
    assert (request.name, request.words) == ("nightly", ("date", "-u"))
    assert (request.text("ttl"), request.text("store")) == ("5s", "memory:")


def test_the_command_keeps_its_own_options_and_separators() -> None:
    assert parsed("run n -- npm run x -- --ttl 9").words == ("npm", "run", "x", "--", "--ttl", "9")


@pytest.mark.parametrize("name", ["-x", "--held", "-1", "--", "run"])
@pytest.mark.parametrize("command", ["status", "break", "-s memory: cron --check", "history -n 3"])
def test_behind_a_separator_a_name_may_begin_as_options_do(command: str, name: str) -> None:
    request = parse([*command.split(), "--", name], {})
    assert (request.name, request.words) == (name, ())
    assert request.command in command
    assert not request.on("held")


def test_flags_win_over_variables() -> None:
    request = parsed("run n --ttl 5s -- x", TTL="9s", GRACE="1s")
    assert (request.text("ttl"), request.text("grace")) == ("5s", "1s")


@pytest.mark.parametrize(
    ("line", "wait"),
    [("run --wait n -- x", ""), ("run --wait=5s n -- x", "5s"), ("run n -- x", None)],
)
def test_wait_takes_its_duration_only_with_an_equals_sign(line: str, wait: str | None) -> None:
    request = parsed(line)
    assert (request.name, request.text("wait")) == ("n", wait)


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("run nightly date -u", "incumbent run nightly -- date -u"),
        ("run --ttl 5s nightly -q date", "incumbent run --ttl 5s nightly -q -- date"),
        ("-s memory: run --wait nightly date", "incumbent -s memory: run --wait nightly -- date"),
        ("run n npm x -- -f", "incumbent run n -- npm x -- -f"),
        ("run nightly", "incumbent run nightly -- CMD"),
        ("run nightly --", "incumbent run nightly -- CMD"),
    ],
)
def test_a_missing_separator_is_shown_in_its_place(line: str, right: str) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(line)
    assert right in str(refused.value)


def test_the_corrected_line_can_be_pasted_into_a_shell() -> None:
    with pytest.raises(UsageError, match=r"-- sh -c 'echo \$HOME; date'"):
        parse(["run", "nightly", "sh", "-c", "echo $HOME; date"], {})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "run -- x",
        "run n --no-such -- x",
        "run n --tt 5 -- x",
        "run n --ttl -- x",
        "run n --no-wait -- x",
        "status a -- x",
        "status --",
        "jobs -- x",
        "wait",
        "wait a b",
    ],
)
def test_what_cannot_be_understood_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        parsed(line)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("run n --tll 5s -- x", "run has no option --tll; did you mean --ttl?"),
        ("run n --grcae=1s -- x", "did you mean --grace?"),
        ("status --once-per 5m", "--once-per is an option of run, not of status"),
        ("run n --isolate pidnss -- x", "--isolate='pidnss' is not auto, pidns, container or"),
        ("lead n --restart onfailure -- x", "did you mean on-failure?"),
        ("led n -- x", "there is no command 'led'; did you mean lead?"),
        ("run n --stor x -- x", "did you mean --store?"),
        ("run n --lease-time 5 -- x", "run has no option --lease-time; did you mean --ttl?"),
        ("run n --expire=5 -- x", "did you mean --ttl?"),
        ("run n --blocking-timeout 5 -- x", "did you mean --wait?"),
        (
            "run n --timeout 5 -- x",
            "of wait, trigger, not of run; did you mean --wait?",
        ),
        ("wait n --max-wait 5", "did you mean --timeout?"),
        ("lead n --timeout 5 -- x", "--timeout is an option of wait, trigger, not of lead"),
        ("run n -t 5 -- x", "run has no option -t. See"),
        ("run n -n 5 -- x", "-n is an option of history, logs, not of run"),
    ],
)
def test_a_misspelt_word_names_the_one_that_was_meant(line: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(line)
    assert meant in str(refused.value)


@pytest.mark.parametrize("line", ["run n -qv -- x", "run -ssqlite: n -- x", "run n -E75 -- x"])
def test_short_options_may_stand_together_and_before_their_value(line: str) -> None:
    assert parsed(line).words == ("x",)


def test_a_choice_that_came_from_a_variable_names_the_variable() -> None:
    with pytest.raises(UsageError, match="INCUMBENT_ISOLATE='jail' is not"):
        parsed("run n -- x", ISOLATE="jail")


def test_the_options_of_cmd_are_not_taken_for_ours() -> None:
    with pytest.raises(UsageError, match="a `--` goes before the command"):
        parsed("run nightly ls --colour")


def test_a_message_speaks_of_what_the_caller_typed() -> None:
    request = parsed("run n --at-most-for 2s --fair -- x", TTL="3s")
    message = "ttl=3s, grace=9s, at_most_for=2s, fair=True and once_per; --ttl; wait a little"
    assert request.as_typed(message) == (
        "INCUMBENT_TTL=3s, --grace=9s, --at-most-for=2s, --fair and --once-per; INCUMBENT_TTL;"
        " wait a little"
    )
    assert request.as_typed("slot: needs once_per; slot: x") == "--slot: needs --once-per; slot: x"
    assert request.as_typed("redis://host?ttl=3&holder=x") == "redis://host?ttl=3&holder=x"


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host:1/0", "redis://:p%40%2Fw@host:1/0"),
        ("rediss://me@host", "rediss://me:p%40%2Fw@host"),
        ("redis+unix:///run/redis.sock", "redis+unix://:p%40%2Fw@/run/redis.sock"),
    ],
)
def test_a_password_is_put_where_the_url_has_it(url: str, whole: str) -> None:
    assert with_password(url, "p@/w") == whole


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:///x", "memory:", "redis://:other@host"])
def test_a_password_without_a_place_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_password(url, "hunter2")
    assert "hunter2" not in str(refused.value)
    assert "other@" not in str(refused.value)


def test_places_go_round_and_one_place_is_the_name_itself() -> None:
    assert [worker_name("a", index, 2) for index in range(4)] == ["a/1", "a/2", "a/1", "a/2"]
    assert worker_name("a", 3, 1) == "a"


@pytest.mark.parametrize("command", ["lead n --restart never", "work n --workers 4"])
def test_a_campaign_needs_its_separator_too(command: str) -> None:
    with pytest.raises(UsageError, match=f"incumbent {command} -- date"):
        parse([*command.split(), "date"], {})


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "", "many", "100001", "9" * 40])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    request = CommandRequest("cron", {"max_runs": text})
    with pytest.raises(ConfigError, match=r"--max-runs=.*: a number from 1 to 100000"):
        number(request, "max_runs", 1, 100_000, 100)


@pytest.mark.parametrize(("text", "found"), [(None, 100), ("1", 1), ("100000", 100_000)])
def test_there_is_a_limit_unless_another_is_given(text: str | None, found: int) -> None:
    values = {} if text is None else {"max_runs": text}
    assert number(CommandRequest("cron", values), "max_runs", 1, 100_000, 100) == found
