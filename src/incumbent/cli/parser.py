"""From the words of the command line, and the environment, to a Request."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

from incumbent.cli.environment import settings_from
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


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Raises UsageError, or ConfigError for a variable; `--help` and `--version` exit."""
    words = list(arguments)
    separated = "--" in words
    end = words.index("--") if separated else len(words)
    ours, command_line = words[:end], words[end + 1 :]
    if separated or _RUNNING & set(ours):
        _check_separator(ours, command_line, separated=separated)
    # A duration of --wait needs its "=": without one the next word is the name.
    ours = ["--wait=" if word == "--wait" else word for word in ours]
    flags = vars(_parser(ours).parse_args(ours))
    command = flags.pop("command")
    options = (*GLOBAL, *COMMANDS[command].options)
    return Request(command, {**settings_from(environ, options), **flags}, tuple(command_line))


_RUNNING: Final = frozenset(name for name, command in COMMANDS.items() if command.runs)


# -- the separator -------------------------------------------------------------------------------


def _check_separator(ours: list[str], command_line: list[str], *, separated: bool) -> None:
    """Only commands that run CMD have a `--`; the message shows the corrected line."""
    plain = list(_plain_words(ours))
    command = ours[plain[0]] if plain else ""
    if command in COMMANDS and not COMMANDS[command].runs:
        if separated:
            raise UsageError(f"{command} runs nothing: there is no `--` in it")
        return
    if command not in COMMANDS or {"-h", "--help", "--version"} & set(ours):
        return
    if len(plain) > 2:
        for word, following in pairwise(ours):
            if word == "--wait" and following[:1].isdecimal():
                raise UsageError(f"a duration of --wait needs its sign: --wait={following}")
        at = plain[2]
        rest = ["--", *command_line] if separated else []
        raise UsageError(f"a `--` goes before the command: {_line(ours[:at], ours[at:] + rest)}")
    if not command_line and len(plain) == 2:
        raise UsageError(f"no command given: {_line(ours, [])} CMD...")


def _line(ours: list[str], command_line: list[str]) -> str:
    from shlex import join

    return join(["incumbent", *ours, "--", *command_line])


def _plain_words(words: list[str]) -> Iterator[int]:
    """Positions of what is neither an option nor its value."""
    takes_value = {flag for option in OPTIONS if option.metavar for flag in option.flags}
    is_value = False
    for position, word in enumerate(words):
        if not is_value and not word.startswith("-"):
            yield position
        is_value = not is_value and word in takes_value - {"--wait"}


# -- argparse ------------------------------------------------------------------------------------

_EPILOG: Final = """\
A deployment's settings are also variables: --ttl is INCUMBENT_TTL; flags win. The store also comes
from INCUMBENT_STORE_FILE, its password from INCUMBENT_STORE_PASSWORD_FILE.
exit codes: CMD's own; 64 usage; 69 the store could not be proved, nothing ran; 75 held by another;
123 lease lost, CMD stopped; 124 --at-most-for; 125 own fault; 126, 127 CMD cannot be started.
lead and work exit 0 on TERM, and go on after every other end of a term."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="incumbent",
        description="Of many instances exactly one runs the command, or none does.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say the version and exit")
    _add(parser, GLOBAL)
    # With `prog` given argparse need not format a usage line, which would cost start-up time.
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog="incumbent"
    )
    for name, command in COMMANDS.items():
        _add_command(commands, name, command, whole=name in words)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[_Parser], name: str, command: Command, *, whole: bool
) -> None:
    words = ("incumbent", name, command.name, "[options]", "-- CMD..." if command.runs else "")
    parser = commands.add_parser(
        name,
        help=command.help,
        description=command.help,
        usage=" ".join(filter(None, words)),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if not whole:
        # Another command is called: these options would only cost start-up time.
        return
    if command.name:
        optional = command.name.startswith("[")
        metavar = command.name.strip("[]")
        parser.add_argument("name", metavar=metavar, nargs="?" if optional else None)
    _add(parser, command.options)
    _add(parser, GLOBAL)


def _add(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    for option in options:
        if option.metavar:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
        else:
            parser.add_argument(*option.flags, action="store_true", help=option.help)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        # Only here: finding the version reads the package's metadata from disk.
        from importlib.metadata import version

        print(f"incumbent {version('incumbent')}")
        parser.exit()
