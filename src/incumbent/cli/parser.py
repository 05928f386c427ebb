"""Parses the words of the command line, and the environment, into a CommandRequest."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NoReturn

from incumbent.cli.table import (
    COMMANDS,
    FLAGS,
    GLOBAL,
    OPTIONS,
    PREFIX,
    SETTINGS,
    VARIABLES,
    CliCommand,
    Option,
    examples,
    overview,
    usage,
)
from incumbent.errors import ConfigError
from incumbent.locks.other_words import our_name_for
from incumbent.printable import did_you_mean, nearest


class UsageError(Exception):
    """The command line cannot be understood."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command with its options; a flag wins over a variable."""

    command: str
    values: Mapping[str, str | bool]
    words: tuple[str, ...] = ()
    """CMD and its arguments."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Each option's name for messages: its variable if that gave the value, else its flag."""

    def text(self, dest: str) -> str | None:
        """The value of an option, or None if it was not given."""
        value = self.values.get(dest)
        return value if isinstance(value, str) else None

    def text_or(self, dest: str, default: str) -> str:
        """The value of an option, or `default`; what was given empty is no default."""
        value = self.text(dest)
        return default if value is None else value

    def on(self, dest: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(dest) is True

    @property
    def name(self) -> str:
        """NAME or FILE; "" if none was given."""
        return self.text("name") or ""

    @property
    def namespace(self) -> str:
        """The namespace, by default "default"."""
        return self.text_or("namespace", "default")

    def as_typed(self, message: str) -> str:
        """Replace Python's names of settings in a message by the caller's flags and variables."""
        for dest, spelled in self.spelled.items():
            # A plain word such as `wait` names the setting only if "=" follows.
            bare = "" if "_" in dest else "(?==)"
            message = re.sub(rf"\A{dest}(?=: )", spelled, message)
            message = re.sub(rf"(?<![-\w?&]){dest}(?:=True\b|\b{bare})", spelled, message)
            message = re.sub(rf"{flag_of(dest)}\b(?!-)", spelled, message)
        return message


def flag_of(dest: str) -> str:
    """The flag of an option."""
    return f"--{dest.replace('_', '-')}"


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> CommandRequest:
    """Parse; `--help` and `--version` exit. Raises UsageError, or ConfigError for a variable."""
    words = list(arguments)
    separated = "--" in words
    end = words.index("--") if separated else len(words)
    ours, command_line = words[:end], words[end + 1 :]
    typed = list(ours)
    name = _take_command(ours)
    command = COMMANDS[name]
    _check_flags(name, ours, separated=separated)
    _check_separator(name, typed, command_line, separated=separated)
    if separated and not command.with_cmd:
        # As elsewhere `--` ends the options: a NAME may begin with "-".
        ours, command_line = [*ours, "--", *command_line], []
    # A duration for --wait needs "=": without it the next word is NAME.
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
    request = CommandRequest(name, {**settings, **flags}, tuple(command_line), spelled)
    _check_choices(request, options)
    return request


def _take_command(words: list[str]) -> str:
    """Remove the command from `words`, and return it."""
    for position in _plain_words(words):
        if words[position] in COMMANDS:
            return words.pop(position)
        meant = did_you_mean(words[position], COMMANDS) or "."
        raise UsageError(f"there is no command {words[position]!r}{meant} See incumbent --help")
    if "--version" in words:
        _print_version()
    if {"-h", "--help"} & set(words):
        print(overview(), end="", flush=True)
        raise SystemExit(0)
    raise UsageError("no command given: see incumbent --help")


def _print_version() -> NoReturn:
    # Imported only here: finding the version reads the package's metadata from disk.
    from importlib.metadata import version

    print(f"incumbent {version('incumbent')}", flush=True)
    raise SystemExit(0)


# -- errors in a command line, in words ------------------------------------------------------------


def _check_flags(name: str, ours: list[str], *, separated: bool) -> None:
    """Raise UsageError for an option that the command lacks, with a suggestion."""
    own = _flags_of(*GLOBAL, *COMMANDS[name].options) | {"-h", "--help"}
    plain = list(_plain_words(ours))
    # Without `--` the second plain word begins CMD, whose options are not ours.
    end = plain[1] if COMMANDS[name].with_cmd and not separated and len(plain) > 1 else len(ours)
    values = set(_values(ours))
    for position, word in enumerate(ours[:end]):
        flag = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not word.startswith("-") or word == "-" or position in values or flag in own:
            continue
        meant = _meant(flag, own)
        others = [each for each, command in COMMANDS.items() if flag in _flags_of(*command.options)]
        if others:
            theirs = f"{flag} is an option of {', '.join(others)}, not of {name}"
            raise UsageError(theirs + meant.removesuffix("."))
        raise UsageError(f"{name} has no option {flag}{meant} See incumbent {name} --help")


def _meant(flag: str, own: set[str]) -> str:
    """The option of `own` that was meant, misspelt or as another program calls it; "." if none."""
    ours = our_name_for(flag.strip("-").replace("-", "_"))
    # Of the commands that wait, those that run something call it --wait.
    for option in ("--wait", "--timeout") if ours == "timeout" else (f"--{ours}",):
        if option in own and option != flag:
            return f"; did you mean {option}?"
    return did_you_mean(flag, sorted(own)) or "."


def _flags_of(*options: Option) -> set[str]:
    return {flag for option in options for flag in option.flags}


def _check_choices(request: CommandRequest, options: Sequence[Option]) -> None:
    for option in options:
        value = request.text(option.dest)
        if value is not None and option.choices and value not in option.choices:
            which = f"{', '.join(option.choices[:-1])} or {option.choices[-1]}"
            meant = did_you_mean(value, option.choices)
            raise UsageError(f"{request.spelled[option.dest]}={value!r} is not {which}{meant}")


def _check_separator(
    name: str, typed: list[str], command_line: list[str], *, separated: bool
) -> None:
    """Raise UsageError if `--` is missing or superfluous; the message shows the corrected line."""
    if not COMMANDS[name].with_cmd:
        if separated and len([*_plain_words(typed), *command_line]) != 2:
            raise UsageError(f"{name} runs nothing: only a NAME may follow `--`")
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
    """Positions of words that are neither an option nor the value of an option."""
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


# -- argparse --------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse would say nothing of what cannot be written.
        print(message, end="", file=file, flush=True)


def _parser(name: str, command: CliCommand, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of one command; only for `--help` does it contain the examples."""
    asks = {"-h", "--help"} & set(words)
    parser = _Parser(
        # argparse need not format the usage if it is given, which saves start-up time.
        prog=f"incumbent {name}",
        usage=usage(name),
        description=command.help,
        epilog=examples(name) if asks else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if command.argument:
        optional = command.argument.startswith("[")
        metavar = command.argument.strip("[]")
        parser.add_argument("name", metavar=metavar, nargs="?" if optional else None)
    for option in (*command.options, *GLOBAL):
        if option.metavar:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
        else:
            parser.add_argument(*option.flags, action="store_true", help=option.help)
    return parser


# -- the environment -------------------------------------------------------------------------------

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})

# Variables that Kubernetes and old Docker links inject for a Service named "incumbent".
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


def ignored_flags(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable with the name of a one-shot option: the flag to give instead."""
    return [
        f"{name} cannot come from the environment: give {flag} on the command line"
        for name, flag in sorted(FLAGS.items())
        if environ.get(name) and not _is_link(name, environ[name])
    ]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Unknown variables with our prefix. Raises ConfigError if one looks like a misspelling."""
    known = VARIABLES | FLAGS.keys()
    ours = {name for name in environ if name.startswith(PREFIX)} - known
    unknown = sorted(name for name in ours if not _is_link(name, environ[name]))
    for name in unknown:
        # They all begin alike, so one slip makes names that are very like each other.
        if near := nearest(name, VARIABLES, likeness=0.9):
            raise ConfigError(f"{name} is not a setting: did you mean {near}?", name=name)
    return unknown


def _is_link(name: str, value: str) -> bool:
    short = name.removeprefix(PREFIX)
    return bool(_LINK_NAME.fullmatch(short) or _LINK_VALUE.fullmatch(value))
