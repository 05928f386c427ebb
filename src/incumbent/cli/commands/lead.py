"""`lead`: campaign for ever; CMD runs during each term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from incumbent.cli.exits import UNPROVED, say
from incumbent.cli.parser import Request
from incumbent.cli.settings import lock_settings, lock_times
from incumbent.clients import Client
from incumbent.errors import StoreError
from incumbent.locks import Candidate
from incumbent.serve.situation import Situation
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.supervise.campaign import Campaign, Restart, restart_from
from incumbent.supervise.guarding import Guard, start_guard
from incumbent.supervise.run import Command
from incumbent.supervise.signals import Signals

__all__ = ["command", "lead"]


def command(request: Request) -> int:
    """See the module."""
    return lead(request, request.name)


def lead(request: Request, label: str) -> int:
    """One instance, from its start to its exit code; `label` stands before its lines."""
    url = store_url(request.text("store"))
    # What can be refused is refused before a process is forked or a file is made.
    make_key(request.namespace, request.name)
    lock_times(request)
    restart = restart_from(request.text("restart"))

    def tell(line: str) -> None:
        if not request.on("quiet"):
            say(f"{label}: {line}")

    # The guard is forked while there is neither a thread nor a connection.
    with start_guard(request.text("isolate") or "auto") as guard, Signals() as signals:
        try:
            return _lead(request, url, restart, signals, guard, tell)
        except StoreError as error:
            say(f"{label}: the store could not be proved, nothing ran: {error}")
            return UNPROVED


def _lead(
    request: Request,
    url: str,
    restart: Restart,
    signals: Signals,
    guard: Guard,
    tell: Callable[[str], None],
) -> int:
    command = Command(request.words, url if request.on("share_store") else None)
    # Left last, for leaving it pays what is still owed to the store.
    with Client(url, namespace=request.namespace) as client:
        lock = Candidate(
            request.name, store=client, namespace=request.namespace, **lock_settings(request)
        )
        situation = Situation(request.name, lock.holder, guard.isolation, ttl=lock.policy.ttl)
        with _health(request, situation):
            return Campaign(lock, command, restart, signals, guard, situation, tell).run()


@contextmanager
def _health(request: Request, situation: Situation) -> Iterator[None]:
    if request.command != "lead":
        # The workers of one service would all answer at one address, and for one unit.
        yield
        return
    from incumbent.serve.health import start_health

    listen, token_file = request.text("listen"), request.text("token_file")
    with start_health(situation, listen=listen, token_file=token_file) as url:
        if listen is not None and listen.endswith(":0"):
            say(f"listening on {url}")
        yield
