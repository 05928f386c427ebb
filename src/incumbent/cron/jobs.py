"""`incumbent.Jobs`: functions and coroutines that run once in the fleet, by a schedule.

Each run has a thread. A coroutine runs on the application's event loop, and is cancelled before its
lease can end. A function cannot be stopped from outside: it asks its run (`run.check()`), and a
function that outlived its lease is never recorded as ok.

    the instance's thread (`Background._run`) claims slots; for each it starts
        a thread (`_FunctionRun`), which calls the function, or has
            the application's event loop run the coroutine, and waits for it
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, closing
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack, cast

from incumbent import clock, meters
from incumbent.cron.events import Emit, log_event
from incumbent.cron.executor import CannotLaunch
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import OUTPUT_MOST, SlotRecord, SlotState
from incumbent.cron.runs import NOT_RECORDED, AttemptEnd, Attempts, Claimer, Runs, code_of, stopped
from incumbent.cron.schedule import Every, Schedule, cron_schedule
from incumbent.cron.spec import (
    DEFAULTS,
    GONE,
    JobSlot,
    JobSpec,
    bounds_conflict,
    check_job_name,
    job_fields,
    wants_run,
)
from incumbent.durations import Duration, parse_duration
from incumbent.errors import ConfigError, Misuse, StoreError
from incumbent.locks.leases import Lease, cancel_at_stop, release_unless_lost
from incumbent.locks.options import LockSettings, default_holder, overruled
from incumbent.locks.running import (
    is_async,
    loss_in,
    refuse_coroutine,
    refuse_generator,
    unless_cancelled,
)
from incumbent.model import Refused
from incumbent.protocol.claim import Claim
from incumbent.runtime.aio import LeaseScope
from incumbent.runtime.link import link_for
from incumbent.serve.situation import Situation
from incumbent.stores.names import make_key
from incumbent.supervise.kernel import DescriptorWaiter
from incumbent.supervise.signals import Signals

if TYPE_CHECKING:
    from incumbent.runtime.link import StoreLike

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("incumbent.jobs")
_DRAIN: Final = 25.0
_CHECK_EVERY: Final = 0.2
"""Seconds between checks of the lease during a pause between attempts."""
_BEGIN_WITHIN = 10.0


class JobRun:
    """The argument for a job function's parameter `run`, if it has one: its slot and its lease."""

    __slots__ = ("_lease", "attempt", "due", "name", "slot")

    def __init__(self, name: str, slot: JobSlot, attempt: int, lease: Lease) -> None:
        self._lease = lease
        self.name = name
        """The job's name."""
        self.slot = slot.name
        """The name of the slot: the scheduled instant in UTC, or `manual/...`."""
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
        """Return if the lease is proved for at least `need` more seconds; else raise LeaseLost."""
        self._lease.check(need)


