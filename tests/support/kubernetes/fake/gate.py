"""Before a request is carried out: faults that were asked for, who it is, and what they may.

`Settings` is what the tests change while the server runs. They are sent as JSON, and are in a file
as well, so that a server that is started again has them.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from tests.support.kubernetes.fake.statuses import Json, Kind, Refused, forbidden, status

if TYPE_CHECKING:
    # Each process that tests has `Settings`, and aiohttp takes as long as pytest.
    from aiohttp import web

__all__ = ["ADMIN", "Asked", "Gate", "Settings"]

ADMIN = "system:admin"
"""The tests themselves: nothing is refused to them, and they are not counted."""
ANONYMOUS = "system:anonymous"


@dataclass
class Settings:
    """What the tests change."""

    tokens: dict[str, str] = field(default_factory=dict)
    """Users by token."""
    denied: list[list[str]] = field(default_factory=list)
    """Verb and resource; "*" is every one."""
    fail: Json = field(default_factory=dict)
    """code, until (of the monotonic clock), retry_after."""
    delay: Json = field(default_factory=dict)
    """Verb, name ("": any), and seconds before such a request is carried out."""
    lose: Json = field(default_factory=dict)
    """Verb, and how many such requests are carried out and not answered."""
    ahead: float = 0.0
    """Seconds by which the server's clock is ahead."""
    bookmark_every: float = 60.0

    def update(self, given: Json) -> None:
        for name, value in given.items():
            setattr(self, name, value)

    def takes(self, what: str, asked: Asked) -> Any:
        """The seconds of a delay for this request, or whether its answer is to be lost."""
        rule: Json = getattr(self, what)
        if rule.get("verb") not in {asked.verb, "*"} or rule.get("name", "") not in {
            "",
            asked.name,
        }:
            return 0
        if what == "lose":
            rule["times"] -= 1
            return rule["times"] >= 0
        return rule["seconds"]


@dataclass(frozen=True)
class Asked:
    """One request as the server understands it."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    user: str


class Gate:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def user_of(self, request: web.Request) -> str:
        """Raises Refused (401) for a token that nobody has."""
        said = request.headers.get("Authorization", "")
        if said.lower().startswith("bearer ") and (token := said[7:].strip()):
            if token not in self.settings.tokens:
                raise Refused(status(401, "Unauthorized", "Unauthorized"))
            return self.settings.tokens[token]
        transport = request.transport
        shown = transport.get_extra_info("peercert") if transport else None
        for part in (shown or {}).get("subject", ()):
            if part[0][0] == "commonName":
                return str(part[0][1])
        return ANONYMOUS

    def fail(self) -> None:
        """Raises Refused for as long as was asked."""
        rule = self.settings.fail
        if not rule or time.monotonic() >= rule["until"]:
            return
        after, code = rule.get("retry_after"), rule["code"]
        if code == 429:
            # Priority and fairness answers in plain text.
            said = "Too many requests, please try again later.\n"
            body = status(429, "TooManyRequests", said)
            raise Refused(body, retry_after=1 if after is None else after, text=said)
        reason, said = _FAILURES.get(code, ("", "the server failed"))
        raise Refused(status(code, reason, said), retry_after=after)

    def allows(self, user: str, verb: str, resource: str) -> bool:
        if user == ADMIN:
            return True
        rules = self.settings.denied
        return user != ANONYMOUS and not any(
            one in {verb, "*"} and other in {resource, "*"} for one, other in rules
        )

    def check(self, asked: Asked) -> None:
        """Raises Refused (403)."""
        kind = asked.kind
        if self.allows(asked.user, asked.verb, kind.plural):
            return
        where = (
            f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        )
        why = f'User "{asked.user}" cannot {asked.verb} resource "{kind.plural}" in API group '
        raise forbidden(kind, asked.name, f'{why}"{kind.group}" {where}')

    def date(self) -> str:
        return formatdate(time.time() + self.settings.ahead, usegmt=True)


_FAILURES = {
    500: ("InternalError", "Internal error occurred: the server failed"),
    502: ("", "bad gateway"),
    503: ("ServiceUnavailable", "apiserver not ready"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


def tls_context(cert: str, key: str, ca: str) -> ssl.SSLContext:
    """Clients may show a certificate of `ca`, as an API server allows it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
