"""Sends notifications from a thread of its own: bounded, retried, never in the caller's way.

    put --> a queue --> the thread --> the letters to each host, in order --> HTTP
     |                                    |  the first one is
     +-- full: dropped                    +-- accepted ------------> the next
                                          +-- refused, or too old -> dropped, the next
                                          +-- no answer, 429, 5xx -> all letters to this host pause

The order is kept: a late "started" must not follow the "ended" of its run. A host that hangs costs
the others the time of one request in each of its pauses. What is to be said is found out at the
first try, in the thread, because that may ask the store.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from incumbent import clock, meters
from incumbent.chance import draw_jitter
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import ConfigError
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.http import Garbled
from incumbent.net.pool import Broken
from incumbent.net.post import send_once
from incumbent.notify.receivers import Receiver, Webhook, parse_secrets
from incumbent.stores.url import read_secret
from incumbent.unpatched import start_thread, unpatched

_log = logging.getLogger("incumbent")

MOST: Final = 500
"""Letters that wait at a time."""
KEPT: Final = 600.0
"""Seconds after which a letter that was not accepted is dropped."""
TRIES: Final = 15
WITHIN: Final = 10.0
"""Seconds that a request may take, from the look-up of the name to the answer."""
LINGER: Final = 2.0
"""Seconds by which the end of a service is delayed, at most, by what is still to be sent."""
_BASE, _CAP = 2.0, 60.0
"""Seconds of the first and of the longest pause, before jitter."""
_SAID_EVERY: Final = 60.0
_AGAIN: Final = frozenset({408, 425, 429})


class Report(Protocol):
    """A function that logs a failure; `to`: the host, or an empty text. It must not block long."""

    def __call__(self, *, to: str, why: str) -> None: ...


class Post(NamedTuple):
    """A request to make: a webhook, or else a ping."""

    receiver: Receiver
    webhook: Webhook | None = None


@dataclass(slots=True)
class _Letter:
    """A notification. `compose`: what to send, None for nothing; `until`: when it is too old.

    `post`: what it composed, so that retries are the same; not for one that `asks_again`.
    """

    receiver: Receiver
    what: str
    compose: Callable[[], Post | None]
    until: float
    asks_again: bool = False
    post: Post | None = None
    tries: int = 0


@dataclass(slots=True)
class _Mailbag:
    """The letters to one host. `due`: when the first may be tried; `failures`: in a row."""

    letters: deque[_Letter] = field(default_factory=deque)
    due: float = -inf
    failures: int = 0


class Outbox:
    """See the module. All of it is for one thread; the first notification starts the other one.

    `secrets` returns those that sign, at each try; it may raise ConfigError.
    """

    def __init__(self, report: Report, secrets: Callable[[], Sequence[bytes]]) -> None:
        self._report = report
        self._secrets = secrets
        self._new = unpatched("queue", "SimpleQueue")()
        self._ended = unpatched("queue", "SimpleQueue")()
        self._waiting: deque[None] = deque()
        """An entry for each letter that was neither accepted nor dropped."""
        self._overflow = 0
        self._bags: dict[tuple[str, int], _Mailbag] = {}
        self._beat: tuple[float, Callable[[], Receiver | None]] | None = None
        self._beat_at = self._close_at = inf
        self._said_at: dict[str, float] = {}
        self._started = False

    def put(self, receiver: Receiver, what: str, compose: Callable[[], Post | None]) -> None:
        """Have a letter sent, or dropped if too many wait. Never blocks. `what`: its name in logs.

        `compose` is called in the thread; it returns None if there is nothing to send.
        """
        if len(self._waiting) >= MOST:
            # The thread says it: the caller may be a loop that starts jobs.
            self._overflow += 1
            _count("dropped")
            return
        self._waiting.append(None)
        self._wake(_Letter(receiver, what, compose, clock.now() + KEPT))

    def beat(self, every: float, ping: Callable[[], Receiver | None]) -> None:
        """Ping every `every` seconds from now on, each time only if `ping` returns a receiver."""
        # Not at once: a command that crashes in a loop must not seem to live.
        self._beat, self._beat_at = (every, ping), clock.now() + every
        self._wake(None)

    def close(self, within: float) -> None:
        """Send what waits, for at most `within` seconds; what is left then is dropped, and said."""
        if not self._started:
            return
        self._close_at = clock.now() + within
        # After the instant is written: the thread that this wakes reads it.
        self._new.put(None)
        # The thread may be in the middle of a request that lasts longer: it is left to itself.
        with suppress(unpatched("queue", "Empty")):
            self._ended.get(timeout=within)
        if left := len(self._waiting):
            _count("dropped", left)
            self._report(to="", why=f"{left} not sent before the end")

    def _wake(self, letter: _Letter | None) -> None:
        self._new.put(letter)
        if not self._started:
            try:
                start_thread(self._run, "incumbent-notify")
            except RuntimeError as error:
                raise_if_from_signal(error)
                # No thread is to be had: what waits is sent once the next notification gets one.
                self._say("", f"nothing is sent for now: {error}")
                return
            self._started = True

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - one defect must not end the thread
                raise_if_from_signal(error)
                _log.exception("a notification failed")
        self._ended.put(None)

    def _is_over(self) -> bool:
        if self._close_at == inf:
            return False
        # Or nothing is left that could be tried in time.
        late = all(bag.due >= self._close_at for bag in self._open_bags())
        return not self._waiting or clock.now() >= self._close_at or (late and self._new.empty())

    def _open_bags(self) -> list[_Mailbag]:
        return [bag for bag in self._bags.values() if bag.letters]

    def _turn(self) -> None:
        """Take in a new letter, or try the first one of the bag that is due."""
        self._beat_if_due()
        bag = min(self._open_bags(), key=lambda bag: bag.due, default=None)
        until = min(self._close_at, self._beat_at, bag.due if bag else inf)
        try:
            letter = self._new.get(timeout=None if until == inf else max(0.0, until - clock.now()))
        except unpatched("queue", "Empty"):
            if bag is not None and clock.now() >= bag.due:
                self._try_first(bag)
            return
        if letter is not None:
            self._put_in_bag(letter)
        if dropped := self._overflow:
            self._overflow = 0
            self._say("", f"{dropped} dropped: {MOST} wait already")

    def _put_in_bag(self, letter: _Letter) -> None:
        key = letter.receiver.host, letter.receiver.port
        self._bags.setdefault(key, _Mailbag()).letters.append(letter)

    def _beat_if_due(self) -> None:
        if self._beat is None or (now := clock.now()) < self._beat_at:
            return
        every, ping = self._beat
        # Before it is asked: a defect in `ping` must not make the next turn ask at once.
        self._beat_at = now + every
        if (receiver := ping()) is not None:

            def compose() -> Post | None:
                return None if ping() is None else Post(receiver)

            self._waiting.append(None)
            # Asked again at each try: what was proved when it was due may be lost by then.
            self._put_in_bag(_Letter(receiver, "a ping", compose, now + every, asks_again=True))

    def _try_first(self, bag: _Mailbag) -> None:
        done = True
        try:
            done = self._try(bag, bag.letters[0])
        finally:
            # After a defect of ours too: the letters behind it must not wait for ever.
            if done:
                bag.letters.popleft()
                self._waiting.popleft()

    def _try(self, bag: _Mailbag, letter: _Letter) -> bool:
        """Try to send a letter; whether it is done with."""
        now, to = clock.now(), str(letter.receiver)
        if now >= letter.until:
            return self._drop(letter, "it is too old")
        if letter.post is None or letter.asks_again:
            letter.post = letter.compose()
        if letter.post is None:
            return True
        letter.tries += 1
        # By the clock after `compose`, which may have asked a store that was slow.
        outcome = send(*letter.post, self._secrets, min(clock.now() + WITHIN, self._close_at))
        if outcome.accepted:
            _count("sent")
            bag.failures = 0
            return True
        if outcome.final:
            return self._drop(letter, outcome.why)
        delay = backoff_delay(bag.failures, 0.5 + draw_jitter() / 2, base=_BASE, cap=_CAP)
        pause = max(delay, min(outcome.after, KEPT))
        # Of the bag, not the letter: a host that does not answer gets no other letter either.
        bag.failures, bag.due = bag.failures + 1, clock.now() + pause
        if letter.tries >= TRIES or bag.due >= letter.until:
            return self._drop(letter, f"{outcome.why}, {letter.tries} times")
        _count("retried")
        self._say(to, f"{letter.what}: {outcome.why}; again in {say_seconds(pause)}")
        return False

    def _drop(self, letter: _Letter, why: str) -> bool:
        _count("dropped")
        self._say(str(letter.receiver), f"{letter.what} was not sent: {why}")
        return True

    def _say(self, to: str, why: str) -> None:
        """Report a failure, at most once a minute for each host."""
        if (now := clock.now()) - self._said_at.get(to, -inf) >= _SAID_EVERY:
            self._said_at[to] = now
            self._report(to=to, why=why)


def _count(outcome: str, letters: int = 1) -> None:
    if meters.on:
        meters.count(meters.NOTIFICATIONS, outcome, letters)


# -- one try ---------------------------------------------------------------------------------------


class TryOutcome(NamedTuple):
    """What became of a try; `final`: another one would end alike; `after`: seconds to wait."""

    accepted: bool = False
    final: bool = False
    after: float = 0.0
    why: str = ""


def send(
    receiver: Receiver,
    webhook: Webhook | None,
    secrets: Callable[[], Sequence[bytes]],
    until: float,
) -> TryOutcome:
    """Send a webhook, or without one a ping, once. Redirects are not followed."""
    try:
        request = receiver.request()
        if webhook is not None:
            request = webhook.request(receiver, secrets(), clock.wall())
        status, after = send_once(receiver.scheme, receiver.host, receiver.port, request, until)
    except (OSError, Broken, Garbled, ValueError, ConfigError) as error:
        raise_if_from_signal(error)
        return TryOutcome(why=str(error) or type(error).__name__)
    why = f"it answered {status}"
    if 300 <= status < 400:
        why = f"it redirects ({status}): name the URL to which it does"
    again = status in _AGAIN or status >= 500
    return TryOutcome(200 <= status < 300, not again, after or 0.0, why)


_SECRET: Final = "INCUMBENT_NOTIFY_SECRET"  # noqa: S105 - the name of a variable
_SECRET_FILE: Final = "INCUMBENT_NOTIFY_SECRET_FILE"  # noqa: S105 - likewise


def read_secrets(environ: Mapping[str, str] = os.environ) -> tuple[bytes, ...]:
    """The secrets that sign webhooks: from a variable, or from the file that another one names.

    Raises ConfigError.
    """
    if text := environ.get(_SECRET):
        return parse_secrets(text, _SECRET)
    if path := environ.get(_SECRET_FILE):
        return parse_secrets(read_secret(path, _SECRET_FILE), f"{_SECRET_FILE}={path}")
    raise ConfigError(
        f"notify: webhooks are signed, and there is no secret: set {_SECRET} or {_SECRET_FILE}",
        name="notify",
    )