class Background:
    """Runs the jobs until it is stopped; a Launcher whose runs have a thread each.

    `loop`: the event loop for coroutines; None makes one if needed.
    """

    def __init__(
        self,
        specs: Iterable[JobSpec],
        store: StoreLike | None,
        namespace: str,
        lock: LockSettings,
        emit: Emit,
        loop: asyncio.AbstractEventLoop | None,
        situation: Situation | None = None,
    ) -> None:
        link, holder, specs = link_for(store), str(lock["holder"]), tuple(specs)
        self._claimer = Claimer(link, namespace, lock)
        for spec in specs:
            # Before the instance, whose descriptors nobody would close.
            self._claimer.wanted(spec)
        self._emit = emit
        self.runs: Runs[_FunctionRun] = Runs()
        self.stopping = threading.Event()
        """Set once no further attempt may begin."""
        self.instance = Instance(
            specs, link, namespace, holder, self, emit, self.runs, situation=situation
        )
        self._own_loop: asyncio.AbstractEventLoop | None = None
        if loop is None and any(spec.call and is_async(spec.call) for spec in specs):
            loop = self._own_loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=loop.run_forever, name="incumbent-jobs-loop", daemon=True
            )
            self._loop_thread.start()
        self.loop = loop
        self._begun = threading.Event()
        self._left_alone = False
        self.error: StoreError | Misuse | None = None
        """What ended it before it was stopped."""
        self.at_end: Callable[[], object] = lambda: None
        """Called in its thread, once it has ended."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="incumbent-jobs", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises a StoreError that trying again cannot help, if it comes soon."""
        self._thread.start()
        self._begun.wait(_BEGIN_WITHIN)
        # Before the look: an error that is not seen here is told by the thread.
        self._left_alone = True
        if self.error is not None:
            # It has ended, or is about to: the error is the last thing that it notes.
            self._thread.join()
            self._close_loop()
            raise self.error

    def stop(self, drain: float) -> bool:
        """See Jobs.stop."""
        running = self.runs.running
        self.instance.stop()
        self._emit("stopping", running=len(running))
        self._wait_until(clock.now() + drain)
        if went_on := bool(running):
            self.stopping.set()
            for function_run in list(running.values()):
                function_run.stop()
            self._wait_until(clock.now() + 5.0)
        # Only now: until here the thread deals with the ends of the runs.
        self._ended = True
        self.instance.wake()
        self._thread.join(10.0)
        if not went_on:  # One that was claimed meanwhile gives its slot back.
            self._wait_until(clock.now() + 5.0)
        self._close_loop()
        self._emit("stopped")
        return not running

    def _wait_until(self, until: float) -> None:
        pause = threading.Event()
        while self.runs.running and clock.now() < until:
            pause.wait(0.02)

    def _close_loop(self) -> None:
        """Stop a loop of our own; coroutines that still run on it were cancelled before."""
        if (loop := self._own_loop) is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._loop_thread.join(5.0)
            if not self._loop_thread.is_alive():
                loop.close()

    def _run(self) -> None:
        try:
            while not self._ended:
                self.instance.step()
                if self.instance.ready:
                    self._begun.set()
        except (StoreError, Misuse) as error:
            self.error = error
            if self._left_alone:
                # Its client was closed, or the store's first reply was no. Nobody may ask for it.
                self._emit("fault", why=str(error))
        finally:
            self._begun.set()
            self.instance.close()
            self.at_end()

    # -- the Launcher of its instance ------------------------------------------------------------

    def claim(self, spec: JobSpec, slot: JobSlot) -> Claim | Refused:
        return self._claimer.claim(spec, slot)

    def launch(self, spec: JobSpec, slot: JobSlot, grant: Claim) -> None:
        link, runs, key = self._claimer.link, self.runs, (spec.name, slot.name)
        # Armed first: the start of the thread may take long, or fail.
        link.keeper.arm(grant)
        function_run = _FunctionRun(self, spec, slot, Lease(link, (grant,)), self._emit)
        name = f"incumbent-job {spec.name}"
        thread = threading.Thread(
            target=self._run_thread, args=(spec, slot, function_run), name=name, daemon=True
        )
        # Before the start: a run that ends at once removes them.
        runs.running[key], runs.started_at[key] = function_run, clock.now()
        try:
            thread.start()
        except RuntimeError as error:
            del runs.running[key], runs.started_at[key]
            release_unless_lost(function_run.lease, undo_slot=True)
            raise CannotLaunch(f"no thread can be started: {error}") from error

    def _run_thread(self, spec: JobSpec, slot: JobSlot, function_run: _FunctionRun) -> None:
        code = NOT_RECORDED
        try:
            code = function_run.run()
        except BaseException as error:  # noqa: BLE001 - a defect of ours: the run's work is over
            self._emit("fault", job=spec.name, slot=slot.name, why=repr(error))
            # Nothing works under the lease any more: it must not be renewed for ever.
            release_unless_lost(function_run.lease)
        finally:
            # In this order: `stop` waits until none is running, and the loop must not miss an end.
            self.runs.ended.append((spec.name, slot, code))
            self.runs.running.pop((spec.name, slot.name), None)
            self.instance.wake()

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        """Do nothing: a function has no on_failure command."""


