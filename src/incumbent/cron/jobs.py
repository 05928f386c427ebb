"""`incumbent.Jobs`: functions and coroutines that run once in the fleet, by the clock."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack

from incumbent.cron.events import Emit
from incumbent.cron.functions import Background
from incumbent.cron.schedule import Every, Schedule, cron_schedule
from incumbent.cron.settings import DEFAULTS, GONE, check_job_name, job_fields, least_above_most
from incumbent.cron.spec import JobSpec
from incumbent.durations import Duration, parse_duration
from incumbent.errors import ConfigError, Misuse, StoreError
from incumbent.options import LockSettings, default_holder, overruled
from incumbent.running import refuse_generator
from incumbent.serve.situation import Situation
from incumbent.stores.names import make_key
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.signals import Signals

if TYPE_CHECKING:
    from incumbent.protocol.link import StoreLike

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("incumbent.jobs")
_DRAIN: Final = 25.0
_WORTH_A_WARNING: Final = frozenset({"failed", "timed_out", "lost", "missed", "store", "fault"})


class JobSettings(TypedDict, total=False):
    """Keyword settings of a job; durations are 15.0, "15s" or timedelta.

    `name` (the function's), `at_most_for`, `at_least_for`, `retries` (0), `retry_backoff` (10 s),
    `catch_up` ("no", "last", "all") with `catch_up_limit` (10) and `catch_up_window` (1 day),
    `overlap` ("skip", "queue"), `jitter`, `keep_runs` (100), `keep_for` (30 days), `keep_output`
    (bytes of a traceback, 4096). docs/cron.md says what each means.
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
    """The jobs of an application; each of its instances has the same, and each slot runs once.

    `store`: as of a Lock. `settings`: `ttl`, `grace` and others of a Lock. Functions run in threads
    of their own, coroutines on the running loop of `start`, else on one of their own.

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

    # -- defining them -------------------------------------------------------------------------

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        **settings: Unpack[JobSettings],
    ) -> Callable[[F], F]:
        """Run the function by a cron expression in the zone `tz`; six fields: seconds first.

        Raises ConfigError for what cannot work, also for a second job of the same name.
        """
        return self._adding(cron_schedule(expression, tz), tz, settings)

    def every(self, interval: Duration, **settings: Unpack[JobSettings]) -> Callable[[F], F]:
        """Run the function at the multiples of `interval` since 1970, in UTC."""
        return self._adding(Every(parse_duration(interval, "every")), "UTC", settings)

    def _adding(self, schedule: Schedule, tz: str, settings: JobSettings) -> Callable[[F], F]:
        if self._background is not None:
            raise Misuse("jobs cannot be added once they run")
        made = _checked(settings)

        def add(function: F) -> F:
            refuse_generator(function)
            name = settings.get("name") or function.__name__
            if name in self._specs:
                known = self._specs[name].source
                raise ConfigError(f"there is a job {name!r} already, from {known}", name="name")
            spec = JobSpec(
                name=name,
                schedule=schedule,
                call=function,
                timezone=tz,
                source=_source_of(function),
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
        """Settings from outside that go before those it was made with; None leaves one alone.

        `situation` is told how the instance does.
        """
        self._situation = situation or self._situation
        self._store = self._store if store is None else store
        self._namespace = namespace or self._namespace
        if holder is not None:
            self._settings["holder"] = holder
        make_key(self._namespace, "x")
        times: LockSettings = {} if ttl is None else {"ttl": ttl}
        if grace is not None:
            times["grace"] = grace
        self._settings = overruled(self._settings, times)

    # -- running them --------------------------------------------------------------------------

    def start(self, *, on_event: Emit | None = None) -> Self:
        """Take part in the fleet from now on, in the background; for a web application's start.

        Waits up to 10 s for the store's first answer, and goes on without it. Inside a running
        event loop coroutines run on it; see `astart`. Raises ConfigError for what cannot work, and
        StoreError if the store refuses us for good. `on_event` is called with each event; without
        it they go to the log "incumbent.jobs".
        """
        background = self._made(on_event)
        background.start()
        self._background = background
        return self

    async def astart(self, *, on_event: Emit | None = None) -> Self:
        """`start`, for an event loop: it goes on while the store is asked."""
        # Set first: a caller that is cancelled while it waits can still stop it.
        self._background = self._made(on_event)
        try:
            await asyncio.to_thread(self._background.start)
        except StoreError:
            self._background = None
            raise
        return self

    def _made(self, on_event: Emit | None) -> Background:
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
        emit = on_event or _log_event
        return Background(
            self.specs, self._store, self._namespace, lock, emit, loop, self._situation
        )

    def stop(self, drain: Duration = _DRAIN) -> bool:
        """Claim nothing more, and wait for what runs, at most `drain`; True if all has ended.

        Then coroutines are cancelled; functions go on, under their leases. Not for the thread of
        an event loop, whose coroutines it would wait for: see `astop`.
        """
        background, self._background = self._background, None
        return True if background is None else background.stop(parse_duration(drain, "drain"))

    async def astop(self, drain: Duration = _DRAIN) -> bool:
        """`stop`, for an event loop."""
        return await asyncio.to_thread(self.stop, drain)

    def run(self, *, on_event: Emit | None = None, drain: Duration = _DRAIN) -> int:
        """Take part in the fleet until TERM or INT, in the main thread; returns the exit code."""
        with Signals() as signals:
            self.start(on_event=on_event)
            try:
                came = _await_end(signals)
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


def _await_end(signals: Signals) -> int:
    with closing(Waiter()) as waiter:
        while True:
            waiter.wait((signals.fd,), inf)
            for signum in signals.take():
                if signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                    return signum


def _log_event(event: str, /, **facts: Any) -> None:
    text = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
    level = logging.WARNING if event in _WORTH_A_WARNING else logging.INFO
    _log.log(level, "%s %s", event, text)


def _source_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _checked(settings: JobSettings) -> dict[str, Any]:
    """As JobSpec wants them; raises ConfigError."""
    given: dict[str, Any] = dict(settings)
    given.pop("name", None)
    unknown = sorted(given.keys() - JobSettings.__annotations__.keys())
    if unknown:
        known = f"; known are {', '.join(sorted(JobSettings.__annotations__))}"
        text = f"unknown setting {unknown[0]!r}{GONE.get(unknown[0], known)}"
        raise ConfigError(text, name=unknown[0])
    read = {key: DEFAULTS[key](value, key) for key, value in given.items()}
    if text := least_above_most(read):
        raise ConfigError(text, name="at_least_for")
    return job_fields(read)
