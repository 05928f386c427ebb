"""Runs Python functions and coroutines that were granted to this instance, each in a thread.

A coroutine runs on the application's loop, and is cancelled before its proof runs out. A function
cannot be stopped from outside: it asks its run (`run.check()`), and a function that outlived its
lease is never recorded as ok.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from incumbent import clock
from incumbent.bodies import is_async, not_deferred
from incumbent.cron.attempts import ENDED_WELL, UNTOLD, Attempts, End, Outcomes, stopped
from incumbent.cron.claims import Claimer
from incumbent.cron.events import Emit
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import OUTPUT_MOST, Run, State
from incumbent.cron.slots import Slot
from incumbent.cron.spec import JobSpec
from incumbent.errors import LeaseLost, StoreError
from incumbent.locks import Lease, enclose, give_back
from incumbent.model import Refused
from incumbent.options import LockSettings
from incumbent.protocol.aio import LeaseScope
from incumbent.protocol.held import Held
from incumbent.protocol.link import link_for

__all__ = ["Background", "CallLauncher", "JobRun"]

_LOOK_EVERY: Final = 0.2
"""Seconds between looks of a pause at whether its lease still holds."""


class JobRun:
    """What a job's function gets if it has a parameter `run`: which slot it is, and its lease."""

    __slots__ = ("_lease", "attempt", "due", "name", "slot")

    def __init__(self, name: str, slot: Slot, attempt: int, lease: Lease) -> None:
        self._lease = lease
        self.name = name
        """The job's name."""
        self.slot = slot.name
        """What is run: the scheduled instant in UTC, or `manual/...`."""
        self.due = slot.due
        """The scheduled instant, in seconds since 1970."""
        self.attempt = attempt
        """Counts from 1."""

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier run of this job."""
        return self._lease.fencing_token

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is proved; 0.0 when it is not."""
        return self._lease.remaining

    def check(self, need: float = 0.0) -> None:
        """Return only if the lease is proved for at least `need` seconds more; else LeaseLost."""
        self._lease.check(need)


class CallLauncher:
    """A Launcher. `loop`: where coroutines run. `over` is called, from any thread, after a run."""

    def __init__(self, claimer: Claimer, emit: Emit, over: Callable[[], None]) -> None:
        self._claimer = claimer
        self._emit = emit
        self._over = over
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running: dict[tuple[str, str], Callable[[], None]] = {}
        self.outcomes = Outcomes()
        self.stopping = threading.Event()

    def claim(self, spec: JobSpec, slot: Slot) -> Held | Refused:
        return self._claimer.claim(spec, slot)

    def launch(self, spec: JobSpec, slot: Slot, grant: Held) -> None:
        link = self._claimer.link
        link.keeper.arm(grant)
        one = _FunctionRun(self, spec, slot, Lease(link, grant), self._emit)
        self.running[spec.name, slot.name] = one.stop
        name = f"incumbent-job {spec.name}"
        threading.Thread(target=self._life, args=(spec, slot, one), name=name, daemon=True).start()

    def _life(self, spec: JobSpec, slot: Slot, one: _FunctionRun) -> None:
        code = UNTOLD
        try:
            code = one.run()
        except BaseException as error:  # noqa: BLE001 - a defect of ours: its work is over
            self._emit("fault", job=spec.name, slot=slot.name, why=repr(error))
            one.abandon()
        finally:
            self.outcomes.add(spec.name, slot, code)
            self.running.pop((spec.name, slot.name), None)
            self._over()

    def failed(self, spec: JobSpec, run: Run) -> None:
        """See Launcher: there is no on_failure command here."""

    def stop_all(self) -> None:
        """Cancel the coroutines; functions are not begun again."""
        self.stopping.set()
        for stop in list(self.running.values()):
            stop()


class _Exit(Exception):
    """A coroutine called sys.exit()."""

    def __init__(self, exit_: SystemExit) -> None:
        super().__init__(str(exit_))
        self.exit = exit_


