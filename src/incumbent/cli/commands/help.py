"""`help`, `completion` and `man`: what is printed from the table of commands."""

from __future__ import annotations

from incumbent.cli.parser import Request, parse
from incumbent.cli.spelling import did_you_mean
from incumbent.cli.table import COMMANDS
from incumbent.errors import ConfigError
from incumbent.supervise.codes import OK


def command(request: Request) -> int:
    """See the module. Raises ConfigError for an unknown command or shell."""
    if request.command == "completion":
        from incumbent.cli.completion import script_for

        print(script_for(request.name), end="")
    elif request.command == "man":
        from incumbent.cli.manual import manual_page

        print(manual_page(), end="")
    else:
        _help(request.name)
    return OK


def _help(name: str) -> None:
    if name and name not in COMMANDS:
        meant = did_you_mean(name, COMMANDS)
        raise ConfigError(f"there is no command {name!r}{meant}", name="command")
    # It prints, and exits.
    parse([name, "--help"] if name else ["--help"], {})
