"""The engine for a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incumbent.stores.kubernetes.engine import KubernetesEngine


def open_kubernetes(url: str) -> KubernetesEngine:
    """The engine for `kubernetes:///NAMESPACE` or `kubernetes://CONTEXT/NAMESPACE`.

    Reads the kubeconfig, and opens no connection. Raises ConfigError for a malformed URL, an
    unknown option or context, or a kubeconfig that cannot be used.
    """
    from incumbent.stores.kubernetes.engine import KubernetesEngine
    from incumbent.stores.kubernetes.site import site_of_url

    return KubernetesEngine(site_of_url(url))
