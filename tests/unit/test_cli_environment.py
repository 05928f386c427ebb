"""Variables: settings are taken, slips are refused, what others inject is left alone."""

from __future__ import annotations

import pytest

from incumbent.cli.environment import distance, settings_from, unknown_variables
from incumbent.cli.table import COMMANDS, GLOBAL, VARIABLES
from incumbent.errors import ConfigError

OPTIONS = (*GLOBAL, *COMMANDS["run"].options)


@pytest.mark.parametrize(
    ("one", "other", "slips"),
    [
        ("", "", 0),
        ("TTL", "TTL", 0),
        ("TLL", "TTL", 1),
        ("TT", "TTL", 1),
        ("ONEC_PER", "ONCE_PER", 1),
        ("GRAEC", "GRACE", 1),
        ("STORE", "", 5),
        ("HOLDER", "HOLDING", 3),
    ],
)
def test_a_distance_counts_slips(one: str, other: str, slips: int) -> None:
    assert distance(one, other) == distance(other, one) == slips


def test_every_option_has_a_variable() -> None:
    assert {option.variable for option in OPTIONS} <= VARIABLES
    assert "INCUMBENT_ONCE_PER" in VARIABLES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INCUMBENT_TLL", "INCUMBENT_TTL"),
        ("INCUMBENT_STORES", "INCUMBENT_STORE"),
        ("INCUMBENT_ONCEPER", "INCUMBENT_ONCE_PER"),
        ("INCUMBENT_AT_MOST_FRO", "INCUMBENT_AT_MOST_FOR"),
        ("INCUMBENT_NAMSPACE", "INCUMBENT_NAMESPACE"),
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


@pytest.mark.parametrize(
    ("text", "found"), [("30s", "30s"), ("1", "1"), ("true", ""), ("no", None)]
)
def test_waiting_has_a_form_without_a_duration(text: str, found: str | None) -> None:
    assert settings_from({"INCUMBENT_WAIT": text}, OPTIONS).get("wait") == found
