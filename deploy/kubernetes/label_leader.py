"""Runs a command and keeps the label `incumbent-leader: "true"` on this pod while it runs.

    incumbent lead switch-7 -- python label_leader.py python client.py

The label is for finding the leader, never for excluding anybody. It is said again every few
seconds, so it heals after an API server that was away and after a late answer to somebody who led
before. The command does not wait for it, and goes on without it. On an orderly end the label is
taken off; after a crash the next leader takes it off.

Environment: POD_NAME, POD_NAMESPACE, POD_SELECTOR (such as app=telnet).
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

LABEL = "incumbent-leader"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EVERY = 5.0
WITHIN = 2.0


class Pods:
    """The pods of one selector, through the API server that this pod's account can reach."""

    def __init__(self, api: str, account: Path, namespace: str, selector: str) -> None:
        self._url = f"{api}/api/v1/namespaces/{quote(namespace)}/pods"
        self._selector = selector
        self._account = account
        ca = account / "ca.crt"
        self._tls = ssl.create_default_context(cafile=str(ca)) if ca.exists() else None

    def lead(self, mine: str) -> None:
        """The label on `mine` and on no other. Raises OSError or ValueError."""
        for name in self._labelled() - {mine}:
            self._put(name, None)
        self._put(mine, "true")

    def resign(self, mine: str) -> None:
        """The label off `mine`. Raises OSError or ValueError."""
        self._put(mine, None)

    def _labelled(self) -> set[str]:
        chosen = quote(f"{self._selector},{LABEL}=true")
        found = self._call("GET", f"{self._url}?labelSelector={chosen}")
        return {pod["metadata"]["name"] for pod in found["items"]}

    def _put(self, name: str, value: str | None) -> None:
        # A merge patch: null takes a label off.
        self._call("PATCH", f"{self._url}/{quote(name)}", {"metadata": {"labels": {LABEL: value}}})

    def _call(self, method: str, url: str, body: object = None) -> Any:
        # Read each time: the kubelet replaces tokens that are about to expire.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json",
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - see main
        with urllib.request.urlopen(request, timeout=WITHIN, context=self._tls) as reply:  # noqa: S310
            return json.load(reply)


def keep_label(pods: Pods, mine: str, ended: threading.Event, every: float = EVERY) -> None:
    """Say it again and again until `ended`, then take it back; troubles are told, not raised."""
    while not ended.is_set():
        _try(pods.lead, mine)
        ended.wait(every)
    _try(pods.resign, mine)


def _try(step: Any, mine: str) -> None:
    try:
        step(mine)
    except (OSError, ValueError, KeyError) as error:
        print(f"label_leader: {error}", file=sys.stderr, flush=True)


def run(command: list[str], pods: Pods, mine: str) -> int:
    """The command's own exit code, 128+n for a signal; TERM and INT are handed to it."""
    ended = threading.Event()
    labels = threading.Thread(target=keep_label, args=(pods, mine, ended))
    with subprocess.Popen(command) as child:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: child.send_signal(received))
        labels.start()
        code = child.wait()
    ended.set()
    labels.join(2 * WITHIN)
    return code if code >= 0 else 128 - code


def main() -> int:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    # An IPv6 address needs its brackets.
    api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    pods = Pods(api, ACCOUNT, os.environ["POD_NAMESPACE"], os.environ["POD_SELECTOR"])
    return run(sys.argv[1:], pods, os.environ["POD_NAME"])


if __name__ == "__main__":
    sys.exit(main())
