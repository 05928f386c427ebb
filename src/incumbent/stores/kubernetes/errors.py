"""What the API server's answers mean, as exceptions of the store contract. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable

VERBS: Final = ("get", "list", "watch", "create", "update")
"""The verbs that we need on Leases; we never delete one."""
_USER: Final = re.compile(r'User "([^"]+)"')
_SOON: Final = 0.5
_LATEST: Final = 30.0
"""Seconds: whoever waits asks again by then, even if a proxy says that it is away for hours."""


class KubernetesAnswer(NamedTuple):
    """An answer. `verb`: as RBAC calls what was asked; `retry_after`: seconds, if it says so."""

    verb: str
    status: int
    body: dict[str, Any]
    retry_after: float | None = None

    @property
    def said(self) -> str:
        """Its message for people."""
        return str(self.body.get("message") or f"HTTP {self.status}")[:300]

    @property
    def lacks_namespace(self) -> bool:
        """Whether the namespace is missing, and not only a Lease."""
        return (self.body.get("details") or {}).get("kind") == "namespaces"


def grant_commands(namespace: str, said: str = "") -> str:
    """The kubectl commands that give the needed rights to the user named in the message `said`."""
    found = _USER.search(said)
    user = found[1] if found else "NAME"
    account = user.removeprefix("system:serviceaccount:")
    to = f"--user={user}" if account == user else f"--serviceaccount={account}"
    return (
        f"kubectl -n {namespace} create role incumbent --verb={','.join(VERBS)}"
        f" --resource=leases.coordination.k8s.io && kubectl -n {namespace} create rolebinding"
        f" incumbent --role=incumbent {to}"
    )


def failure(answer: KubernetesAnswer, where: str, namespace: str, *, served: bool) -> StoreError:
    """The exception for an answer without a result. `served`: this server has served us before."""
    verb, status, writes = answer.verb, answer.status, answer.verb in ("create", "update")
    text, after, final = f"{where} refused to {verb} Leases: {answer.said}", None, not served
    if status in (429, 503):
        after, final = min(answer.retry_after or _SOON, _LATEST), False
        text = f"{where} is overloaded or not ready ({status}): {answer.said}"
    elif status == 401:
        text = (
            f"{where} does not accept our credentials (401): the token or certificate has expired,"
            " or is not of this cluster"
        )
    elif "NamespaceTerminating" in str(answer.body.get("details")):
        text = f"{where}: the namespace {namespace} is being deleted"
    elif status == 403:
        commands = grant_commands(namespace, answer.said)
        text = f"{where}: we may not {verb} leases in {namespace}: {commands}"
        # Final also for a server that has served us: a waiter would only be refused again.
        final = final or verb in ("list", "watch")
    elif status == 404 and answer.lacks_namespace:
        text = f"{where}: there is no namespace {namespace}: kubectl create namespace {namespace}"
    elif status == 404:
        text = f"{where} knows no Leases: is it the API server of Kubernetes 1.19 or later?"
    elif status == 410:
        # The version from which to read on is too old.
        after, final = 0.05, False
    elif status >= 500:
        if writes:
            return OutcomeUnknown(f"{text} ({status}); perhaps it did what was asked")
        after, final = 0.2, False
    return StoreUnavailable(text, permanent=final, retry_after=after)