class _FunctionRun:
    def __init__(
        self, launcher: CallLauncher, spec: JobSpec, slot: Slot, lease: Lease, emit: Emit
    ) -> None:
        self._launcher = launcher
        self._spec = spec
        self._slot = slot
        self._lease = lease
        emit = partial(emit, job=spec.name, term=lease.fencing_token)
        self._attempts = Attempts(lease, spec, slot, emit)
        self._scope: LeaseScope | None = None

    def run(self) -> int:
        """To its end; the code says whether the slot was given back."""
        if (code := self._attempts.begin()) is not None:
            return code
        ended = self._attempts.go_through(self._attempt, self._pause)
        give_back(self._lease)
        self._attempts.prune()
        return UNTOLD if ended is None else ENDED_WELL

    def abandon(self) -> None:
        """Nothing works under the lease any more: it must not be renewed for ever."""
        give_back(self._lease)

    def stop(self) -> None:
        """From any thread."""
        if self._scope is not None:
            self._scope.stop()

    def _attempt(self) -> End:
        began = clock.now()
        try:
            self._call()
        except LeaseLost as error:
            return self._stopped(began) or End(State.LOST, why=str(error), final=True)
        except (asyncio.CancelledError, CancelledError):
            signal = "signal:stop" if self._launcher.stopping.is_set() else "expired"
            return self._stopped(began) or stopped(signal, clock.now() - began)
        except SystemExit as error:
            # Scripts that became functions end so; it is the end of this run and of nothing else.
            return self._stopped(began) or _exited(error)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is its failure
            trace = traceback.format_exc()[-min(self._spec.output_bytes, OUTPUT_MOST) :]
            why = f"{type(error).__name__}: {error}"
            return self._stopped(began) or End(State.FAILED, why=why[:500], output=trace)
        return self._stopped(began) or End(State.OK)

    def _stopped(self, began: float) -> End | None:
        """Work that outlived its lease has no success to report."""
        cause = self._lease.belief.proof.verdict(clock.now())
        return stopped(cause, clock.now() - began) if cause else None

    def _call(self) -> None:
        spec = self._spec
        call = spec.call
        assert call is not None  # noqa: S101 - see JobSpec
        run = JobRun(spec.name, self._slot, self._attempts.run.attempt, self._lease)
        given = {"run": run} if _wants_run(call) else {}
        if not is_async(call):
            not_deferred(call(**given), call, "make the job an `async def`")
            return
        loop = self._launcher.loop
        assert loop is not None, "a coroutine needs a loop"  # noqa: S101
        try:
            asyncio.run_coroutine_threadsafe(self._within(call(**given)), loop).result()
        except _Exit as error:
            raise error.exit from None

    async def _within(self, work: Coroutine[Any, Any, Any]) -> None:
        scope = self._scope = enclose(self._lease)
        try:
            await work
        except SystemExit as error:
            # It would end the loop that the application runs on.
            raise _Exit(error) from error
        finally:
            scope.close()
            self._scope = None

    def _pause(self, seconds: float) -> bool:
        until = clock.now() + seconds
        while (left := until - clock.now()) > 0:
            if self._launcher.stopping.wait(min(left, _LOOK_EVERY)) or not self._lease.valid:
                return False
        return True


def _exited(error: SystemExit) -> End:
    """What sys.exit() says of a run, as a process would say it."""
    if error.code is None or error.code == 0:
        return End(State.OK, 0)
    code = error.code if isinstance(error.code, int) else 1
    return End(State.FAILED, code, f"sys.exit({error.code!r})"[:500])


def _wants_run(call: Callable[..., Any]) -> bool:
    """Whether it has a parameter `run`."""
    try:
        return "run" in inspect.signature(call).parameters
    except (TypeError, ValueError):
        return False


_BEGIN_WITHIN = 10.0


class _OwnLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="incumbent-jobs-loop", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it; what still runs on it was cancelled before."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self.loop.close()


class Background:
    """Runs the jobs until it is stopped. `loop`: for coroutines; None makes one if needed."""

    def __init__(
        self,
        specs: Iterable[JobSpec],
        store: Any,
        namespace: str,
        lock: LockSettings,
        emit: Emit,
        loop: asyncio.AbstractEventLoop | None,
        *,
        coroutines: bool,
    ) -> None:
        link = link_for(store)
        claimer = Claimer(link, namespace, lock)
        self._launcher = CallLauncher(claimer, emit, self._over)
        self._instance = Instance(
            specs,
            link,
            namespace,
            str(lock["holder"]),
            self._launcher,
            emit,
            lambda: len(self._launcher.running),
        )
        for spec in self._instance.specs:
            claimer.wanted(spec)
        self._own = _OwnLoop() if coroutines and loop is None else None
        self._launcher.loop = self._own.loop if self._own else loop
        self._emit = emit
        self._begun = threading.Event()
        self._error: StoreError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="incumbent-jobs", daemon=True)

    def start(self) -> None:
        """Begin. Raises a StoreError that trying again cannot help, if it comes at once."""
        self._thread.start()
        self._begun.wait(_BEGIN_WITHIN)
        if self._error is not None:
            self._thread.join()
            self._close_loop()
            raise self._error

    def stop(self, drain: float) -> bool:
        """See Jobs.stop."""
        until = clock.now() + drain
        self._instance.stop()
        self._emit("stopping", running=len(self._launcher.running))
        self._wait_until(until, lambda: not self._launcher.running)
        if self._launcher.running:
            self._launcher.stop_all()
            self._wait_until(clock.now() + 5.0, lambda: not self._launcher.running)
        self._stopping = True
        self._instance.wake()
        self._thread.join(10.0)
        self._close_loop()
        self._emit("stopped")
        return not self._launcher.running

    def _wait_until(self, until: float, done: Callable[[], bool]) -> None:
        pause = threading.Event()
        while not done() and clock.now() < until:
            pause.wait(0.02)

    def _close_loop(self) -> None:
        if self._own is not None:
            self._own.close()

    def _over(self) -> None:
        self._instance.wake()

    def _run(self) -> None:
        instance, launcher = self._instance, self._launcher
        try:
            while not self._stopping:
                instance.turn()
                if instance.ready:
                    self._begun.set()
                instance.see_to(launcher.outcomes, 0.0)
        except StoreError as error:
            self._error = error
        finally:
            self._begun.set()
            instance.close()
