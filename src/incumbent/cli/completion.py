"""Completion scripts for bash, zsh and fish, made from the table of commands."""

from __future__ import annotations

from typing import Final

from incumbent.cli.spelling import did_you_mean
from incumbent.cli.table import COMMANDS, GLOBAL, OPTIONS, Command, Option
from incumbent.errors import ConfigError

_SHELLS: Final = ("bash", "zsh", "fish")
_FILE: Final = "F"
"""The metavar of an option whose value is a file."""


def script_for(shell: str) -> str:
    """The completion script of a shell. Raises ConfigError for an unknown one."""
    if shell not in _SHELLS:
        meant = did_you_mean(shell, _SHELLS)
        raise ConfigError(f"{shell[:40]!r} is not bash, zsh or fish{meant}", name="shell")
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _options_of(command: Command) -> tuple[Option, ...]:
    return (*command.options, *GLOBAL)


def _values_of(command: Command) -> tuple[str, ...]:
    """What may stand in the place of NAME, as far as it is known without a store."""
    return {"[COMMAND]": tuple(COMMANDS), "SHELL": _SHELLS}.get(command.name, ())


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

_BASH_REPLY: Final = 'mapfile -t COMPREPLY < <(compgen {} -- "$cur")'


def _bash() -> str:
    choices = {flag: option.choices for option in OPTIONS for flag in option.flags}
    values = [
        f'    {flag}) mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$cur"); return ;;'
        for flag, words in sorted(choices.items())
        if words
    ]
    files = sorted({each for option in OPTIONS if option.metavar == _FILE for each in option.flags})
    values.append(
        f'    {"|".join(files)}) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;'
    )
    options = []
    for name, command in COMMANDS.items():
        flags = [flag for option in _options_of(command) for flag in option.flags]
        words = f'words="{" ".join((*_values_of(command), *flags, "--help"))}"'
        if command.name == "FILE":
            words += (
                '; [[ $cur != -* ]] && { mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return; }'
            )
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
        if command.name:
            what = command.name.strip("[]").lower()
            values = _values_of(command)
            action = (
                "_files" if command.name == "FILE" else f"({' '.join(values)})" if values else " "
            )
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
        if command.name == "FILE":
            lines.append(f"{seen} -F")
        lines += [f"{seen} {_fish_option(option)}" for option in _options_of(command)]
        if command.runs:
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
