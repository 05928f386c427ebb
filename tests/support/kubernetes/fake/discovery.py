"""What clients ask before their first request: the version, the kinds, and what they may do."""

from __future__ import annotations

import json

from tests.support.kubernetes.fake.gate import Gate
from tests.support.kubernetes.fake.objects import LEASES, NAMESPACES, PODS
from tests.support.kubernetes.fake.statuses import Json, Kind

__all__ = ["answer", "review"]

VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.1",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2025-09-09T19:38:30Z",
    "goVersion": "go1.24.6",
    "compiler": "gc",
    "platform": "linux/amd64",
}
WORDS = ["create", "delete", "get", "list", "patch", "update", "watch"]
REVIEWS = Kind(
    "authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
SHORT = {PODS: ["po"], NAMESPACES: ["ns"]}
ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def answer(path: str) -> Json | str | None:
    """Of a GET; None where there is nothing."""
    if path.rstrip("/") in {"/healthz", "/livez", "/readyz"}:
        return "ok"
    return ANSWERS.get(path.rstrip("/"))


def _group(name: str) -> Json:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(version: str, *kinds: Kind) -> Json:
    said = [
        {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": ["create"] if kind is REVIEWS else WORDS,
            "shortNames": SHORT.get(kind, []),
        }
        for kind in kinds
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": said}


ANSWERS: dict[str, Json] = {
    "/version": dict(VERSION),
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group("coordination.k8s.io"), _group("authorization.k8s.io")],
    },
    "/api/v1": _resources("v1", PODS, NAMESPACES),
    "/apis/coordination.k8s.io/v1": _resources("coordination.k8s.io/v1", LEASES),
    "/apis/authorization.k8s.io/v1": _resources("authorization.k8s.io/v1", REVIEWS),
}


def review(path: str, body: bytes, user: str, gate: Gate) -> Json | None:
    """A SelfSubjectAccessReview."""
    if path != ACCESS:
        return None
    asked: Json = json.loads(body)
    wanted = asked.get("spec", {}).get("resourceAttributes") or {}
    allowed = gate.allows(user, wanted.get("verb", ""), wanted.get("resource", ""))
    said = {"allowed": allowed} | ({} if allowed else {"reason": ""})
    made = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
    return made | {"metadata": {}, "spec": asked.get("spec", {}), "status": said}
