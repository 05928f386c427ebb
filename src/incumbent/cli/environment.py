"""Settings from INCUMBENT_ variables, and warnings about variables that are no settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from incumbent.cli.spelling import distance
from incumbent.cli.table import FLAGS, PREFIX, SETTINGS, VARIABLES, Option
from incumbent.errors import ConfigError

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})

# What Kubernetes and old Docker links inject for a Service that is called like us.
_LINK_NAME: Final = re.compile(
    r"(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_LINK_VALUE: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")


def settings_from(environ: Mapping[str, str], options: Iterable[Option]) -> dict[str, str | bool]:
    """The values of `options` in the environment; an empty variable is ignored."""
    found: dict[str, str | bool] = {}
    for option in options:
        text = environ.get(option.variable, "") if option.dest in SETTINGS else ""
        if text:
            found[option.dest] = _value(option, text)
    return found


def _value(option: Option, text: str) -> str | bool:
    word = text.lower()
    if option.metavar:
        return text
    if word not in _YES | _NO:
        raise ConfigError(f"{option.variable}={text!r}: write 1 or 0", name=option.dest)
    return word in _YES


def flags_in(environ: Mapping[str, str]) -> list[str]:
    """Variables that are named like a one-shot option: each with what to do instead."""
    return [
        f"{name} cannot come from the environment: give {flag} on the command line"
        for name, flag in sorted(FLAGS.items())
        if environ.get(name) and not _is_link(name, environ[name])
    ]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that nobody knows. Raises ConfigError if one looks like a misspelling."""
    known = VARIABLES | FLAGS.keys()
    ours = {name for name in environ if name.startswith(PREFIX)} - known
    unknown = sorted(name for name in ours if not _is_link(name, environ[name]))
    for name in unknown:
        near = min(VARIABLES, key=lambda setting: (distance(name, setting), setting))
        if distance(name, near) <= (1 if len(name) <= len(PREFIX) + 5 else 2):
            raise ConfigError(f"{name} is not a setting: did you mean {near}?", name=name)
    return unknown


def _is_link(name: str, value: str) -> bool:
    short = name.removeprefix(PREFIX)
    return bool(_LINK_NAME.fullmatch(short) or _LINK_VALUE.fullmatch(value))
