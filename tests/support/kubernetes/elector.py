"""Leader election as controllers in Go do it, after k8s.io/client-go, tools/leaderelection.

Its rules, written anew from its documentation and read against its code:

- It polls. A Lease that differs from the last one it saw counts from the instant at which it saw
  it (its own clock, never that of the holder), and is valid for the seconds that the Lease says.
- It takes one that is not valid any more, or has an empty identity, by one PUT with the version
  that it read; and adds one to the transitions unless it held it before.
- It leads until `renew_deadline` after its last renewal. It gives back by an empty identity.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

__all__ = ["Access", "GoElector"]

JITTER = 1.2


@dataclass(frozen=True)
class Access:
    """How to reach one Lease."""

    host: str
    port: int
    token: str
    namespace: str
    name: str

    def ask(self, method: str, body: Any = None, *, timeout: float = 2.0) -> tuple[int, Any]:
        """Status and object; status 0 where there was no answer."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        path += "" if method == "POST" else f"/{self.name}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        with closing(connection):
            try:
                connection.request(method, path, body and json.dumps(body), headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                return 0, None
        return answer.status, json.loads(text) if answer.status < 400 else None


@dataclass
class GoElector:
    """One candidate. Seconds: `duration` of its Lease, `renew_deadline`, `retry_period`."""

    lease: Access
    identity: str
    duration: int = 10
    renew_deadline: float = 5.0
    retry_period: float = 0.25
    _observed: dict[str, Any] = field(default_factory=dict)
    _observed_at: float = 0.0
    _renewed_at: float = 0.0

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Poll until it leads; False if `give_up` was true before."""
        while not give_up():
            if self.try_once():
                return True
            time.sleep(self.retry_period * random.uniform(1, JITTER))
        return False

    @property
    def leads(self) -> bool:
        """Whether it may act now; renews when it is time to."""
        if time.monotonic() - self._renewed_at >= self.retry_period:
            self.try_once()
        return self._is_mine and time.monotonic() - self._renewed_at < self.renew_deadline

    def try_once(self) -> bool:
        """Acquire or renew by one GET and one PUT; whether it succeeded."""
        began = time.monotonic()
        status, found = self.lease.ask("GET")
        if status == 404:
            metadata = {"name": self.lease.name}
            status, made = self.lease.ask("POST", {"metadata": metadata, "spec": self._spec({})})
            return status == 201 and self._has_written(made, began)
        if status != 200:
            return False
        spec = found.get("spec", {})
        if spec != self._observed:
            self._observed, self._observed_at = spec, time.monotonic()
        if spec.get("holderIdentity") and self._is_valid and not self._is_mine:
            return False
        status, made = self.lease.ask("PUT", {**found, "spec": self._spec(spec)})
        return status == 200 and self._has_written(made, began)

    def release(self) -> bool:
        """Whether it could be given back."""
        status, found = self.lease.ask("GET")
        if status != 200 or not self._is_mine or found["spec"] != self._observed:
            return False
        spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec |= {"renewTime": _now(), "acquireTime": _now()}
        self._observed = {}
        return self.lease.ask("PUT", {**found, "spec": spec})[0] == 200

    @property
    def _is_mine(self) -> bool:
        return bool(self._observed.get("holderIdentity") == self.identity)

    @property
    def _is_valid(self) -> bool:
        seconds = self._observed.get("leaseDurationSeconds", 0)
        return time.monotonic() < self._observed_at + float(seconds)

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        mine = old.get("holderIdentity") == self.identity
        changes = old.get("leaseTransitions", 0)
        return {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration,
            "acquireTime": old["acquireTime"] if mine else _now(),
            "renewTime": _now(),
            "leaseTransitions": changes if mine or not old else changes + 1,
        }

    def _has_written(self, made: dict[str, Any], began: float) -> bool:
        self._observed, self._observed_at = made["spec"], time.monotonic()
        # Of the client: its lease counts from before the request.
        self._renewed_at = began
        return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
