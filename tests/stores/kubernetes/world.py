"""An engine for an API server of the tests: by its address, as if a kubeconfig named it."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Key
from incumbent.net.tls import Tls
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.stores.kubernetes.login import Login
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.url import Endpoint
from incumbent.testing.contract import NetworkWorld
from tests.rules.registers import RegistersOf
from tests.support.kubernetes import ApiServer
from tests.support.proxy import FaultProxy

CHANGES = re.compile(rb"\A(PUT|POST) .*contract-", re.DOTALL)


def open_at(url: str) -> KubernetesEngine:
    """The engine for http://HOST:PORT/NAMESPACE?token=...[&restart_wait=SECONDS][&ca=PATH]."""
    parts = urlsplit(url)
    options = {name: value for name, (value,) in parse_qs(parts.query).items()}
    assert parts.hostname
    assert parts.port
    wait = options.get("restart_wait")
    site = KubernetesSite(
        f"kubernetes://test{parts.path}",
        Endpoint(parts.hostname, parts.port),
        "",
        parts.path.strip("/"),
        Login(options["token"]),
        Tls(options["ca"]) if parts.scheme == "https" else None,
        None if wait is None else float(wait),
    )
    return KubernetesEngine(site)


def url_of(server: ApiServer, namespace: str, *, port: int = 0, wait: float | None = 0.0) -> str:
    """The URL of a namespace, for open_at."""
    ca = f"&ca={server.ca}" if server.ca else ""
    restart = "" if wait is None else f"&restart_wait={wait}"
    scheme = "https" if server.tls else "http"
    place = f"{scheme}://127.0.0.1:{port or server.port}/{namespace}"
    return f"{place}?token={server.token}{restart}{ca}"


def a_namespace(server: ApiServer) -> str:
    """A namespace of its own."""
    name = f"test-{secrets.token_hex(4)}"
    server.create_namespace(name)
    return name


class KubernetesWorld(NetworkWorld):
    """One API server behind one network."""

    def __init__(self, server: ApiServer, proxy: FaultProxy, wait: float = 0.0) -> None:
        self.server, self.namespace = server, a_namespace(server)
        url = url_of(server, self.namespace, port=proxy.port, wait=wait)
        super().__init__(open_at, url, [proxy], CHANGES)

    def pass_time(self, seconds: float) -> None:
        # Whoever waits counts with a clock that may run faster than the holder's.
        time.sleep(seconds * 1.02 + 0.05)

    def begin(self) -> None:
        """The first take in a namespace makes the marker; then nothing is granted for a while."""
        key, claim = Key("begin", secrets.token_hex(4)), secrets.token_hex(16)
        while True:
            try:
                self.engine.store().take(key, claim, Ask(1.0, "x"), clock.now() + 10.0)
                return
            except StoreUnavailable as error:
                time.sleep(error.retry_after or 0.1)

    def registers(self) -> RegistersOf:
        assert isinstance(self.engine, KubernetesEngine)
        return RegistersOf(self.engine.store().operations)

    def restart(self, *, empty: bool) -> None:
        if empty:
            self.server.delete_namespace(self.namespace)
            self.server.create_namespace(self.namespace)
        else:
            self.server.stop()
            self.server.start()


def kubeconfig_in(folder: Path, server: ApiServer) -> str:
    """The path of a kubeconfig for a server."""
    return str(server.kubeconfig(folder / "config"))
