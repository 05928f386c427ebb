"""Where the `incumbent` command begins."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from incumbent.cli.environment import unknown_variables
from incumbent.cli.exits import USAGE, code_of, say
from incumbent.cli.parser import Request, UsageError, parse
from incumbent.cli.table import COMMANDS
from incumbent.errors import ConfigError

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        unknown = unknown_variables(os.environ)
        request = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    except (UsageError, ConfigError) as error:
        say(str(error))
        return USAGE
    if unknown and not request.on("quiet"):
        say(f"no such setting, ignored: {', '.join(unknown)}")
    _listen_to_the_library(request)
    return _call(request)


def _listen_to_the_library(request: Request) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("incumbent: %(message)s"))
    log = logging.getLogger("incumbent")
    log.addHandler(handler)
    log.setLevel(logging.ERROR if request.on("quiet") else logging.WARNING)


def _call(request: Request) -> int:
    module = import_module(f"incumbent.cli.commands.{COMMANDS[request.command].module}")
    try:
        code: int = module.command(request)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our answer has seen enough; the flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place: a traceback is no answer
        return _say_error(request, error)
    return code


def _say_error(request: Request, error: Exception) -> int:
    code = code_of(error)
    known = isinstance(error, ConfigError) or type(error).__module__.startswith("incumbent")
    say(str(error) if known else f"a defect of incumbent: {type(error).__name__}: {error}")
    if request.on("verbose"):
        logging.getLogger("incumbent").error("where it happened", exc_info=error)
    return code
