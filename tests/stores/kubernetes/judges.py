"""Clients that others wrote, behind one small interface: what they make of the fake judges it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

__all__ = ["JUDGES", "Judge", "Light", "Official", "Said"]


class Said(Exception):
    """The server refused; `code` and `reason` as the client read them."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Judge(Protocol):
    def __init__(self, kubeconfig: Path, namespace: str) -> None: ...

    def create(self, name: str, holder: str, **labels: str) -> str:
        """Its resourceVersion; raises Said."""

    def read(self, name: str) -> tuple[str, str]:
        """Holder and resourceVersion; raises Said."""

    def replace(self, name: str, version: str, holder: str) -> str:
        """The new resourceVersion; raises Said."""

    def delete(self, name: str) -> None: ...

    def names(self, limit: int) -> Iterator[str]:
        """All, by pages of `limit`; raises Said."""

    def watch(self, version: str) -> Iterator[tuple[str, str]]:
        """Type and name of each event; raises Said."""

    def close(self) -> None:
        """Its connections."""


class Official:
    """The client of the Kubernetes project."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        import kubernetes

        self._all: Any = kubernetes
        self._connections: Any = self._all.config.new_client_from_config(str(kubeconfig))
        self._api: Any = self._all.client.CoordinationV1Api(self._connections)
        self._namespace = namespace

    def create(self, name: str, holder: str, **labels: str) -> str:
        client = self._all.client
        metadata = client.V1ObjectMeta(name=name, labels=labels)
        spec = client.V1LeaseSpec(holder_identity=holder, lease_duration_seconds=15)
        body = client.V1Lease(metadata=metadata, spec=spec)
        with self._reading():
            made = self._api.create_namespaced_lease(self._namespace, body)
        return str(made.metadata.resource_version)

    def read(self, name: str) -> tuple[str, str]:
        with self._reading():
            found = self._api.read_namespaced_lease(name, self._namespace)
        return found.spec.holder_identity, found.metadata.resource_version

    def replace(self, name: str, version: str, holder: str) -> str:
        client = self._all.client
        metadata = client.V1ObjectMeta(name=name, resource_version=version)
        body = client.V1Lease(metadata=metadata, spec=client.V1LeaseSpec(holder_identity=holder))
        with self._reading():
            made = self._api.replace_namespaced_lease(name, self._namespace, body)
        return str(made.metadata.resource_version)

    def delete(self, name: str) -> None:
        with self._reading():
            self._api.delete_namespaced_lease(name, self._namespace)

    def names(self, limit: int) -> Iterator[str]:
        token = None
        while token != "":
            with self._reading():
                page = self._api.list_namespaced_lease(
                    self._namespace, limit=limit, **({"_continue": token} if token else {})
                )
            assert len(page.items) <= limit
            yield from (it.metadata.name for it in page.items)
            token = page.metadata._continue or ""

    def watch(self, version: str) -> Iterator[tuple[str, str]]:
        stream = self._all.watch.Watch().stream(
            self._api.list_namespaced_lease, self._namespace, resource_version=version
        )
        with self._reading():
            for event in stream:
                yield event["type"], event["object"].metadata.name

    def close(self) -> None:
        self._connections.rest_client.pool_manager.clear()
        self._connections.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        import json

        try:
            yield
        except self._all.client.ApiException as error:
            # A watch has no body to read: its reason has the text.
            reason = json.loads(error.body)["reason"] if error.body else str(error.reason)
            raise Said(int(error.status), reason) from error


class Light:
    """lightkube."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        import lightkube
        from lightkube.models import coordination_v1, meta_v1
        from lightkube.resources.coordination_v1 import Lease

        self._lease: Any = Lease
        self._spec: Any = coordination_v1.LeaseSpec
        self._meta: Any = meta_v1.ObjectMeta
        self._error: Any = lightkube.ApiError
        config = lightkube.KubeConfig.from_file(kubeconfig)
        self._client: Any = lightkube.Client(config=config, namespace=namespace)

    def create(self, name: str, holder: str, **labels: str) -> str:
        spec = self._spec(holderIdentity=holder, leaseDurationSeconds=15)
        with self._reading():
            made = self._client.create(
                self._lease(metadata=self._meta(name=name, labels=labels), spec=spec)
            )
        return str(made.metadata.resourceVersion)

    def read(self, name: str) -> tuple[str, str]:
        with self._reading():
            found = self._client.get(self._lease, name)
        return found.spec.holderIdentity, found.metadata.resourceVersion

    def replace(self, name: str, version: str, holder: str) -> str:
        metadata = self._meta(name=name, resourceVersion=version)
        with self._reading():
            made = self._client.replace(
                self._lease(metadata=metadata, spec=self._spec(holderIdentity=holder))
            )
        return str(made.metadata.resourceVersion)

    def delete(self, name: str) -> None:
        with self._reading():
            self._client.delete(self._lease, name)

    def names(self, limit: int) -> Iterator[str]:
        with self._reading():
            for it in self._client.list(self._lease, chunk_size=limit):
                yield it.metadata.name

    def watch(self, version: str) -> Iterator[tuple[str, str]]:
        with self._reading():
            for kind, made in self._client.watch(self._lease, resource_version=version):
                yield kind, made.metadata.name

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise Said(error.status.code, error.status.reason) from error


JUDGES: tuple[type[Judge], ...] = (Official, Light)
