"""Whether this process looks like one of several replicas. Pure: all facts are handed in.

A file excludes only on its own host, and a container has files of its own: replicas that each fell
back to the embedded default would all lead. Whoever picks that default asks here first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["detect_here", "detect_orchestrator"]

_VARIABLES: Final = {
    "KUBERNETES_SERVICE_HOST": "a Kubernetes pod",
    "NOMAD_ALLOC_ID": "a Nomad allocation",
    "ECS_CONTAINER_METADATA_URI": "an ECS task",
    "ECS_CONTAINER_METADATA_URI_V4": "an ECS task",
    "AWS_LAMBDA_FUNCTION_NAME": "an AWS Lambda function",
    "K_SERVICE": "a Cloud Run or Knative service",
    "CONTAINER_APP_NAME": "an Azure container app",
    "FLY_ALLOC_ID": "a Fly.io machine",
    "DYNO": "a Heroku dyno",
}
_MARKERS: Final = {
    "/.dockerenv": "a Docker container",
    "/run/.containerenv": "a Podman container",
}
_CGROUPS: Final = ("kubepods", "docker", "containerd", "libpod", "crio", "lxc", "garden", "ecs")


def detect_orchestrator(
    environ: Mapping[str, str],
    exists: Callable[[str], bool],
    read: Callable[[str], str],
) -> str | None:
    """Say in what this process runs, such as "a Docker container (/.dockerenv exists)", or None.

    `read` returns a file's text and may raise OSError, which counts as no sign.
    """
    return _by_variable(environ) or _by_marker(exists) or _by_cgroup(read)


def detect_here() -> str | None:
    """`detect_orchestrator` of this very process."""
    return detect_orchestrator(os.environ, os.path.exists, _read_text)


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
        return file.read()


def _by_variable(environ: Mapping[str, str]) -> str | None:
    for variable, what in _VARIABLES.items():
        if environ.get(variable):
            return f"{what} ({variable} is set)"
    if kind := environ.get("container"):
        return f"a {kind} container (the variable container is set)"
    return None


def _by_marker(exists: Callable[[str], bool]) -> str | None:
    for path, what in _MARKERS.items():
        if exists(path):
            return f"{what} ({path} exists)"
    return None


def _by_cgroup(read: Callable[[str], str]) -> str | None:
    try:
        text = read("/proc/1/cgroup")
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        path = line.rpartition(":")[2]
        for word in _CGROUPS:
            if _names(path, word):
                return f"a container (/proc/1/cgroup has {path})"
    return None


def _names(path: str, word: str) -> bool:
    # A part of the path must begin with the word: "/docker/3f2a" and "/kubepods.slice" do, a
    # host's "/system.slice/docker.service" says only that Docker is installed.
    return any(part.startswith(word) and not part.endswith(".service") for part in path.split("/"))
