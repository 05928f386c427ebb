"""What operators' commands share: the store, waiting for a record, a request to a holder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.cli.text import announce_wait, held, print_json, say
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError, StoreError
from incumbent.locks.clients import Client
from incumbent.locks.options import require
from incumbent.model import Holding, Key, PutOutcome, Record
from incumbent.policy import TTL_DEFAULT
from incumbent.printable import nearest
from incumbent.rules.notices import RESIGN, encode_pause, notice_to
from incumbent.runtime.link import link_for
from incumbent.stores.base import Store
from incumbent.stores.findings import NameState, examine, is_on_record, places_of, state_of
from incumbent.stores.names import check_name, make_key
from incumbent.stores.url import store_url
from incumbent.supervise.codes import BUSY, OK

REQUEST_TIMEOUT = 2.0
"""Seconds for one request to the store."""
_REASON_MAX = 200
# The pause doubles from the first to the longest. So a change is seen soon, and a long wait asks
# four times a second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
# Short: the read of a waiter is made again anyway.
_READ_TIMEOUT = 1.0
_REDRAW_EVERY, _REDRAW_GAP = 1.0, 0.1
_REREAD_AFTER = 5.0
"""Seconds after which a record is read again without a hint: hints may be lost."""


def open_client(request: CommandRequest) -> Client:
    """A client of the request's store and namespace. Raises ConfigError, also for a bad NAME."""
    if (name := request.text("name")) is not None:
        check_name(name)
    return Client(store_url(request.text("store")), namespace=request.namespace)


def store_state(client: Client) -> NameState:
    """The state of a free name, as far as it depends on the store alone."""
    return examine(link_for(client).engine, clock.now() + REQUEST_TIMEOUT)


def read_places(client: Client, name: str) -> list[str]:
    """A line about each place of a pool of this name; see places_of."""
    return [
        f"{place.key.name}: "
        + (f"held by {place.holdings[0].holder}" if place.holdings else state_of(place).word)
        for place in places_of(name, client.scan(f"{name}/", REQUEST_TIMEOUT))
    ]


def describe_unknown(client: Client, record: Record, *, if_misspelt: bool = False) -> str:
    """A line about a name that the store does not know; "" if it does.

    `if_misspelt`: only for a name that is like one on record.
    """
    if is_on_record(record):
        return ""
    try:
        names = [one.key.name for one in client.scan("", REQUEST_TIMEOUT) if one.key != record.key]
    except StoreError:
        names = []
    meant = nearest(record.key.name, names)
    if meant is None:
        return "" if if_misspelt else "nothing on record"
    return f"nothing on record; did you mean {meant!r}?"


# -- waiting for a record --------------------------------------------------------------------------


def read_until(
    client: Client,
    name: str,
    until: float,
    done: Callable[[Record], bool],
    reread_after: float = _REREAD_AFTER,
) -> Record:
    """The first record for which `done` holds, or the last one before `until`.

    `reread_after`: seconds without a hint after which it reads again. Use a short time to wait for
    a field. A field of a held name does not change `Record.seen`, so one that is written before we
    listen gives no hint. An outage is waited through and reported once. Raises StoreError if it is
    permanent, or lasts until `until`.
    """
    delay, warned, waited_on = _FIRST_PAUSE, False, None
    while True:
        # Anew in each round: after an error there is no record to wait on.
        record = None
        try:
            # One more request even at the last moment: the answer must not be that of an earlier
            # read.
            within = max(until - clock.now(), _FIRST_PAUSE)
            record = client.read(name, min(_READ_TIMEOUT, within))
            if done(record) or clock.now() >= until:
                return record
        except StoreError as error:
            if error.permanent or clock.now() >= until:
                raise
            if not warned:
                warned = True
                say(f"{name}: cannot read the store, still trying: {error}")
        if record is not None and record.seen and record.seen != waited_on:
            delay, waited_on = _FIRST_PAUSE, record.seen
            wait_for_change(client, record, min(until, clock.now() + reread_after))
        else:
            # No `seen` to compare, or a hint without a change: pause, or this loop is busy.
            waited_on = None
            time.sleep(max(0.0, min(delay, until - clock.now())))
            delay = min(2 * delay, _LONGEST_PAUSE)