class _FunctionRun:
    def __init__(
        self, jobs: Background, spec: JobSpec, slot: JobSlot, lease: Lease, emit: Emit
    ) -> None:
        self._jobs = jobs
        self._spec = spec
        self._slot = slot
        self.lease = lease
        emit = partial(emit, job=spec.name, term=lease.fencing_token)
        self._attempts = Attempts(lease, spec, slot, emit)
        self._scope: LeaseScope | None = None
        self._cancelled = False
        """Whether the lease's own end has cancelled the coroutine."""

    def run(self) -> int:
        """Run to the end; the code says how it ended, or that the slot was given back."""
        # A stop that is not seen here sees this run, and waits for it.
        if self._jobs.instance.stopped:
            return self._attempts.release_unused("its instance was stopped")
        if (code := self._attempts.begin()) is not None:
            return code
        ended = self._attempts.run_attempts(self._attempt, self._pause)
        release_unless_lost(self.lease)
        self._attempts.prune()
        return code_of(ended)

    def stop(self) -> None:
        """Cancel the coroutine, if it is one; from any thread."""
        # Kept in a variable: the loop's thread forgets it when the coroutine ends.
        if (scope := self._scope) is not None:
            scope.stop()

    def _attempt(self) -> AttemptEnd:
        began = clock.now()
        try:
            self._call()
            end = AttemptEnd(SlotState.OK)
        except (asyncio.CancelledError, CancelledError):
            stopping = self._jobs.stopping.is_set()
            if stopping or self._cancelled:
                end = stopped("signal:stop" if stopping else "expired", clock.now() - began)
            else:
                # No retry here: its loop may be about to end, and would run nothing.
                why = "the application cancelled its task, as the end of an event loop does"
                end = AttemptEnd(SlotState.LOST, why=why, final=True)
        except SystemExit as error:
            # Scripts that became functions call sys.exit(): it ends this run and nothing else.
            end = AttemptEnd.of_exit(error)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is its failure
            why = f"{type(error).__name__}: {error}"
            trace = traceback.format_exc()[-min(self._spec.keep_output, OUTPUT_MOST) :]
            end = AttemptEnd(SlotState.FAILED, why=why[:500], output=trace)
            if lost := loss_in(error, self.lease._claim.wanted.key):
                end = AttemptEnd(SlotState.LOST, why=str(lost), final=True)
            else:
                facts = {"job": self._spec.name, "slot": self._slot.name}
                _log.error("%s: %s", self._spec.name, why, exc_info=error, extra=facts)
        # Even a function that returned: what it did after its lease ended was not alone.
        return self._end_if_stopped(began) or end

    def _end_if_stopped(self, began: float) -> AttemptEnd | None:
        """The end of an attempt that outlived its lease, which is never a success; else None."""
        cause = self.lease.belief.proof.verdict(clock.now())
        notice = self.lease.belief.notice
        return stopped(cause, clock.now() - began, notice) if cause else None

    def _call(self) -> None:
        spec = self._spec
        call = cast("Callable[..., Any]", spec.call)  # see JobSpec
        run = JobRun(spec.name, self._slot, self._attempts.slot_record.attempt, self.lease)
        given = {"run": run} if wants_run(call) else {}
        if not is_async(call):
            try:
                with self._span():
                    refuse_coroutine(call(**given), call, "make the job an `async def`")
            except (asyncio.CancelledError, CancelledError) as error:
                raise RuntimeError("CancelledError, though nobody cancels a function") from error
            return
        loop = cast("asyncio.AbstractEventLoop", self._jobs.loop)  # a coroutine's jobs have one
        exits = asyncio.run_coroutine_threadsafe(self._run_coroutine(call(**given)), loop).result()
        if exits is not None:
            raise exits

    async def _run_coroutine(self, work: Coroutine[Any, Any, Any]) -> SystemExit | None:
        scope = self._scope = cancel_at_stop(self.lease)
        if self._jobs.stopping.is_set():
            # `stop` may have looked for the scope before it was there.
            scope.stop()
        try:
            with self._span(), unless_cancelled():
                await work
        except SystemExit as error:
            # If it were raised here, it would end the application's event loop.
            return error
        finally:
            scope.close()
            self._scope, self._cancelled = None, scope.fired
        return None

    def _span(self) -> AbstractContextManager[None]:
        run = self._attempts.slot_record
        return meters.span(
            "incumbent.job", name=self._spec.name, slot=run.slot, attempt=run.attempt
        )

    def _pause(self, seconds: float) -> bool:
        until = clock.now() + seconds
        while (left := until - clock.now()) > 0:
            if self._jobs.stopping.wait(min(left, _CHECK_EVERY)) or not self.lease.valid:
                return False
        return True


