"""`break`: ask the holder to stop, or remove its record."""

from __future__ import annotations

import os

from incumbent import clock
from incumbent.cli.exits import BUSY, OK, say
from incumbent.cli.looking import look_until
from incumbent.cli.parser import Request
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError
from incumbent.links import link_for
from incumbent.model import Holding, Key, Record, Released
from incumbent.policy import TTL_DEFAULT
from incumbent.store_url import store_url
from incumbent.stores.base import Store
from incumbent.stores.names import make_key
from incumbent.stores.notices import RESIGN, encode_notice
from incumbent.sync import Client

__all__ = ["command"]

_WITHIN = 2.0
_REASON_MAX = 200


def command(request: Request) -> int:
    """See the module."""
    key = make_key(request.namespace, request.name)
    notice_reason = _reason(request)
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = client.read(key.name, _WITHIN)
        if not record.holdings:
            say(f"{key.name}: nobody holds it")
            return OK
        holding = record.holdings[0]
        if holding.foreign:
            say(f"{key.name}: the value at its key is not ours ({holding.holder}); left alone")
            return BUSY
        store = link_for(client).store
        notice = encode_notice(who=_who(), reason=notice_reason, token=holding.token)
        store.put(key, RESIGN, notice, None, clock.now() + _WITHIN)
        if request.on("force"):
            return _remove(store, key, holding)
        return _ask(client, key, holding)


def _reason(request: Request) -> str:
    reason = request.text("reason") or ""
    if len(reason) > _REASON_MAX or not reason.isprintable():
        raise ConfigError(f"reason: at most {_REASON_MAX} printable characters", name="reason")
    return reason


def _who() -> str:
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


def _remove(store: Store, key: Key, holding: Holding) -> int:
    until = clock.now() + _WITHIN
    outcome = store.give(key, holding.claim, holding.token, until)
    if not isinstance(outcome, Released):
        say(f"{key.name}: {holding.holder} has let go of it meanwhile")
        return OK
    left = say_seconds(holding.remaining or holding.ttl or TTL_DEFAULT)
    say(
        f"{key.name}: removed; {holding.holder} may act beside the next holder for up to {left},"
        " unless its renewal tells it before"
    )
    return OK


def _ask(client: Client, key: Key, holding: Holding) -> int:
    # It learns of it within one renewal, and what it does not give back runs out within one ttl.
    patience = 2 * (holding.ttl or holding.remaining or TTL_DEFAULT)

    def gone(record: Record) -> bool:
        return all(now.token != holding.token for now in record.holdings)

    record = look_until(client, key.name, clock.now() + patience, gone)
    if not gone(record):
        say(f"{key.name}: {holding.holder} still holds it after {say_seconds(patience)}; --force?")
        return BUSY
    next_one = f"; {record.holdings[0].holder} holds it now" if record.holdings else ""
    say(f"{key.name}: {holding.holder} {_how(record, holding)}{next_one}")
    return OK


def _how(record: Record, holding: Holding) -> str:
    released = any(past.token == holding.token and past.ended for past in record.history)
    return "has let go of it" if released else "did not answer; its ttl ran out"
