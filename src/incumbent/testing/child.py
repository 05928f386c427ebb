"""The process of `testing.clients.other_process`: its clocks are set before anything reads them.

It is run as a file, so that nothing of the package is imported before.
"""

from __future__ import annotations

import datetime as dt
import pickle
import sys
import time
from typing import Any


def shift_clocks(offset: float) -> None:
    """Shift every clock that Python code reads by `offset` seconds."""
    # Time since boot is never negative.
    booted = abs(offset)
    for name, seconds in (("time", offset), ("monotonic", booted)):
        for suffix, unit in (("", 1), ("_ns", 10**9)):
            setattr(time, name + suffix, _later(getattr(time, name + suffix), seconds * unit))
    for name, unit in (("clock_gettime", 1), ("clock_gettime_ns", 10**9)):
        if real := getattr(time, name, None):
            setattr(time, name, _by_clock(_later(real, offset * unit), _later(real, booted * unit)))
    _shift_datetime()


def _by_clock(wall: Any, boot: Any) -> Any:
    return lambda clock: (wall if clock == time.CLOCK_REALTIME else boot)(clock)


def _later(real: Any, by: float) -> Any:
    def shifted(*arguments: Any) -> Any:
        instant = real(*arguments)
        return instant + type(instant)(by)

    return shifted


def _shift_datetime() -> None:
    real = dt.datetime

    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Shifted(real, metaclass=AnyDatetime):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)

    dt.datetime = Shifted  # type: ignore[misc]


def serve() -> None:
    """Carry out the requests that come in, until the input ends."""
    import asyncio

    from incumbent import clock

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    # What the store prints must not come between the answers.
    sys.stdout = sys.stderr
    engine = pickle.load(requests)()  # noqa: S301 - of the process that started this one
    # Ready: see other_process.
    pickle.dump((None, None), answers)
    answers.flush()

    async def ask(operation: str, arguments: Any, settings: Any) -> Any:
        return await getattr(engine.async_store(), operation)(*arguments, **settings)

    with asyncio.Runner() as runner:
        while True:
            outcome, failure = None, None
            try:
                side, operation, arguments, left, settings = pickle.load(requests)  # noqa: S301
            except EOFError:
                break
            arguments = (*arguments, clock.now() + left)
            try:
                if side == "async":
                    outcome = runner.run(ask(operation, arguments, settings))
                else:
                    outcome = getattr(engine.store(), operation)(*arguments, **settings)
            except Exception as error:  # noqa: BLE001 - it is raised where the question came from
                failure = error
            pickle.dump((outcome, failure), answers)
            answers.flush()
        engine.store().close()


if __name__ == "__main__":
    shift_clocks(float(sys.argv[1]))
    serve()
