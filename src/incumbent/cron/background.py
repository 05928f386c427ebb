"""An instance in a thread of an application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from incumbent import clock
from incumbent.cron.calls import CallLauncher
from incumbent.cron.claims import Claimer
from incumbent.cron.events import Said
from incumbent.cron.instance import Instance
from incumbent.cron.spec import JobSpec
from incumbent.errors import StoreError
from incumbent.options import LockSettings
from incumbent.protocol.link import link_for

__all__ = ["Background", "OwnLoop"]

_BEGIN_WITHIN = 10.0


class OwnLoop:
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
        said: Said,
        loop: asyncio.AbstractEventLoop | None,
        *,
        coroutines: bool,
    ) -> None:
        link = link_for(store)
        claimer = Claimer(link, namespace, lock)
        self._launcher = CallLauncher(claimer, said, self._over)
        self._instance = Instance(
            specs,
            link,
            namespace,
            str(lock["holder"]),
            self._launcher,
            said,
            lambda: len(self._launcher.running),
        )
        for spec in self._instance.specs:
            claimer.wanted(spec)
        self._own = OwnLoop() if coroutines and loop is None else None
        self._launcher.loop = self._own.loop if self._own else loop
        self._said = said
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
        self._said("stopping", running=len(self._launcher.running))
        self._wait_until(until, lambda: not self._launcher.running)
        if self._launcher.running:
            self._launcher.stop_all()
            self._wait_until(clock.now() + 5.0, lambda: not self._launcher.running)
        self._stopping = True
        self._instance.wake()
        self._thread.join(10.0)
        self._close_loop()
        self._said("stopped")
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
                while launcher.over:
                    instance.over(launcher.over.pop())
                while launcher.given_back:
                    instance.came_back(*launcher.given_back.pop())
                while launcher.vanished:
                    instance.vanished(*launcher.vanished.pop(), 0.0)
        except StoreError as error:
            self._error = error
        finally:
            self._begun.set()
            instance.close()
