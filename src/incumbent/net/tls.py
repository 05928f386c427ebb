"""The TLS of a connection: whom to trust, and our own certificate."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Tls:
    """The check of the server's certificate, and our own certificate.

    The fields are the options of redis-py without their `ssl_`, and mean the same.
    """

    ca_certs: str | None = None
    ca_path: str | None = None
    ca_data: str | bytes | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)
    cert_reqs: Any = "required"
    check_hostname: bool = True
    include_verify_flags: tuple[int, ...] = ()
    exclude_verify_flags: tuple[int, ...] = ()
    min_version: int | None = None
    ciphers: str | None = None

    def context(self) -> ssl.SSLContext:
        """The TLS context, kept until a file is replaced: making it takes 30 ms. Raises OSError."""
        files = (self.ca_certs, self.ca_path, self.certfile, self.keyfile)
        return _context(self, tuple(_state(path) for path in files if path))


def _state(path: str) -> tuple[int, ...]:
    found = os.stat(path)  # noqa: PTH116 - pathlib costs start-up time
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _context(tls: Tls, _: tuple[tuple[int, ...], ...]) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    required = tls.cert_reqs
    if isinstance(required, str):
        required = ssl.VerifyMode[f"CERT_{required.upper()}"]
    # In this order: while a context checks the name, its verify_mode cannot be CERT_NONE.
    context.check_hostname = tls.check_hostname and required != ssl.CERT_NONE
    context.verify_mode = required
    for flag in tls.include_verify_flags:
        context.verify_flags |= flag
    for flag in tls.exclude_verify_flags:
        context.verify_flags &= ~flag
    if tls.certfile or tls.keyfile:
        context.load_cert_chain(tls.certfile or "", tls.keyfile, tls.password)
    if tls.ca_certs or tls.ca_path or tls.ca_data:
        context.load_verify_locations(tls.ca_certs, tls.ca_path, tls.ca_data)
    if tls.min_version is not None:
        context.minimum_version = ssl.TLSVersion(tls.min_version)
    if tls.ciphers:
        context.set_ciphers(tls.ciphers)
    return context
