"""Asking a holder to let go, and seeing whether it did: for break, resign and pause."""

from __future__ import annotations

import json
import os
from typing import Literal

from incumbent import clock
from incumbent.cli.exits import BUSY, OK, say
from incumbent.cli.looking import look_until
from incumbent.cli.parser import Request
from incumbent.cli.show import print_json
from incumbent.clients import Client
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError
from incumbent.model import Holding, Key, PutOutcome, Record
from incumbent.options import require
from incumbent.policy import TTL_DEFAULT
from incumbent.protocol.link import link_for
from incumbent.stores.base import Store
from incumbent.stores.names import make_key
from incumbent.stores.notices import RESIGN, encode_notice

__all__ = ["WITHIN", "Asking", "patience_of"]

WITHIN = 2.0
"""Seconds for one question to the store."""
_REASON_MAX = 200


class Asking:
    """One operator's wish about one name. Raises ConfigError for what cannot be asked.

    `parts`: what the store needs for it, see `options.require`.
    """

    def __init__(
        self,
        request: Request,
        client: Client,
        *parts: Literal["slots", "fields", "notices"],
    ) -> None:
        require(link_for(client).engine.capabilities, request.command, *parts)
        self._request = request
        self.client = client
        self.key: Key = make_key(request.namespace, request.name)
        self.reason = _reason(request)
        self.who = _who()

    @property
    def store(self) -> Store:
        """The store itself."""
        return link_for(self.client).store

    def read(self) -> Record:
        """The record now."""
        return self.client.read(self.key.name, WITHIN)

    def say(self, outcome: str, line: str, code: int = OK, **more: object) -> int:
        """The answer, in words or in JSON; returns the exit code."""
        if self._request.on("json"):
            said = {"name": self.key.name, "outcome": outcome, "exit_code": code, "said": line}
            print_json({**said, **more})
        else:
            say(f"{self.key.name}: {line}")
        return code

    def nobody(self, record: Record) -> int | None:
        """The answer where there is nobody to ask; None if there is."""
        if not record.holdings:
            return self.say("free", "nobody holds it")
        holding = record.holdings[0]
        if holding.foreign:
            line = f"the value at its key is not ours ({holding.holder}); left alone"
            return self.say("foreign", line, BUSY)
        return None

    def ask_to_resign(self, holding: Holding, to: str = "") -> PutOutcome:
        """Leave word for this holding, which hears of it with its next renewal."""
        notice = encode_notice(who=self.who, reason=self.reason, to=to, token=holding.token)
        return self.store.put(self.key, RESIGN, notice, None, clock.now() + WITHIN)

    def pause_value(self) -> bytes:
        """What the field "pause" says."""
        said = {"who": self.who, "reason": self.reason, "when": clock.wall()}
        return json.dumps(said).encode()

    def await_end(self, holding: Holding) -> tuple[Record, str | None]:
        """The record once `holding` is over, and how it ended; None if it is not."""

        def gone(record: Record) -> bool:
            return all(now.token != holding.token for now in record.holdings)

        until = clock.now() + patience_of(holding)
        record = look_until(self.client, self.key.name, until, gone)
        return record, _how(record, holding) if gone(record) else None

    def still_held(self, holding: Holding, hint: str = "") -> int:
        """The answer when it did not let go."""
        after = say_seconds(patience_of(holding))
        line = f"{holding.holder} still holds it after {after}{hint}"
        return self.say("held", line, BUSY, holder=holding.holder)


def patience_of(holding: Holding) -> float:
    """Seconds: it hears within one renewal, and what it does not give back runs out in one ttl."""
    return 2 * (holding.ttl or holding.remaining or TTL_DEFAULT)


def _how(record: Record, holding: Holding) -> str:
    released = any(past.token == holding.token and past.ended for past in record.history)
    return "has let go of it" if released else "did not answer; its ttl ran out"


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
