"""The manual page incumbent(1), made from the table of commands; man(7) describes the format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from incumbent.cli.help import EXAMPLES, EXIT_CODES, GROUPS, NOTES
from incumbent.cli.parser import usage
from incumbent.cli.table import COMMANDS, GLOBAL, Option


def manual_page() -> str:
    """The page as roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH INCUMBENT 1 "" "incumbent {version("incumbent")}"'
    yield from (".SH NAME", _roff("incumbent - of many instances exactly one runs the command"))
    yield from (".SH SYNOPSIS", ".B incumbent", _roff("COMMAND [options]"))
    for group, names in GROUPS.items():
        yield f".SH {group.upper()}"
        for name in names:
            yield from (f".SS {_roff(usage(name))}", _roff(f"{COMMANDS[name].help}."))
            yield from _options(COMMANDS[name].options)
            yield from (".PP", "Examples:", ".PP", ".nf", *map(_roff, EXAMPLES[name]), ".fi")
    yield ".SH OPTIONS OF EVERY COMMAND"
    yield from _options(GLOBAL)
    yield from (".SH ENVIRONMENT", _roff(NOTES), ".SH EXIT STATUS", _roff(EXIT_CODES))


def _options(options: Sequence[Option]) -> Iterator[str]:
    for option in options:
        yield from (".TP", f".B {_roff(', '.join(option.flags))} {_roff(option.metavar)}".rstrip())
        yield _roff(option.help)


def _roff(text: str) -> str:
    """Text, with nothing in it that roff reads as a request or as an escape."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.split("\n"))
