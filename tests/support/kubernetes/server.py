"""`ApiServer`: the fake as the tests hold it, to be killed, frozen, cut off, and told to fail."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from tests.support.etcd import CALM, EtcdServer
from tests.support.etcd_tls import EtcdTls
from tests.support.kubernetes.fake.gate import ADMIN, Settings
from tests.support.servers import ROOT, START_TRIES, START_WITHIN, ServerFailed, free_port

__all__ = ["ApiServer", "Lease", "Served"]

Lease = dict[str, Any]

ACCOUNT = "system:serviceaccount:default:incumbent"
LEASES = "/apis/coordination.k8s.io/v1"
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Served(NamedTuple):
    """One request: `verb` as RBAC names it, status 0 if its answer was lost."""

    verb: str
    path: str
    status: int


class Answer(NamedTuple):
    code: int
    body: Any


class ApiServer:
    """One API server; it keeps its port over `stop` and `start`.

    `etcd`: that of another API server, for a second one before the same data.
    """

    def __init__(self, *, tls: EtcdTls | None = None, etcd: EtcdServer | None = None) -> None:
        self.tls = tls
        self.host = "127.0.0.1"
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="incumbent-kubernetes-"))
        self._settings = Settings()
        self._admin = self.add_token(user=ADMIN)
        self.token = self.add_token()
        """A bearer token that the server knows."""
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0
        self._own_etcd = etcd is None
        self.etcd = etcd or EtcdServer(CALM)
        try:
            self._start_first()
        except BaseException:
            self.close()
            raise

    # -- where it is

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def ca(self) -> Path | None:
        """The authority of its certificate."""
        return self.tls.ca if self.tls else None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed("the API server is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kubeconfig(self, path: Path, *, namespace: str = "default", **user: Any) -> Path:
        """Write one with the context `test`; `user` replaces the token by other credentials."""
        cluster = {"server": self.url} | (
            {"certificate-authority": str(self.ca)} if self.ca else {}
        )
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user or {"token": self.token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(json.dumps(made))  # JSON is YAML, too
        return path

    def account(self, folder: Path, *, namespace: str = "default") -> dict[str, str]:
        """What a pod finds: `token`, `namespace` and `ca.crt` in `folder`, and its environment."""
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(self.token)
        (folder / "namespace").write_text(namespace)
        if self.ca:
            shutil.copy(self.ca, folder / "ca.crt")
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": str(self.port)}

    # -- who may what

    def add_token(self, user: str = ACCOUNT) -> str:
        token = secrets.token_urlsafe(24)
        self._change(tokens=self._settings.tokens | {token: user})
        return token

    def expire_token(self, token: str) -> None:
        tokens = self._settings.tokens
        self._change(tokens={known: user for known, user in tokens.items() if known != token})

    def deny(self, verb: str, resource: str = "leases") -> None:
        """403 from now on; "*" is every verb or resource."""
        self._change(denied=[*self._settings.denied, [verb, resource]])

    def allow_all(self) -> None:
        self._change(denied=[])

    # -- what can happen to it

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._launch()
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            if self._process is None or self._process.poll() is not None:
                raise ServerFailed(f"the API server ended at once:\n{self.log}")
            try:
                if self.call("GET", "/readyz").code == 200:
                    return
            except OSError:
                time.sleep(0.01)
        raise ServerFailed(f"the API server did not answer in {START_WITHIN} s:\n{self.log}")

    def stop(self) -> None:
        """As a crash: nothing is said to anybody. Its etcd goes on."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def reset(self) -> None:
        """All that was denied and all faults are over; tokens stay."""
        fresh = vars(Settings())
        self._change(**{name: value for name, value in fresh.items() if name != "tokens"})

    def fail(self, status: int, seconds: float, retry_after: float | None = None) -> None:
        """Answer everything with this for so long; 0 seconds ends it. 429 is plain text, as real.

        Watches that were there go on: see `cut_watches`.
        """
        until = time.monotonic() + seconds
        self._change(fail={"code": status, "until": until, "retry_after": retry_after})

    def delay(self, verb: str, seconds: float, name: str = "") -> None:
        """Carry each such request out so much later, also if its client has gone; 0 ends it.

        `name`: only those about this object.
        """
        self._change(delay={"verb": verb, "seconds": seconds, "name": name} if seconds else {})

    def lose_answers(self, verb: str, times: int = 1) -> None:
        """Carry the next ones out, and close the connection instead of answering."""
        self._change(lose={"verb": verb, "times": times})

    def set_clock(self, ahead: float) -> None:
        """`Date` and `creationTimestamp` are so many seconds ahead (behind, if negative)."""
        self._change(ahead=ahead)

    def set_bookmarks(self, every: float) -> None:
        """Seconds between bookmarks of watches that begin from now on; 60 at first, as real."""
        self._change(bookmark_every=every)

    def cut_watches(self) -> None:
        """All connections of watches end at once."""
        self._tell({"cut": True})

    def revision(self) -> int:
        """The newest resourceVersion."""
        listed = self.call("GET", f"{LEASES}/leases?limit=1").body
        return int(listed["metadata"]["resourceVersion"])

    def compact(self) -> None:
        """Forget the past: older watches and tokens of lists get 410."""
        self.etcd.etcdctl("compact", "--physical=true", str(self.revision()))

    def snapshot(self) -> Path:
        return self.etcd.snapshot()

    def restore(self, snapshot: Path) -> None:
        """As an operator does: the API server is down while its etcd is restored."""
        self.stop()
        self.etcd.restore(snapshot)
        self.start()

    # -- what an operator does

    def create_namespace(self, name: str) -> None:
        made = self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        assert made.code == 201, made

    def delete_namespace(self, name: str) -> None:
        gone = self.call("DELETE", f"/api/v1/namespaces/{name}")
        assert gone.code == 200, gone

    def leases(self, namespace: str) -> list[Lease]:
        listed: list[Lease] = self.call("GET", _path(namespace)).body["items"]
        return listed

    def lease(self, namespace: str, name: str) -> Lease | None:
        found = self.call("GET", _path(namespace, name))
        return found.body if found.code == 200 else None

    def create(self, namespace: str, name: str, **spec: Any) -> Lease:
        body = {"metadata": {"name": name}, "spec": spec}
        made = self.call("POST", _path(namespace), body)
        assert made.code == 201, made
        return dict(made.body)

    def edit(self, namespace: str, name: str, change: Callable[[Lease], None]) -> Lease:
        """As `kubectl edit`: whatever comes between, what `change` made of it stands at the end."""
        while True:
            lease = self.lease(namespace, name)
            assert lease is not None, f"there is no Lease {name} in {namespace}"
            change(lease)
            written = self.call("PUT", _path(namespace, name), lease)
            if written.code != 409:
                assert written.code == 200, written
                return dict(written.body)

    def delete(self, namespace: str, name: str) -> None:
        gone = self.call("DELETE", _path(namespace, name))
        assert gone.code == 200, gone

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Answer:
        """One request; as the operator, who is neither counted nor refused, unless `token`."""
        headers = {"Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        headers["Authorization"] = f"Bearer {self._admin if token is None else token}"
        data = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return Answer(answer.status, json.loads(text) if is_json else text.decode())

    # -- what it was asked

    @property
    def requests(self) -> list[Served]:
        """All that was served since `forget_requests`; those of the operator are left out."""
        path = self.folder / "requests.jsonl"
        if not path.exists():
            return []
        lines = path.read_bytes()[self._read :].splitlines()
        return [Served(*json.loads(line)) for line in lines]

    def forget_requests(self) -> None:
        path = self.folder / "requests.jsonl"
        self._read = path.stat().st_size if path.exists() else 0

    # -- the end

    def close(self) -> None:
        self.stop()
        if self._own_etcd and hasattr(self, "etcd"):
            self.etcd.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _start_first(self) -> None:
        for tries_left in reversed(range(START_TRIES)):
            try:
                self.start()
                break
            except ServerFailed:
                self.stop()
                if not (tries_left and "address already in use" in self.log):
                    raise
                self.port = free_port()
        if self._own_etcd:
            for name in NAMESPACES:
                self.create_namespace(name)

    def _launch(self) -> None:
        tls = self.tls and [str(self.tls.server.cert), str(self.tls.server.key), str(self.tls.ca)]
        start = {"host": self.host, "port": self.port, "etcd": self.etcd.http, "tls": tls}
        (self.folder / "start.json").write_text(json.dumps(start))
        command = [sys.executable, "-m", "tests.support.kubernetes.fake", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
            )

    def _connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=30)
        context = ssl.create_default_context(cafile=str(self.ca))
        return http.client.HTTPSConnection(self.host, self.port, timeout=30, context=context)

    def _change(self, **settings: Any) -> None:
        """Kept for a server that is started again, and said to one that runs."""
        self._settings.update(settings)
        (self.folder / "settings.json").write_text(json.dumps(vars(self._settings)))
        if getattr(self, "_process", None) is not None:
            self._tell({"set": settings})

    def _tell(self, command: dict[str, Any]) -> None:
        """Returns when it is done; a server that is frozen takes no commands."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(30)
            control.connect(str(self.folder / "control.sock"))
            control.sendall(json.dumps(command).encode() + b"\n")
            assert control.recv(16) == b"done\n", "the API server did not take a command"


def _path(namespace: str, name: str = "") -> str:
    path = f"{LEASES}/namespaces/{quote(namespace, safe='')}/leases"
    return f"{path}/{quote(name, safe='')}" if name else path
