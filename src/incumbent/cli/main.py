"""The entry point of the `incumbent` command."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from incumbent.cli.parser import CommandRequest, UsageError, ignored_flags, parse, unknown_variables
from incumbent.cli.table import COMMANDS, overview
from incumbent.cli.text import begin_log, fault_line, say
from incumbent.errors import ConfigError
from incumbent.supervise.codes import FAULT, OK, USAGE, code_of

# What a shell reports after SIGINT: 128 and the signal's number.
_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    # Before anything is opened or written.
    _open_standard_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        sys.stderr.write(overview())
        return USAGE
    try:
        unknown = unknown_variables(os.environ)
        request = parse(words, os.environ)
    except (UsageError, ConfigError) as error:
        say(str(error))
        return USAGE
    except OSError as error:
        # --help and --version write while they are parsed.
        return _unwritten(error)
    quiet, verbose = request.on("quiet"), request.on("verbose")
    begin_log(request.text("log_format"), quiet=quiet, verbose=verbose)
    if not quiet:
        for line in ignored_flags(os.environ):
            say(f"ignored: {line}")
        if unknown:
            say(f"no such setting, ignored: {', '.join(unknown)}")
        in_memory = (request.text("store") or "").startswith("memory:")
        if in_memory and COMMANDS[request.command].runs_work:
            say("a memory: store is this process's own and excludes no other: it is for tests")
    return _call(request)


def _open_standard_streams() -> None:
    """Open the standard streams that are closed. Else a file or socket would get our output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest free descriptor, which is the stream's: those below are open.
            file = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123
            os.set_inheritable(file.fileno(), True)  # CMD inherits the stream.
            setattr(sys, name, file)
    # A holder, or a job's output, may have characters that a terminal lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _call(request: CommandRequest) -> int:
    module = import_module(f"incumbent.{COMMANDS[request.command].module}")
    try:
        code: int = module.command(request)
        sys.stdout.flush()
    except BrokenPipeError as error:
        return _unwritten(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        known = isinstance(error, ConfigError) or type(error).__module__.startswith("incumbent")
        if isinstance(error, OSError) and error.errno in _NO_ROOM and not known:
            return _unwritten(error)
        say(request.as_typed(str(error)) if known else fault_line(error))
        if request.on("verbose"):
            logging.getLogger("incumbent").error("where it happened", exc_info=error)
        return code_of(error)
    return code


def _unwritten(error: OSError) -> int:
    """Report that stdout cannot be written. The flush at exit must not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader closed the pipe, because it has seen enough.
        return OK
    say(f"the answer cannot be written: {error.strerror}")
    return FAULT
