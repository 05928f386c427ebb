"""`pause` and `unpause`: the fleet-wide off switch of a name, or of every job."""

from __future__ import annotations

import json

from incumbent import clock
from incumbent.cli.asking import WITHIN, Asking
from incumbent.cli.exits import OK, say
from incumbent.cli.ledger_show import jobs_of
from incumbent.cli.parser import Request
from incumbent.cli.show import print_json, said_by
from incumbent.clients import Client
from incumbent.cron.control import CONTROL
from incumbent.errors import ConfigError
from incumbent.model import ABSENT, ByVersion, Key, Record, Stale
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.stores.notices import PAUSE, read_notice

__all__ = ["command"]

_SCAN_WITHIN = 5.0


def command(request: Request) -> int:
    """See the module."""
    if request.on("all") == bool(request.name):
        raise ConfigError(f"{request.command}: NAME, or --all for every job", name="name")
    name = request.name or CONTROL
    make_key(request.namespace, name)
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        named = {**request.values, "name": name}
        wish = Request(request.command, named, request.words)
        if request.on("all"):
            return _all(request, Asking(wish, client, "fields", "notices"))
        asking = Asking(wish, client, "notices")
        return _pause(asking) if request.command == "pause" else _unpause(asking)


def _pause(asking: Asking) -> int:
    # Who paused it first, and why, stays on record.
    until = clock.now() + WITHIN
    outcome = asking.store.put(asking.key, PAUSE, asking.pause_value(), ABSENT, until)
    record = asking.read()
    before = f"was paused before{said_by(record, PAUSE)}" if isinstance(outcome, Stale) else ""
    if not record.holdings:
        return asking.say("paused", before or "paused; nobody held it")
    holding = record.holdings[0]
    if holding.foreign:
        line = f"paused; the value at its key is not ours ({holding.holder}) and stays"
        return asking.say("paused", before or line)
    _, how = asking.await_end(holding)
    if how is None:
        return asking.still_held(holding, "; it is paused for all others")
    return asking.say("paused", f"{before or 'paused'}; {holding.holder} {how}")


def _unpause(asking: Asking) -> int:
    record = asking.read()
    if PAUSE not in record.fields:
        return asking.say("unpaused", "was not paused")
    asking.store.put(asking.key, PAUSE, None, None, clock.now() + WITHIN)
    return asking.say("unpaused", "may be held again")


# -- every job -----------------------------------------------------------------------------------


def _all(request: Request, asking: Asking) -> int:
    """The switch for everything comes first: jobs that are made meanwhile find it."""
    pausing = request.command == "pause"
    value = json.dumps({**json.loads(asking.pause_value()), "all": True}).encode()
    until = clock.now() + WITHIN
    if pausing:
        asking.store.put(asking.key, PAUSE, value, ABSENT, until)
    else:
        asking.store.put(asking.key, PAUSE, None, None, until)
    jobs = jobs_of(asking.client.scan("", _SCAN_WITHIN))
    changed = [it.key.name for it in jobs if _switch(asking, it, value if pausing else None)]
    return _answer(request, changed, [it.key.name for it in jobs])


def _switch(asking: Asking, record: Record, value: bytes | None) -> bool:
    """True if it was changed. What was paused by its name stays paused."""
    key, until = Key(record.key.namespace, record.key.name), clock.now() + WITHIN
    if value is not None:
        return not isinstance(asking.store.put(key, PAUSE, value, ABSENT, until), Stale)
    field = record.fields.get(PAUSE)
    if field is None or read_notice(field.value).get("all") is not True:
        return False
    guard = ByVersion(field.version)
    return not isinstance(asking.store.put(key, PAUSE, None, guard, until), Stale)


def _answer(request: Request, changed: list[str], jobs: list[str]) -> int:
    done = "paused" if request.command == "pause" else "unpaused"
    if request.on("json"):
        print_json({"outcome": done, "exit_code": OK, "changed": changed, "jobs": jobs})
        return OK
    kept = len(jobs) - len(changed)
    more = f"; {kept} left as they were" if kept else ""
    say(f"{len(changed)} of {len(jobs)} jobs {done}{more}")
    return OK
