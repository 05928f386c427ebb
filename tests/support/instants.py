"""Has a signal come at each instant of a call at which the interpreter looks for signals."""

from __future__ import annotations

import dis
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec

import incumbent
from tests.support.forks import in_a_child
from tests.support.leftovers import end_leases

_P = ParamSpec("_P")

_OURS = str(Path(incumbent.__file__).parent)
_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX") if name in dis.opmap}
_LOOKS = _CALLS | {dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD") if name in dis.opmap}

_MOST = 2000
"""A call that has more than that grows with each interruption."""


_CRASHES = 5
"""More than that one after the other are none of the interpreter's."""


class _Tracer:
    """Raises the signal at the `at`-th such instant in our code.

    CPython (3.11, ceval.c) looks for signals when a function begins, at the end of a loop's turn,
    and after a call of what is not written in Python.
    """

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""
        self._last: dict[FrameType, int] = {}
        self._called: set[FrameType | None] = set()

    def begin(self, frame: FrameType, event: str, _: object) -> Any:
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(_OURS):
            # No other frames: kept, that of functools.lru_cache keeps the statements of a closed
            # connection of sqlite3, and with them its lock.
            self._called.add(caller)
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            looks = last in _LOOKS and not (last in _CALLS and frame in self._called)
            self._called.discard(frame)
            self.left -= looks
            if looks and not self.left:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
        return self._step


def at_each_instant(call: Callable[[int], object], handler: Callable[[], None]) -> Iterator[str]:
    """`call(n)` for n from 1, with the signal at the n-th instant; each time, where that was."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    # What earlier tests left would be collected inside a call, and the finalizers of this package
    # traced: CPython only reports what a handler raises in a finalizer, and drops it.
    gc.collect()
    gc.disable()
    try:
        for at in range(1, _MOST):
            tracer = _Tracer(at)
            sys.settrace(tracer.begin)
            try:
                call(at)
            except TypeError as error:
                # Tracing opcodes, CPython 3.11 now and then calls what is left on its stack.
                if not str(error).endswith("object is not callable"):
                    raise
                continue
            finally:
                sys.settrace(None)
            if not tracer.where:
                return
            yield tracer.where
        raise AssertionError(f"after {_MOST} interruptions the call is longer each time")
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, before)


def past_crashes(test: Callable[_P, None]) -> Callable[_P, None]:
    """Run a test in a child, and again if the interpreter crashed.

    Where CPython 3.11 calls what is left on its stack (see above), that may be no object at all.
    """

    @wraps(test)
    def run(*given: _P.args, **named: _P.kwargs) -> None:
        def work() -> int:
            test(*given, **named)
            return len(end_leases())

        code = -signal.SIGSEGV
        for _ in range(_CRASHES):
            if (code := in_a_child(work)) != -signal.SIGSEGV:
                break
        assert code == 0

    return run
