"""Who we are to the API server: a token, a certificate, or what an exec plugin says.

A service account's token is replaced while the pod runs, so its file is read again each minute,
and when the server refuses what was read.

A plugin may take seconds, or hang. So it runs in a thread of its own, once for all who need it:
each waits until its own time is over, and nobody while the credentials of before are still good.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.tls import Tls
from incumbent.unpatched import start_thread

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

_READ_EVERY: Final = 60.0
_PLUGIN_WITHIN: Final = 30.0
"""Seconds that an exec plugin may take: some ask a server, or a person."""
_BEFORE: Final = 10.0
"""Seconds before the end of a plugin's credentials at which it is asked for others."""


class PluginCommand:
    """An exec plugin of a kubeconfig; see kubernetes.io, client-go credential plugins."""

    def __init__(self, parts: Mapping[str, Any], cluster: Mapping[str, Any], folder: str) -> None:
        command = str(parts.get("command", ""))
        if "/" in command:
            command = str(Path(folder, command))
        self._argv = [command, *map(str, parts.get("args") or ())]
        self._env = {str(it["name"]): str(it["value"]) for it in parts.get("env") or ()}
        self._version = str(parts.get("apiVersion", ""))
        self._spec: dict[str, Any] = {"interactive": False}
        if parts.get("provideClusterInfo"):
            self._spec["cluster"] = {
                name: cluster[name]
                for name in ("server", "certificate-authority-data", "insecure-skip-tls-verify")
                if name in cluster
            }

    def run(self) -> dict[str, Any]:
        """The status that it prints. Raises StoreUnavailable; never shows what it printed."""
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": self._spec}
        env = {**os.environ, **self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(
                self._argv, env=env, capture_output=True, timeout=_PLUGIN_WITHIN, check=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            found: dict[str, Any] = json.loads(done.stdout)["status"]
            if found.get("token") or found.get("clientCertificateData"):
                return found
            why = "it gave neither a token nor a certificate"
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()[-300:]
            why = f"it ended with {error.returncode}: {said}"
        except subprocess.TimeoutExpired:
            why = f"it took more than {_PLUGIN_WITHIN:.0f} s"
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise_if_from_signal(error)
            why = str(error)
        raise self.failure(why)

    def failure(self, why: str) -> StoreUnavailable:
        """The exception for a plugin that brings nothing."""
        return StoreUnavailable(f"the exec plugin {self._argv[0]} of the kubeconfig: {why}")


class Login:
    """Our credentials. `plugin`: they come from it; `file`: of the token; `files`: of the rest."""

    def __init__(
        self,
        token: str = "",
        file: str | None = None,
        certificate: str = "",
        key: str = "",
        files: tuple[str | None, str | None] = (None, None),
        plugin: PluginCommand | None = None,
    ) -> None:
        self.plugin, self._file, self._files = plugin, file, files
        self._token, self._certificate, self._key = token, certificate, key
        self._until = -inf if plugin or file else inf
        self._context: tuple[object, ssl.SSLContext] | None = None
        self.detach()

    def detach(self) -> None:
        """In the child of a fork: the plugin's thread is the parent's."""
        self._running: dict[str, Future[StoreUnavailable | None]] = {}

    @property
    def is_over(self) -> bool:
        """Whether they have to be fetched."""
        return clock.now() >= self._until

    def fetch(self, until: float) -> None:
        """Read the file, or run the plugin. Raises StoreUnavailable, at `until` at the latest."""
        if self.plugin is not None:
            self._await_plugin(self.plugin, until)
        elif self._file is not None:
            try:
                self._token = Path(self._file).read_text("ascii").strip()
            except (OSError, ValueError) as error:
                raise_if_from_signal(error)
                raise StoreUnavailable(f"the token {self._file} cannot be read: {error}") from error
            self._until = clock.now() + _READ_EVERY

    def _await_plugin(self, plugin: PluginCommand, until: float) -> None:
        from concurrent.futures import Future

        made: Future[StoreUnavailable | None] = Future()
        # In one step, so that one of all who need it starts it.
        running = self._running.setdefault("", made)
        if running is made:
            try:
                start_thread(partial(self._run, plugin, running), "incumbent-login")
            except RuntimeError as error:
                raise_if_from_signal(error)
                self._running.clear()
                raise plugin.failure(f"no thread can be started: {error}") from error
        # What we have is good for a moment still: the new one comes in time without a wait.
        if clock.now() < self._until + _BEFORE:
            return
        try:
            failure = running.result(max(0.0, until - clock.now()))
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise plugin.failure("it has not answered yet") from None
        if failure is not None:
            raise StoreUnavailable(str(failure)) from failure

    def _run(self, plugin: PluginCommand, running: Future[StoreUnavailable | None]) -> None:
        failure: StoreUnavailable | None = plugin.failure("what it printed makes no sense")
        try:
            self._take_over(plugin.run())
            failure = None
        except StoreUnavailable as error:
            failure = error
        except (ValueError, AttributeError):
            pass
        finally:
            # Before the result: whoever is woken by it, and finds it useless, starts another run.
            self._running.clear()
            running.set_result(failure)

    def _take_over(self, status: Mapping[str, Any]) -> None:
        until, end = inf, status.get("expirationTimestamp")
        if end:
            left = datetime.fromisoformat(str(end)).timestamp() - clock.wall()
            until = clock.now() + left - _BEFORE
        self._token = str(status.get("token") or "")
        self._certificate = str(status.get("clientCertificateData") or "")
        self._key = str(status.get("clientKeyData") or "")
        # The last: others use what is here as soon as it has not ended.
        self._until = until

    @property
    def header(self) -> str:
        """The value of the header Authorization."""
        return f"Bearer {self._token}" if self._token else ""

    def refused(self, header: str) -> bool:
        """The server refused this one: whether there may be another to try."""
        if header != self.header:
            return True  # another thread has fetched one since
        if self.plugin is None and self._file is None:
            return False
        self._until = -inf
        return True

    def context(self, tls: Tls) -> ssl.SSLContext:
        """The TLS context with our certificate. Raises OSError."""
        if not self._certificate:
            cert, key = self._files
            return replace(tls, certfile=cert, keyfile=key).context()
        made_of = tls, self._certificate
        if self._context is None or self._context[0] != made_of:
            # The ssl module takes certificates from files only.
            with TemporaryDirectory() as folder:
                cert, key = (str(Path(folder, name)) for name in ("cert", "key"))
                Path(cert).write_text(self._certificate)
                Path(key).write_text(self._key)
                with_ours = replace(tls, certfile=cert, keyfile=key)
                self._context = made_of, with_ours.context()
        return self._context[1]
