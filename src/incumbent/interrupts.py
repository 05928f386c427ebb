"""Telling an error of a system call from one that a signal handler raised meanwhile.

A handler runs between any two steps of the main thread, and may raise anything: Celery's soft time
limit is an Exception, and many timeouts are TimeoutErrors, which are OSErrors. Where we catch what
a call raises, a handler's exception must reach our caller instead.
"""

from __future__ import annotations


def raise_if_from_signal(error: BaseException) -> None:
    """Raise `error` again if a signal handler raised it."""
    if is_from_signal(error):
        raise error


def is_from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised `error`.

    Python calls a handler with the frame that it interrupts; no other call passes its own frame on.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        # The handler's frame comes right after the one that it interrupted, with that frame as
        # argument.
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            # Not by `in`, which compares any other object by its own `==`.
            each = given if type(given) is tuple else (given,)
            if any(one is interrupted for one in each):
                return True
    return False
