"""One configured cluster, shared by all sides: which member to ask, and what its failures mean."""

from __future__ import annotations

import ssl
from typing import Final

from incumbent.errors import ConfigError, OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.net.names import is_unknown
from incumbent.stores.etcd.errors import (
    FINAL_AT_FIRST,
    REFUSED,
    Answered,
    is_refusal_of_certificate,
)
from incumbent.stores.etcd.url import EtcdOptions
from incumbent.stores.url import Endpoint

_SHUN: Final = 5.0
"""Seconds for which a member that failed is asked last."""
_CAUSES_MAX: Final = 10
_NO_COMMON_NAME: Final = (
    "; etcd's gateway takes no user from a client certificate, and refuses one with a common"
    " name (CN) where authentication is on: use a certificate without, and user:password@"
)


class Endpoints:
    """The members in the order in which they are asked: the one that answered last, until it fails.

    Every change is one assignment.
    """

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.all = endpoints
        self._present = endpoints[0]
        self._shunned: dict[Endpoint, float] = {}

    @property
    def tries(self) -> int:
        """How often a request is tried: each member once, a lone one twice (a dead connection)."""
        return max(2, len(self.all))

    def best(self, now: float) -> Endpoint:
        """The member to ask now: the one that answered last, or failed longest ago."""
        if not self._shunned or self._shunned.get(self._present, 0.0) <= now:
            return self._present
        return self._least_shunned()

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """It gave no answer, or answered that it cannot."""
        self._shunned[endpoint] = now + _SHUN
        if endpoint is self._present:
            self._present = self._least_shunned()

    def _least_shunned(self) -> Endpoint:
        return min(self.all, key=lambda endpoint: self._shunned.get(endpoint, 0.0))

    def answered(self, endpoint: Endpoint) -> None:
        """It is well."""
        if self._shunned:
            self._shunned.pop(endpoint, None)
        self._present = endpoint


def share(now: float, until: float, others: int) -> float:
    """By when this member must have answered, so that `others` still have a chance."""
    return now + (until - now) / (others + 1)


class Site:
    """One configured cluster.

    `token`: of the present log-in; `proved`: it has served this process before, so that what is
    wrong now may pass.
    """

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        self.where = options.shown
        self.endpoints = Endpoints(options.endpoints)
        self.restart_wait = options.restart_wait
        self.tls = _context(options) if options.tls else None
        self.token = ""
        self.proved = False
        self._unknown: set[str] = set()
        """Members whose host does not exist."""

    def wants_login(self, error: Answered) -> bool:
        """Whether the log-in is what has to be repeated: nothing was carried out."""
        if error.stale_token or (error.no_user and self.options.username is not None):
            self.token = ""
            return True
        return False

    # -- the contract's three answers ---------------------------------------------------------

    def failed(self, error: Exception, *, doubt: bool) -> StoreError:
        """The exception for a request that no member answered. `doubt`: one perhaps did it."""
        if isinstance(error, Answered):
            found = self._refused(error)
        elif isinstance(error, StoreError):
            found = error
        elif type(error.__cause__).__name__ == "SSLError" and not doubt:
            found = self.cannot_connect(error.__cause__, self.where)
        else:
            found = self.unreachable(error)
        if not doubt or isinstance(found, OutcomeUnknown):
            return found
        return OutcomeUnknown(
            f"{self.where} gave no usable answer ({error}); perhaps it did what was asked",
            permanent=found.permanent,
            retry_after=found.retry_after,
        )

    def _refused(self, error: Answered) -> StoreError:
        if error.refusal is not None:
            why, after = REFUSED[error.refusal]
            first = error.refusal in FINAL_AT_FIRST
            hint = _NO_COMMON_NAME if first and self.options.cert is not None else ""
            return StoreUnavailable(
                f"{self.where} refused the request: {why} ({error.text}){hint}",
                permanent=first and not self.proved,
                retry_after=after,
            )
        if error.sure:
            return StoreUnavailable(f"{self.where} refused the request: {error.text}")
        text = f"{self.where} answered {error.text!r}; perhaps the request was carried out"
        return OutcomeUnknown(text)

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """The exception for a request of which nothing depends."""
        return StoreUnavailable(f"{self.where} cannot be reached: {error}")

    def cannot_connect(self, error: BaseException | None, where: str) -> StoreUnavailable:
        """The exception for a connection that could not be made: nothing was sent on it."""
        text = str(error) or type(error).__name__
        causes = [error]
        while len(causes) < _CAUSES_MAX and (cause := causes[-1]) is not None:
            causes.append(cause.__cause__ or cause.__context__)
        names = {type(cause).__name__ for cause in causes}
        final = "SSLCertVerificationError" in names
        if final:
            text += "; name the authority that signed it: ?ca=/path/ca.pem"
        elif is_refusal_of_certificate(text):
            final = True
            text += "; it wants a client certificate that it trusts: ?cert=...&key=..."
        elif names & {"SSLError", "SSLEOFError", "SSLZeroReturnError"}:
            text += "; is it served over TLS, and does it want a client certificate (cert=, key=)?"
        elif is_unknown(error):
            self._unknown.add(where)
            # Of several, one will do.
            final = len(self._unknown) >= len(set(self.endpoints.all))
            text = "there is no such host"
        text = f"{where} cannot be reached: {text}"
        return StoreUnavailable(text, permanent=final and not self.proved)

    def no_gateway(self, status: int, body: bytes) -> StoreUnavailable:
        """The exception for a server that answers HTTP, and not as etcd's gateway does."""
        if b"CommonName" in body:
            why = f" refused the request{_NO_COMMON_NAME}"
        elif status == 404:
            why = (
                ": it serves no JSON gateway at /v3: it is older than etcd 3.4, or was started with"
                " --enable-grpc-gateway=false"
            )
        else:
            why = f": it answered HTTP {status}, which is no etcd gateway: check the address"
        return StoreUnavailable(self.where + why, permanent=not self.proved)


def _context(options: EtcdOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca={options.ca} cannot be used: {error}", name="ca") from error
    if options.cert is not None:
        try:
            context.load_cert_chain(options.cert, options.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cert={options.cert}, key={options.key} cannot be used: {error}", name="cert"
            ) from error
    return context
