"""Settings from INCUMBENT_ variables, and what to make of those that are not settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from incumbent.cli.table import PREFIX, VARIABLES, Option
from incumbent.errors import ConfigError

__all__ = ["distance", "settings_from", "unknown_variables"]

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})

# What Kubernetes and old Docker links inject for a Service that is called like us.
_LINK_NAME: Final = re.compile(
    r"(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_LINK_VALUE: Final = re.compile(r"(?:tcp|udp|sctp)://\S+")


def settings_from(environ: Mapping[str, str], options: Iterable[Option]) -> dict[str, str | bool]:
    """What the environment says of `options`; an empty variable says nothing."""
    found: dict[str, str | bool] = {}
    for option in options:
        text = "" if option.flag_only else environ.get(option.variable, "")
        if not text:
            continue
        value = _value(option, text)
        if value is not None:
            found[option.dest] = value
    return found


def _value(option: Option, text: str) -> str | bool | None:
    word = text.lower()
    if option.dest == "wait" and word in _YES | _NO and not word.isdigit():
        # The flag has a form without a duration: its variable has one too.
        return "" if word in _YES else None
    if option.metavar:
        return text
    if word not in _YES | _NO:
        raise ConfigError(f"{option.variable}={text!r}: write 1 or 0", name=option.dest)
    return word in _YES


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Our prefix, but nothing of ours. Raises ConfigError for what looks like a misspelling."""
    unknown = sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in VARIABLES and not _is_link(name, value)
    )
    for name in unknown:
        _refuse_misspelling(name)
    return unknown


def _is_link(name: str, value: str) -> bool:
    short = name.removeprefix(PREFIX)
    return bool(_LINK_NAME.fullmatch(short) or _LINK_VALUE.fullmatch(value))


def _refuse_misspelling(name: str) -> None:
    short = name.removeprefix(PREFIX)
    near = min(VARIABLES, key=lambda known: (distance(name, known), known))
    if distance(name, near) <= (1 if len(short) <= 5 else 2):
        raise ConfigError(f"{name} is not a setting: did you mean {near}?", name=name)


def distance(one: str, other: str) -> int:
    """How many slips make one word of the other: letters left out, put in, changed or swapped.

    Optimal string alignment (Damerau, 1964; the restricted form).
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]
