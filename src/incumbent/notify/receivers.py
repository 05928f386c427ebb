"""Where notifications go, and how they are signed. Pure.

The path of a receiver's URL is often all that its service asks for, so it is as secret as a
password: no message of ours shows more of a URL than its host.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from incumbent.durations import utc
from incumbent.errors import ConfigError
from incumbent.printable import did_you_mean

_PORTS: Final = {"https": 443, "http": 80}
_PREFIX: Final = "whsec_"
_SECRET_LEAST: Final = 24
"""Bytes: https://github.com/standard-webhooks/standard-webhooks, "Signature scheme"."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver's URL in its parts; as text it is its host. `login`: "user:password", or ""."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    query: str = field(default="", repr=False)
    login: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def below(self, segment: str) -> Receiver:
        """The receiver whose path has one more segment."""
        return replace(self, path=f"{self.path.rstrip('/')}/{segment}")

    def request(self, body: bytes | None = None, headers: Sequence[str] = ()) -> bytes:
        """The bytes of a POST of JSON, or of a GET if there is no body."""
        target = f"{self.path}?{self.query}" if self.query else self.path
        method = "GET" if body is None else "POST"
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self}", "Connection: close", *headers]
        if self.login:
            lines.append(f"Authorization: Basic {b64encode(self.login.encode()).decode()}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join((*lines, "User-Agent: incumbent", "", "")).encode() + (body or b"")


def parse_receiver(value: object, key: str) -> Receiver:
    """Parse a receiver's URL. Raises ConfigError, which never shows the URL."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f'{key}: a URL in quotes, such as "https://host/path"', name=key)
    if not value.isascii() or any(not sign.isprintable() or sign in ' "<>\\' for sign in value):
        raise ConfigError(f"{key}: a URL is plain ASCII without blanks or quotes", name=key)
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        text = f"{key}: the host or the port of the URL cannot be read"
        raise ConfigError(text, name=key) from None
    if parts.scheme not in _PORTS:
        raise ConfigError(f"{key}: the URL begins with https:// (or http://)", name=key)
    if not host:
        raise ConfigError(f"{key}: the URL has no host", name=key)
    if port == 0:
        raise ConfigError(f"{key}: the port of the URL is from 1 on, not 0", name=key)
    if parts.fragment:
        raise ConfigError(f"{key}: the part behind # is not sent to a server", name=key)
    login = parts.netloc.rpartition("@")[0]
    return Receiver(
        parts.scheme,
        host,
        port or _PORTS[parts.scheme],
        parts.path or "/",
        parts.query,
        unquote(login),
    )


# -- pings -----------------------------------------------------------------------------------------

_STEPS: Final = ("start", "success", "fail")


@dataclass(frozen=True, slots=True)
class Ping:
    """The URLs of a dead man's switch. `start`, `fail`: None if the service has no such URL.

    `codes`: whether the end of a command is told as /EXIT-CODE, as healthchecks.io has it.
    """

    success: Receiver
    start: Receiver | None = None
    fail: Receiver | None = None
    codes: bool = False

    def after(self, code: int | None, *, ok: bool) -> Receiver | None:
        """The URL for an end; `code`: the exit code, if there is one."""
        if ok:
            return self.success
        if self.codes and code and 0 < code < 256:
            return self.success.below(str(code))
        return self.fail


def parse_ping(value: object, key: str) -> Ping:
    """Parse one URL, whose service takes /start, /fail and /EXIT-CODE, or a table of URLs."""
    if not isinstance(value, Mapping):
        success = parse_receiver(value, key)
        return Ping(success, success.below("start"), success.below("fail"), codes=True)
    for step in value:
        if step not in _STEPS:
            hint = did_you_mean(str(step), _STEPS) or f": only {', '.join(_STEPS)}"
            raise ConfigError(f"{key}: unknown key {step!r}{hint}", name=f"{key}.{step}")
    if "success" not in value:
        raise ConfigError(f"{key}: the URL for success is missing", name=key)
    found = {step: parse_receiver(url, f"{key}.{step}") for step, url in value.items()}
    return Ping(found["success"], found.get("start"), found.get("fail"))


# -- signed messages -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Webhook:
    """A message. `kind`: such as "job.failed"; `at`: seconds since 1970; `id`: the same in retries.

    Facts that are None or empty are left out.
    """

    kind: str
    at: float
    facts: Mapping[str, Any]
    id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")

    def request(self, receiver: Receiver, secrets: Sequence[bytes], now: float) -> bytes:
        """The signed request of an attempt at `now`, in seconds since 1970.

        Each attempt is signed anew: receivers refuse a signature that is some minutes old.
        """
        facts = {name: fact for name, fact in self.facts.items() if fact not in (None, "")}
        payload = {"type": self.kind, "timestamp": utc(self.at), "data": facts}
        # Other than ASCII is escaped: a lone surrogate of an output has no bytes.
        body, at = json.dumps(payload).encode(), str(int(now))
        content = b".".join((self.id.encode(), at.encode(), body))
        headers = (
            f"webhook-id: {self.id}",
            f"webhook-timestamp: {at}",
            f"webhook-signature: {' '.join(sign(secret, content) for secret in secrets)}",
        )
        return receiver.request(body, headers)


def sign(secret: bytes, content: bytes) -> str:
    """The signature of Standard Webhooks, version 1: HMAC-SHA256 in base64."""
    return f"v1,{b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()}"


def parse_secrets(text: str, source: str) -> tuple[bytes, ...]:
    """The secrets in a text, one a line: all of them sign, so that one can replace another.

    Raises ConfigError, which names the `source` and never shows the text.
    """
    secrets = tuple(_parse_secret(line, source) for line in text.split())
    if not secrets:
        raise ConfigError(f"{source} is empty: it holds the secret that signs", name="notify")
    return secrets


def _parse_secret(text: str, source: str) -> bytes:
    try:
        secret = b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(_PREFIX) or len(secret) < _SECRET_LEAST:
        raise ConfigError(
            f"{source}: a secret is {_PREFIX} and at least {_SECRET_LEAST} random bytes in base64:"
            " echo whsec_$(openssl rand -base64 32)",
            name="notify",
        )
    return secret
