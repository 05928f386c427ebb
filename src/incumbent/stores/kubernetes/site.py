"""Where the API server is, whom to trust, and who we are: from a URL, inside a cluster or outside.

`kubernetes:///NAMESPACE` is for pods: host and port from the environment, CA, token and namespace
from the files of the service account. `kubernetes://CONTEXT/NAMESPACE` is for people: a context of
the kubeconfig.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from incumbent.errors import ConfigError
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.tls import Tls
from incumbent.stores import url as urls
from incumbent.stores.kubernetes.login import Login, PluginCommand

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_HOST: Final = "KUBERNETES_SERVICE_HOST"
_NOT_STRICT: Final = 0x20
"""VERIFY_X509_STRICT: the CAs that kubeadm and others make do not pass it."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MALFORMED: Final = (
    "the URL of the store is malformed: write kubernetes:///NAMESPACE in a pod, or"
    " kubernetes://CONTEXT/NAMESPACE with a context of the kubeconfig, percent-encoded"
)
_UNSUPPORTED: Final = {
    "proxy-url": "proxies", "tls-server-name": "another server name",
    "username": "passwords (gone since Kubernetes 1.19)", "as": "impersonation",
    "auth-provider": "auth-provider (gone since Kubernetes 1.26: use an exec plugin)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """One namespace of one cluster. `base`: what comes before /apis; `tls`: None over HTTP."""

    where: str
    endpoint: urls.Endpoint
    base: str
    namespace: str
    login: Login
    tls: Tls | None = None
    restart_wait: float | None = None


def site_of_url(url: str, environ: Mapping[str, str] = os.environ) -> KubernetesSite:
    """The site of a URL. Raises ConfigError."""
    address, _, query = url.partition("://")[2].partition("?")
    context, slash, namespace = address.partition("/")
    login = ":" in context and "@" in context
    if not slash or login or "/" in namespace or "#" in address:
        raise ConfigError(_MALFORMED, name="store")
    wait = urls.parse_restart_wait(urls.parse_options(query, ["restart_wait"]).get("restart_wait"))
    if context:
        site = _of_context(unquote(context), namespace, environ)
    else:
        site = _in_cluster(namespace, environ)
    return KubernetesSite(f"kubernetes://{context}/{site['namespace']}", restart_wait=wait, **site)


def _in_cluster(namespace: str, environ: Mapping[str, str]) -> dict[str, Any]:
    host, folder = environ.get(_HOST), Path(environ.get("INCUMBENT_SERVICE_ACCOUNT", ACCOUNT))
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"kubernetes:///... is for pods, and {_HOST} is not set: this is none, or its service"
            " links are off. Outside of a cluster write kubernetes://CONTEXT/NAMESPACE",
            name="store",
        )
    named = namespace or _text(folder / "namespace")
    return {
        "endpoint": urls.Endpoint(host, int(port)),
        "base": "",
        "namespace": _checked(named),
        "login": Login(file=_readable(folder / "token")),
        "tls": Tls(_readable(folder / "ca.crt"), exclude_verify_flags=(_NOT_STRICT,)),
    }


def _checked(namespace: str) -> str:
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(f"{namespace!r:.70} is not the name of a namespace", name="store")
    return namespace


# -- kubeconfig ------------------------------------------------------------------------------------


def _of_context(name: str, namespace: str, environ: Mapping[str, str]) -> dict[str, Any]:
    named = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    found: dict[str, dict[str, Any]] = {"contexts": {}, "clusters": {}, "users": {}}
    paths = [Path(path) for path in named.split(os.pathsep) if path and Path(path).exists()]
    for path in paths:
        _merge(found, path)
    context = found["contexts"].get(name)
    if context is None:
        known = ", ".join(sorted(found["contexts"])) or "none"
        raise ConfigError(f"no context {name!r:.70} in {named}: there are {known}", name="store")
    try:
        cluster = found["clusters"][context["cluster"]]
        user = found["users"].get(context.get("user"), {})
        server = urlsplit(cluster["server"])
        port = server.port or (443 if server.scheme == "https" else 80)
        endpoint = urls.Endpoint(server.hostname or "", port)
    except (KeyError, ValueError, TypeError) as error:
        raise_if_from_signal(error)
        raise ConfigError(f"context {name} in {named} lacks {error}", name="store") from error
    for option, what in _UNSUPPORTED.items():
        if option in cluster or option in user:
            raise ConfigError(f"context {name} in {named}: {what} cannot be used", name="store")
    return {
        "endpoint": endpoint,
        "base": server.path.rstrip("/"),
        "namespace": _checked(namespace or context.get("namespace") or "default"),
        "login": _login(cluster, user),
        "tls": _tls(cluster) if server.scheme == "https" else None,
    }


def _merge(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Add what a file has; as for kubectl, the first of a name counts."""
    parts = _parsed(_text(path), path)
    for kind, there in found.items():
        for it in parts.get(kind) or ():
            value = {**(it.get(kind[:-1]) or {}), "": str(path.parent)}
            there.setdefault(it.get("name"), value)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        parts = json.loads(text)
    except ValueError:
        parts = _of_yaml(text, path)
    if not isinstance(parts, dict):
        raise ConfigError(f"{path} is no kubeconfig", name="store")
    return parts


def _of_yaml(text: str, path: Path) -> Any:
    try:
        import yaml  # type: ignore[import-untyped] # its stubs are no part of it
    except ImportError as error:
        raise ConfigError(
            f"{path} needs the extra kubernetes: pip install 'incumbent[kubernetes]'"
            " (PyYAML>=6.0), or write it as JSON: kubectl config view --raw -o json",
            name="store",
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise_if_from_signal(error)
        raise ConfigError(f"{path} is neither JSON nor YAML", name="store") from None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise_if_from_signal(error)
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path}, which says how to reach Kubernetes, cannot be read: {why}; in a pod, is"
            " automountServiceAccountToken off?",
            name="store",
        ) from error


def _readable(path: Path) -> str:
    """The path of a file that can be read now: a pod has its files before it starts.

    What is in it is read again whenever it is needed. Raises ConfigError.
    """
    _text(path)
    return str(path)


def _file(part: Mapping[str, Any], name: str) -> str | None:
    """The path that a part names, which counts from the kubeconfig's folder."""
    return _readable(Path(part[""], part[name])) if part.get(name) else None


def _data(part: Mapping[str, Any], name: str) -> str:
    try:
        return b64decode(
            "".join(str(part.get(f"{name}-data") or "").split()), validate=True
        ).decode()
    except ValueError as error:
        raise_if_from_signal(error)
        raise ConfigError(f"{name}-data in the kubeconfig is not base64", name="store") from None


def _tls(cluster: Mapping[str, Any]) -> Tls:
    insecure = bool(cluster.get("insecure-skip-tls-verify"))
    authority = "certificate-authority"
    return Tls(
        _file(cluster, authority),
        ca_data=_data(cluster, authority) or None,
        cert_reqs="none" if insecure else "required",
        check_hostname=not insecure,
        exclude_verify_flags=(_NOT_STRICT,),
    )


def _login(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Login:
    plugin = user.get("exec")
    return Login(
        token=str(user.get("token") or ""),
        file=_file(user, "tokenFile"),
        certificate=_data(user, "client-certificate"),
        key=_data(user, "client-key"),
        files=(_file(user, "client-certificate"), _file(user, "client-key")),
        plugin=PluginCommand(plugin, cluster, user[""]) if plugin else None,
    )
