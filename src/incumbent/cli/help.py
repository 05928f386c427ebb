"""`help`, `completion` and `man`: texts that are made from the table of commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from incumbent.cli.parser import CommandRequest, parse
from incumbent.cli.table import (
    COMMANDS,
    EXAMPLES,
    EXIT_CODES,
    GLOBAL,
    GROUPS,
    NOTES,
    OPTIONS,
    CliCommand,
    Option,
    usage,
)
from incumbent.errors import ConfigError
from incumbent.printable import did_you_mean
from incumbent.supervise.codes import OK


def command(request: CommandRequest) -> int:
    """Print the text. Raises ConfigError for an unknown command or shell."""
    if request.command == "completion":
        print(script_for(request.name), end="")
    elif request.command == "man":
        print(manual_page(), end="")
    else:
        _help(request.name)
    return OK


def _help(name: str) -> None:
    if name and name not in COMMANDS:
        meant = did_you_mean(name, COMMANDS)
        raise ConfigError(f"there is no command {name!r}{meant}", name="command")
    # parse() prints the help, and exits.
    parse([name, "--help"] if name else ["--help"], {})


# -- the manual page, incumbent(1); man(7) describes the format ------------------------------------


def manual_page() -> str:
    """The manual page as roff."""
    return "\n".join(_manual_lines()) + "\n"


def _manual_lines() -> Iterator[str]:
    from importlib.metadata import version

    yield f'.TH INCUMBENT 1 "" "incumbent {version("incumbent")}"'
    yield from (
        ".SH NAME",
        _roff("incumbent - of many instances one runs the command, or none does"),
    )
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
    """Escape a text, so that roff reads no part of it as a request or an escape."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.split("\n"))


# -- completion ------------------------------------------------------------------------------------

_SHELLS: Final = ("bash", "zsh", "fish")
_FILE: Final = "F"
"""The metavar of an option whose value is a file."""


def script_for(shell: str) -> str:
    """The completion script of a shell. Raises ConfigError for an unknown one."""
    if shell not in _SHELLS:
        meant = did_you_mean(shell, _SHELLS)
        raise ConfigError(f"{shell[:40]!r} is not bash, zsh or fish{meant}", name="shell")
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _options_of(command: CliCommand) -> tuple[Option, ...]:
    return (*command.options, *GLOBAL)


def _values_of(command: CliCommand) -> tuple[str, ...]:
    """The words that may stand for NAME, as far as they are known without a store."""
    return {"[COMMAND]": tuple(COMMANDS), "SHELL": _SHELLS}.get(command.argument, ())


_ASK_NAMES: Final = "incumbent status --names 2>/dev/null"
"""What a shell runs for the names of leases and jobs: of the store in its environment."""


def _takes_name(command: CliCommand) -> bool:
    return command.argument.strip("[]") == "NAME"


# -- bash ------------------------------------------------------------------------------------------

_BASH: Final = """\
# bash completion for incumbent
_incumbent() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      --) mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur"); return ;;
      {commands}) [[ $command ]] || command=${{COMP_WORDS[i]}} ;;
    esac
  done
  case $prev in
{values}
  esac
  case $command in
{options}
    *) words="{all}" ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}
complete -F _incumbent incumbent
"""

_REPLY: Final = 'mapfile -t COMPREPLY < <(compgen {} -- "$cur"); return'


def _bash() -> str:
    words_of = {
        flag: f'-W "{" ".join(option.choices)}"'
        for option in OPTIONS
        for flag in option.flags
        if option.choices
    }
    files = sorted({each for option in OPTIONS if option.metavar == _FILE for each in option.flags})
    replies = {**dict(sorted(words_of.items())), "|".join(files): "-f"}
    values = [f"    {flags}) {_REPLY.format(how)} ;;" for flags, how in replies.items()]
    options = []
    for name, command in COMMANDS.items():
        flags = [flag for option in _options_of(command) for flag in option.flags]
        words = f'words="{" ".join((*_values_of(command), *flags, "--help"))}"'
        if _takes_name(command):
            words += f'; [[ $cur != -* ]] && words+=" $({_ASK_NAMES})"'
        if command.argument == "FILE":
            words += f"; [[ $cur != -* ]] && {{ {_REPLY.format('-f')}; }}"
        options.append(f"    {name}) {words} ;;")
    return _BASH.format(
        commands="|".join(COMMANDS),
        values="\n".join(values),
        options="\n".join(options),
        all=" ".join((*COMMANDS, "--help", "--version")),
    )


# -- zsh -------------------------------------------------------------------------------------------

_ZSH: Final = """\
#compdef incumbent
_incumbent() {{
  local -a commands
  local -i dashes=${{words[(i)--]}}
  if (( dashes < CURRENT )); then
    shift dashes words
    (( CURRENT -= dashes ))
    _normal
    return
  fi
  commands=(
{commands}
  )
  _arguments -C '1:command:->command' '*::argument:->arguments'
  case $state in
    command) _describe command commands ;;
    arguments)
      case $words[1] in
{arguments}
      esac ;;
  esac
}}
_incumbent "$@"
"""


def _zsh() -> str:
    arguments = []
    for name, command in COMMANDS.items():
        specs = [_zsh_option(flag, each) for each in _options_of(command) for flag in each.flags]
        if command.argument:
            what = command.argument.strip("[]").lower()
            values = _values_of(command)
            action = f"({' '.join(values)})" if values else " "
            if command.argument == "FILE":
                action = "_files"
            elif _takes_name(command):
                action = f'{{compadd -- ${{(f)"$({_ASK_NAMES})"}}}}'
            specs.append(_quoted(f"1:{what}:{action}"))
        arguments.append(f"        {name}) _arguments {' '.join(specs)} ;;")
    lines = [f"    {_quoted(f'{name}:{command.help}')}" for name, command in COMMANDS.items()]
    return _ZSH.format(commands="\n".join(lines), arguments="\n".join(arguments))


def _zsh_option(flag: str, option: Option) -> str:
    help_ = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    if not option.metavar:
        return _quoted(f"{flag}[{help_}]")
    action = "_files" if option.metavar == _FILE else f"({' '.join(option.choices)})"
    return _quoted(f"{flag}[{help_}]:{option.metavar.strip('[]=').lower()}:{action}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ------------------------------------------------------------------------------------------


def _fish() -> str:
    lines = ["# fish completion for incumbent", "complete -c incumbent -f"]
    for name, command in COMMANDS.items():
        first = "complete -c incumbent -n __fish_use_subcommand"
        lines.append(f"{first} -a {name} -d {_fish_word(command.help)}")
        seen = f"complete -c incumbent -n '__fish_seen_subcommand_from {name}'"
        if values := _values_of(command):
            lines.append(f"{seen} -a '{' '.join(values)}'")
        if _takes_name(command):
            lines.append(f"{seen} -a '({_ASK_NAMES})'")
        if command.argument == "FILE":
            lines.append(f"{seen} -F")
        lines += [f"{seen} {_fish_option(option)}" for option in _options_of(command)]
        if command.with_cmd:
            lines.append(f"{seen} -a '(__fish_complete_subcommand)'")
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    names = [
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
    ]
    if option.choices:
        names.append(f"-x -a '{' '.join(option.choices)}'")
    elif option.metavar == _FILE:
        names.append("-r -F")
    elif option.metavar and not option.metavar.startswith("["):
        names.append("-x")
    return " ".join((*names, f"-d {_fish_word(option.help)}"))


def _fish_word(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
