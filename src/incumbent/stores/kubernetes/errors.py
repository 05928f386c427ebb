"""What the API server's answers mean, as exceptions of the store contract. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable

VERBS: Final = ("get", "list", "watch", "create", "update")
"""What we do with Leases: there is no delete."""
_USER: Final = re.compile(r'User "([^"]+)"')
_SOON: Final = 0.5


class KubernetesAnswer(NamedTuple):
    """An answer. `verb`: as RBAC calls what was asked; `retry_after`: seconds, if it says so."""

    verb: str
    status: int
    body: dict[str, Any]
    retry_after: float | None = None

    @property
    def said(self) -> str:
        """What it says for people."""
        return str(self.body.get("message") or f"HTTP {self.status}")[:300]

    @property
    def lacks_namespace(self) -> bool:
        """Whether it is not a Lease that does not exist, but the namespace."""
        return (self.body.get("details") or {}).get("kind") == "namespaces"


def rights(namespace: str, said: str = "") -> str:
    """The commands that give what is needed to who is named in what the server said."""
    found = _USER.search(said)
    user = found[1] if found else "NAME"
    account = user.removeprefix("system:serviceaccount:")
    to = f"--user={user}" if account == user else f"--serviceaccount={account}"
    return (
        f"kubectl -n {namespace} create role incumbent --verb={','.join(VERBS)}"
        f" --resource=leases.coordination.k8s.io && kubectl -n {namespace} create rolebinding"
        f" incumbent --role=incumbent {to}"
    )


def failure(answer: KubernetesAnswer, where: str, namespace: str, *, proved: bool) -> StoreError:
    """The exception for an answer that brings nothing. `proved`: it has served this process."""
    verb, status, writes = answer.verb, answer.status, answer.verb in ("create", "update")
    said, after, final = f"{where} refused to {verb} Leases: {answer.said}", None, not proved
    if status in (429, 503):
        after, final = answer.retry_after or _SOON, False
        said = f"{where} has no time for us ({status}): {answer.said}"
    elif status == 401:
        said = f"{where} does not know us (401): the token or certificate is over, or not of here"
    elif "NamespaceTerminating" in str(answer.body.get("details")):
        said = f"{where}: the namespace {namespace} is being deleted"
    elif status == 403:
        said = f"{where}: we may not {verb} leases in {namespace}: {rights(namespace, answer.said)}"
        # Who waits would only be told again and again.
        final = final or verb in ("list", "watch")
    elif status == 404 and answer.lacks_namespace:
        said = f"{where}: there is no namespace {namespace}: kubectl create namespace {namespace}"
    elif status == 404:
        said = f"{where} knows no Leases: is it the API server of Kubernetes 1.19 or later?"
    elif status == 410:
        after, final = 0.05, False
    elif status >= 500:
        if writes:
            return OutcomeUnknown(f"{said} ({status}); perhaps it did what was asked")
        after, final = 0.2, False
    return StoreUnavailable(said, permanent=final, retry_after=after)