# -- the jobs of an application --------------------------------------------------------------------


class JobSettings(TypedDict, total=False):
    """Keyword settings of a job; durations are 15.0, "15s" or timedelta.

    `name` (the function's), `at_most_for`, `at_least_for`, `retries` (0), `retry_backoff` (10 s),
    `catch_up` ("no", "last", "all") with `catch_up_limit` (10) and `catch_up_window` (1 day),
    `overlap` ("skip", "queue"), `jitter`, `keep_runs` (100), `keep_for` (30 days), `keep_output`
    (bytes of a traceback, 4096). docs/cron.md explains each.
    """

    name: str
    at_most_for: Duration
    at_least_for: Duration
    retries: int
    retry_backoff: Duration
    catch_up: str
    catch_up_limit: int
    catch_up_window: Duration
    overlap: str
    jitter: Duration
    keep_runs: int
    keep_for: Duration
    keep_output: int


class Jobs:
    """The jobs of an application; all its instances have the same jobs, and each slot runs once.

    `store`: as for a Lock. `settings`: `ttl`, `grace` and others, as for a Lock. Functions run in
    threads of their own; coroutines on the event loop that calls `start`, else on their own loop.

    >>> jobs = Jobs(store="memory:")
    >>> @jobs.cron("30 5 * * *", tz="Europe/Berlin", at_most_for=300)
    ... def nightly(run):
    ...     run.check(need=2)
    """

    def __init__(
        self,
        store: StoreLike | None = None,
        *,
        namespace: str = "default",
        **settings: Unpack[LockSettings],
    ) -> None:
        make_key(namespace, "x")
        self._store = store
        self._namespace = namespace
        self._settings = settings
        self._specs: dict[str, JobSpec] = {}
        self._background: Background | None = None
        self._situation: Situation | None = None

    # -- defining jobs -------------------------------------------------------------------------

    def cron(
        self, expression: str, *, tz: str = "UTC", **settings: Unpack[JobSettings]
    ) -> Callable[[F], F]:
        """Run the function by a cron expression in the time zone `tz`; six fields: seconds first.

        Raises ConfigError if any of it cannot work, also for a second job of the same name.
        """
        return self._decorator(cron_schedule(expression, tz), tz, settings)

    def every(self, interval: Duration, **settings: Unpack[JobSettings]) -> Callable[[F], F]:
        """Run the function at the multiples of `interval` since 1970, in UTC."""
        return self._decorator(Every(parse_duration(interval, "every")), "UTC", settings)

    def _decorator(self, schedule: Schedule, tz: str, settings: JobSettings) -> Callable[[F], F]:
        if self._background is not None:
            raise Misuse("jobs cannot be added once they run")
        made = _read_settings(settings)

        def add(function: F) -> F:
            refuse_generator(function)
            name = settings.get("name") or function.__name__
            if name in self._specs:
                known = self._specs[name].source
                raise ConfigError(f"there is a job {name!r} already, from {known}", name="name")
            code = getattr(inspect.unwrap(function), "__code__", None)
            spec = JobSpec(
                name=name,
                schedule=schedule,
                call=function,
                timezone=tz,
                source=f"{code.co_filename}:{code.co_firstlineno}" if code else "",
                **made,
            )
            check_job_name(name)
            self._specs[name] = spec
            return function

        return add

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """The jobs, in the order of their definition."""
        return tuple(self._specs.values())

    def overrule(
        self,
        *,
        store: StoreLike | None = None,
        namespace: str | None = None,
        holder: str | None = None,
        ttl: Duration | None = None,
        grace: Duration | None = None,
        situation: Situation | None = None,
    ) -> None:
        """Replace settings of the constructor; None leaves a setting as it is.

        `situation` receives the state of the instance.
        """
        self._situation = situation or self._situation
        self._store = self._store if store is None else store
        self._namespace = self._namespace if namespace is None else namespace
        if holder is not None:
            self._settings["holder"] = holder
        make_key(self._namespace, "x")
        times: LockSettings = {} if ttl is None else {"ttl": ttl}
        if grace is not None:
            times["grace"] = grace
        self._settings = overruled(self._settings, times)

    # -- running jobs --------------------------------------------------------------------------

    def start(self, *, on_event: Emit | None = None) -> Self:
        """Join the fleet, in the background; for example when a web application starts.

        Waits up to 10 s for the store's first reply, and then goes on without it. Coroutines run on
        the event loop that calls it, if there is one; see `astart`. Raises ConfigError if settings
        cannot work, and StoreError if the store refuses us for good. `on_event` is called with each
        event; without it events go to the log "incumbent.jobs".
        """
        background = self._make_background(on_event)
        background.start()
        self._background = background
        return self

    async def astart(self, *, on_event: Emit | None = None) -> Self:
        """`start` for an event loop, which is not blocked while the store is asked."""
        # Set first: a caller that is cancelled while it waits can still stop the jobs.
        self._background = self._make_background(on_event)
        try:
            await asyncio.to_thread(self._background.start)
        except Exception:
            self._background = None
            raise
        return self

    def _make_background(self, on_event: Emit | None) -> Background:
        if self._background is not None:
            raise Misuse("these jobs run already")
        if not self._specs:
            raise ConfigError("there are no jobs: decorate functions with @jobs.cron", name="jobs")
        lock = self._settings.copy()
        lock["holder"] = lock.get("holder") or default_holder()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        emit = on_event or log_event
        return Background(
            self.specs, self._store, self._namespace, lock, emit, loop, self._situation
        )

    def stop(self, drain: Duration = _DRAIN) -> bool:
        """Claim no more slots, and wait for runs, at most `drain`; True if all runs have ended.

        After `drain`, coroutines are cancelled; functions go on, under their leases. Do not call it
        in the thread of an event loop, for whose coroutines it would wait: see `astop`.
        """
        seconds = parse_duration(drain, "drain")
        background, self._background = self._background, None
        return True if background is None else background.stop(seconds)

    async def astop(self, drain: Duration = _DRAIN) -> bool:
        """`stop` for an event loop."""
        return await asyncio.to_thread(self.stop, drain)

    def run(self, *, on_event: Emit | None = None, drain: Duration = _DRAIN) -> int:
        """Join the fleet until TERM, INT or QUIT, in the main thread; return the exit code.

        Raises StoreError if the store refuses us for good.
        """
        parse_duration(drain, "drain")
        with Signals() as signals:
            self.start(on_event=on_event)
            try:
                came = _await_end(signals, cast("Background", self._background))
            finally:
                self.stop(drain)
        return 0 if came == signal.SIGTERM else 128 + came

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(self, *_: object) -> None:
        await self.astop()


def _await_end(signals: Signals, background: Background) -> int:
    background.at_end = signals.wake
    with closing(DescriptorWaiter()) as waiter:
        while background.error is None:
            waiter.wait((signals.fd,), inf)
            for signum in signals.take():
                if signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                    return signum
    raise background.error


def _read_settings(settings: JobSettings) -> dict[str, Any]:
    """The settings as fields of a JobSpec. Raises ConfigError."""
    given: dict[str, Any] = dict(settings)
    given.pop("name", None)
    unknown = sorted(given.keys() - JobSettings.__annotations__.keys())
    if unknown:
        known = f"; known are {', '.join(sorted(JobSettings.__annotations__))}"
        text = f"unknown setting {unknown[0]!r}{GONE.get(unknown[0], known)}"
        raise ConfigError(text, name=unknown[0])
    read = {key: DEFAULTS[key](value, key) for key, value in given.items()}
    if text := bounds_conflict(read):
        raise ConfigError(text, name="at_least_for")
    return job_fields(read)