def wait_for_change(client: Client, record: Record, until: float) -> None:
    """Wait until the record may have changed, a time in it is over, or `until`."""
    now = clock.now()
    ends = [holding.remaining for holding in record.holdings if holding.remaining is not None]
    if record.closed_for > 0:
        ends.append(record.closed_for)
    until = min(until, now + _REREAD_AFTER, *(now + end for end in ends))
    try:
        if record.seen:
            link_for(client).store.wait_change(record.key, record.seen, until)
            return
    except StoreError:
        # The store gives no hints now; the next read shows what is wrong.
        until = min(until, now + _LONGEST_PAUSE)
    time.sleep(max(0.0, until - clock.now()))


def watch(
    show: Callable[[], Record | None], wait: Callable[[Record, float], None] | None = None
) -> None:
    """Call `show` each second until ^C. If `wait` finds that the record changed, sooner.

    Raises StoreError if the error is permanent.
    """
    try:
        while True:
            began, record = clock.now(), None
            try:
                record = show()
            except StoreError as error:
                if error.permanent:
                    raise
                say(f"cannot read the store: {error}")
            until = began + _REDRAW_EVERY
            if wait is not None and record is not None and record.seen:
                # Changes that come together are shown once.
                time.sleep(_REDRAW_GAP)
                wait(record, until)
            else:
                time.sleep(max(0.0, until - clock.now()))
    except KeyboardInterrupt:
        # The user leaves the view with ^C.
        pass


# -- a request to a holder -------------------------------------------------------------------------


class Operator:
    """An operator's request about one name. Raises ConfigError if the store cannot do it.

    `name`: a name instead of the command line's. `parts`: capabilities that it needs, see
    `options.require`.
    """

    def __init__(
        self,
        request: CommandRequest,
        client: Client,
        *parts: Literal["slots", "fields", "notices"],
        name: str = "",
    ) -> None:
        require(link_for(client).engine.capabilities, request.command, *parts)
        self.request = request
        self.client = client
        self.key: Key = make_key(request.namespace, name or request.name)
        self.reason = request.text("reason") or ""
        if len(self.reason) > _REASON_MAX or not self.reason.isprintable():
            text = f"reason: at most {_REASON_MAX} printable characters"
            raise ConfigError(text, name="reason")
        self.who = _user_at_host()

    @property
    def store(self) -> Store:
        """The client's store."""
        return link_for(self.client).store

    def read(self) -> Record:
        """Read the record."""
        return self.client.read(self.key.name, REQUEST_TIMEOUT)

    def hint(self, record: Record) -> str:
        """What to add to an answer about a name that was never used and looks misspelt."""
        unknown = describe_unknown(self.client, record, if_misspelt=True)
        return f" ({unknown})" if unknown else ""

    def answer(self, outcome: str, line: str, code: int = OK, **more: object) -> int:
        """Print the answer, in words or in JSON, and return the exit code."""
        if self.request.on("json"):
            facts = {"name": self.key.name, "outcome": outcome, "exit_code": code, "said": line}
            print_json(self.request, {**facts, **more})
        else:
            say(f"{self.key.name}: {line}")
        return code

    def ask_to_end(self, holding: Holding, to: str = "", kind: str = "") -> PutOutcome:
        """Leave a notice for this holding; its holder gets it with the next renewal."""
        notice = notice_to(holding, who=self.who, reason=self.reason, to=to, kind=kind)
        return self.store.put(self.key, RESIGN, notice, None, clock.now() + REQUEST_TIMEOUT)

    def pause_value(self, **more: object) -> bytes:
        """The value of the field "pause"."""
        return encode_pause(who=self.who, reason=self.reason, when=clock.wall(), **more)

    def await_end(self, holding: Holding) -> tuple[Record, str | None]:
        """Wait for the end of `holding`; the last record, and how it ended (None: it did not)."""

        def gone(record: Record) -> bool:
            return all(now.token != holding.token for now in record.holdings)

        until = clock.now() + _time_to_end(holding)
        # The notice comes with the holder's next renewal. Then its work has to end.
        with announce_wait(self.request, until, lambda: held([holding])):
            record = read_until(self.client, self.key.name, until, gone)
        if not gone(record):
            return record, None
        released = any(past.token == holding.token and past.ended for past in record.history)
        return record, "has released it" if released else "did not answer; its ttl ran out"

    def still_held(self, holding: Holding, hint: str = "") -> int:
        """Print that the holder did not release it, and return the exit code."""
        after = say_seconds(_time_to_end(holding))
        line = f"{holding.holder} still holds it after {after}{hint}"
        return self.answer("held", line, BUSY, holder=holding.holder)


def _time_to_end(holding: Holding) -> float:
    """Seconds until a holding must have ended: by the notice in a renewal, or by its ttl."""
    return 2 * (holding.ttl or holding.remaining or TTL_DEFAULT)


def _user_at_host() -> str:
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
