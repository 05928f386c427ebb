"""Children of the test process itself, which never come back into the tests."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], int]) -> int:
    """Start `work` in a forked child, whose exit code it returns; returns the child's number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        except BaseException:  # noqa: BLE001 - it would run the rest of the tests a second time
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Wait for the end of one of them."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_child(work: Callable[[], int]) -> int:
    """The exit code of `work` in a forked child."""
    return exit_code(fork(work))
