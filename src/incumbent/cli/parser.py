"""From the words of the command line, and the environment, to a Request."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from incumbent.cli.environment import settings_from
from incumbent.cli.spelling import did_you_mean
from incumbent.cli.table import COMMANDS, GLOBAL, OPTIONS, Command, Option


class UsageError(Exception):
    """The command line cannot be understood."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command with its options; flags win over variables."""

    command: str
    values: Mapping[str, str | bool]
    words: tuple[str, ...] = ()
    """CMD and its arguments."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """How the caller writes each option: as a variable if it came from one, else as a flag."""

    def text(self, dest: str) -> str | None:
        """The value of an option, or None if it was not given."""
        value = self.values.get(dest)
        return value if isinstance(value, str) else None

    def on(self, dest: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(dest) is True

    @property
    def name(self) -> str:
        """NAME, or FILE."""
        return self.text("name") or ""

    @property
    def namespace(self) -> str:
        """The namespace, by default "default"."""
        return self.text("namespace") or "default"

    def as_typed(self, message: str) -> str:
        """A message of the library with the caller's flags and variables for Python's settings."""
        for dest, spelled in self.spelled.items():
            # A plain word, such as `wait`, is only a setting where a value follows.
            bare = "" if "_" in dest else "(?==)"
            message = re.sub(rf"(?<![-\w?&]){dest}(?:=True\b|\b{bare})", spelled, message)
            message = re.sub(rf"{_flag_of(dest)}\b(?!-)", spelled, message)
        return message


def _flag_of(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Raises UsageError, or ConfigError for a variable; `--help` and `--version` exit."""
    words = list(arguments)
    separated = "--" in words
    end = words.index("--") if separated else len(words)
    ours, command_line = words[:end], words[end + 1 :]
    typed = list(ours)
    name = _take_command(ours)
    command = COMMANDS[name]
    _check_flags(name, ours, separated=separated)
    _check_separator(name, typed, command_line, separated=separated)
    # A duration of --wait needs its "=": without one the next word is the name.
    ours = ["--wait=" if word == "--wait" else word for word in ours]
    flags = vars(_parser(name, command, ours).parse_args(ours))
    options = (*GLOBAL, *command.options)
    settings = settings_from(environ, options)
    spelled = {
        option.dest: option.variable
        if option.dest in settings.keys() - flags.keys()
        else option.flags[-1]
        for option in options
    }
    request = Request(name, {**settings, **flags}, tuple(command_line), spelled)
    _check_choices(request, options)
    return request


def _take_command(words: list[str]) -> str:
    """Remove the command from `words`, and return it."""
    for position in _plain_words(words):
        if words[position] in COMMANDS:
            return words.pop(position)
        meant = did_you_mean(words[position], COMMANDS)
        raise UsageError(f"there is no command {words[position]!r}{meant} See incumbent --help")
    if "--version" in words:
        _print_version()
    if {"-h", "--help"} & set(words):
        from incumbent.cli.help import overview

        print(overview(), end="")
        raise SystemExit(0)
    raise UsageError("no command given: see incumbent --help")


def _print_version() -> NoReturn:
    # Only here: finding the version reads the package's metadata from disk.
    from importlib.metadata import version

    print(f"incumbent {version('incumbent')}")
    raise SystemExit(0)


# -- what is wrong with a line, in words -----------------------------------------------------------


def _check_flags(name: str, ours: list[str], *, separated: bool) -> None:
    """Every long option is one of this command; else the message names the one that was meant."""
    own = _flags_of(*GLOBAL, *COMMANDS[name].options) | {"--help"}
    plain = list(_plain_words(ours))
    # Without a separator the second plain word begins CMD, whose options are not ours.
    end = plain[1] if COMMANDS[name].runs and not separated and len(plain) > 1 else len(ours)
    values = set(_values(ours))
    for position, word in enumerate(ours[:end]):
        flag = word.partition("=")[0]
        if not word.startswith("--") or position in values or flag in own:
            continue
        others = [each for each, command in COMMANDS.items() if flag in _flags_of(*command.options)]
        if others:
            raise UsageError(f"{flag} is an option of {', '.join(others)}, not of {name}")
        meant = did_you_mean(flag, sorted(own))
        raise UsageError(f"{name} has no option {flag}{meant} See incumbent {name} --help")


def _flags_of(*options: Option) -> set[str]:
    return {flag for option in options for flag in option.flags if flag.startswith("--")}


def _check_choices(request: Request, options: Sequence[Option]) -> None:
    for option in options:
        value = request.text(option.dest)
        if value is not None and option.choices and value not in option.choices:
            which = f"{', '.join(option.choices[:-1])} or {option.choices[-1]}"
            meant = did_you_mean(value, option.choices)
            raise UsageError(f"{request.spelled[option.dest]}={value!r} is not {which}{meant}")


def _check_separator(
    name: str, typed: list[str], command_line: list[str], *, separated: bool
) -> None:
    """Only commands that run CMD have a `--`; the message shows the corrected line."""
    if not COMMANDS[name].runs:
        if separated:
            raise UsageError(f"{name} runs nothing: there is no `--` in it")
        return
    if {"-h", "--help"} & set(typed):
        return
    plain = list(_plain_words(typed))
    if len(plain) > 2:
        for word, following in pairwise(typed):
            if word == "--wait" and following[:1].isdecimal():
                raise UsageError(f"a duration of --wait needs its sign: --wait={following}")
        at = plain[2]
        rest = ["--", *command_line] if separated else []
        raise UsageError(f"a `--` goes before the command: {_line(typed[:at], typed[at:] + rest)}")
    if not command_line and len(plain) == 2:
        raise UsageError(f"no command given: {_line(typed, [])} CMD...")


def _line(typed: list[str], command_line: list[str]) -> str:
    from shlex import join

    return join(["incumbent", *typed, "--", *command_line])


def _plain_words(words: list[str]) -> Iterator[int]:
    """Positions of what is neither an option nor its value."""
    values = set(_values(words))
    return (
        position
        for position, word in enumerate(words)
        if position not in values and not word.startswith("-")
    )


def _values(words: list[str]) -> Iterator[int]:
    """Positions of words that are the value of the option before them."""
    takes_value = {flag for option in OPTIONS if option.metavar for flag in option.flags}
    is_value = False
    for position, word in enumerate(words):
        if is_value:
            yield position
        is_value = not is_value and word in takes_value - {"--wait"}


# -- argparse ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _parser(name: str, command: Command, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of one command; a reader of `--help` gets examples too."""
    epilog = None
    if {"-h", "--help"} & set(words):
        from incumbent.cli.help import examples

        epilog = examples(name)
    parser = _Parser(
        # With `usage` given argparse need not format one, which would cost start-up time.
        prog=f"incumbent {name}",
        usage=usage(name),
        description=command.help,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if command.name:
        optional = command.name.startswith("[")
        metavar = command.name.strip("[]")
        parser.add_argument("name", metavar=metavar, nargs="?" if optional else None)
    for option in (*command.options, *GLOBAL):
        if option.metavar:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
        else:
            parser.add_argument(*option.flags, action="store_true", help=option.help)
    return parser


def usage(name: str) -> str:
    """How a command is written."""
    command = COMMANDS[name]
    words = ("incumbent", name, command.name, "[options]", "-- CMD..." if command.runs else "")
    return " ".join(filter(None, words))
