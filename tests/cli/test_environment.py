"""Variables: settings are taken, slips are refused, what others inject is left alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from incumbent.cli.parser import ignored_flags, parse, settings_from, unknown_variables
from incumbent.cli.table import COMMANDS, FLAGS, GLOBAL, SETTINGS, VARIABLES, CliCommand, Option
from incumbent.errors import ConfigError

ROOT = Path(__file__).parents[2]
OPTIONS = (*GLOBAL, *COMMANDS["run"].options)


def options_of(command: str) -> tuple[Option, ...]:
    return (*GLOBAL, *COMMANDS[command].options)


def line_of(name: str, command: CliCommand) -> list[str]:
    return [
        name,
        *(["x"] if command.argument else []),
        *(["--", "true"] if command.with_cmd else []),
    ]


BY_DEST = {
    option.dest: (name, option) for name in COMMANDS for option in reversed(options_of(name))
}


@pytest.mark.parametrize("dest", sorted(SETTINGS))
def test_a_setting_of_a_deployment_comes_from_the_environment(dest: str) -> None:
    name, option = BY_DEST[dest]
    value = (*option.choices, "7")[0] if option.metavar else "yes"
    request = parse(line_of(name, COMMANDS[name]), {option.variable: value})
    assert request.values[dest] == (value if option.metavar else True)
    assert option.variable in VARIABLES


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(name, option, id=f"{name} {option.flags[-1]}")
        for name in COMMANDS
        for option in options_of(name)
        if option.dest not in SETTINGS
    ],
)
def test_every_other_option_comes_from_the_command_line_alone(name: str, option: Option) -> None:
    environ = {option.variable: "1", "INCUMBENT_TTL": "15s"}
    message = f"{option.variable} cannot come from the environment: give {option.flags[-1]} on"
    (line,) = ignored_flags(environ)
    assert line.startswith(message)
    assert unknown_variables(environ) == []
    assert option.dest not in parse(line_of(name, COMMANDS[name]), environ).values


def test_the_page_lists_every_setting_and_no_other() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    table = page.partition("| variable | option |")[2].partition("\n\n")[0]
    assert set(re.findall("INCUMBENT_[A-Z_]+", table)) == {
        BY_DEST[it][1].variable for it in SETTINGS
    }


def test_what_would_write_or_remove_or_refuse_is_no_setting() -> None:
    dangerous = ("FORCE", "FIX", "ALL", "SLOT", "ONCE_PER", "WAIT")
    assert {f"INCUMBENT_{name}" for name in dangerous} <= FLAGS.keys()
    assert VARIABLES.isdisjoint(FLAGS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INCUMBENT_TLL", "INCUMBENT_TTL"),
        ("INCUMBENT_STORES", "INCUMBENT_STORE"),
        ("INCUMBENT_MAXRUNS", "INCUMBENT_MAX_RUNS"),
        ("INCUMBENT_SHARE_STOER", "INCUMBENT_SHARE_STORE"),
        ("INCUMBENT_NAMSPACE", "INCUMBENT_NAMESPACE"),
        ("INCUMBENT_TT", "INCUMBENT_TTL"),
        ("INCUMBENT_GRAEC", "INCUMBENT_GRACE"),
    ],
)
def test_a_near_misspelling_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} .*{meant}\\?"):
        unknown_variables({name: "5"})


def test_other_unknown_variables_are_named() -> None:
    environ = {"INCUMBENT_COLOUR_SCHEME": "x", "INCUMBENT_TTL": "5", "OTHER": "y"}
    assert unknown_variables(environ) == ["INCUMBENT_COLOUR_SCHEME"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INCUMBENT_PORT", "tcp://10.0.0.1:6379"),
        ("INCUMBENT_SERVICE_HOST", "10.0.0.1"),
        ("INCUMBENT_SERVICE_PORT", "6379"),
        ("INCUMBENT_SERVICE_PORT_REDIS", "6379"),
        ("INCUMBENT_PORT_6379_TCP", "tcp://10.0.0.1:6379"),
        ("INCUMBENT_PORT_6379_TCP_PROTO", "tcp"),
        ("INCUMBENT_PORT_6379_TCP_PORT", "6379"),
        ("INCUMBENT_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("INCUMBENT_STORE_PORT", "tcp://10.0.0.1:6379"),
        ("INCUMBENT_STORE_SERVICE_HOST", "10.0.0.1"),
        ("INCUMBENT_STORE_SERVICE_PORT", "6379"),
        ("INCUMBENT_STORE_PORT_53_UDP_ADDR", "10.0.0.1"),
        ("INCUMBENT_TTLS", "udp://10.0.0.1:53"),
        ("INCUMBENT_LEASE_NAME", "nightly"),
        ("INCUMBENT_LEASE_TERM", "7"),
    ],
)
def test_what_an_orchestrator_or_a_parent_injects_is_known(name: str, value: str) -> None:
    assert unknown_variables({name: value}) == []


def test_an_empty_variable_says_nothing() -> None:
    assert settings_from({"INCUMBENT_TTL": ""}, OPTIONS) == {}


@pytest.mark.parametrize(("text", "on"), [("1", True), ("YES", True), ("off", False)])
def test_a_switch_is_on_or_off(text: str, *, on: bool) -> None:
    assert settings_from({"INCUMBENT_SHARE_STORE": text}, OPTIONS) == {"share_store": on}


def test_a_switch_that_is_neither_is_refused() -> None:
    with pytest.raises(ConfigError, match="INCUMBENT_SHARE_STORE='perhaps'"):
        settings_from({"INCUMBENT_SHARE_STORE": "perhaps"}, OPTIONS)
