"""The commands of deploy/kubernetes as they stand, before an API server that allows their Role."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import tiers
from tests.deploy.test_deploy import load_program
from tests.deploy.test_kubernetes import pods, role
from tests.support.etcd_tls import EtcdTls
from tests.support.kubernetes import ApiServer
from tests.support.waiting import eventually, written

NAMESPACE = "reports"
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


class Cluster:
    """As much of one as a pod sees: its API server, and the files of its service account."""

    def __init__(self, api: ApiServer, folder: Path, ends: ExitStack) -> None:
        self.api = api
        self.folder = folder
        self._ends = ends
        api.create_namespace(NAMESPACE)
        for verb in VERBS - {*role()["verbs"]}:
            api.deny(verb)
        api.deny("*", "pods")
        api.deny("*", "namespaces")

    def grow_old(self) -> None:
        """A new namespace grants nothing for one ttl: the Lease that says so is of yesterday."""
        self.api.set_clock(-86_400)
        eventually(lambda: self.ends_with(69, "nightly", "first") and self._has_marker())
        self.api.set_clock(0)

    def ends_with(self, code: int, name: str, holder: str) -> bool:
        """A pod's end. On a slow machine a request may be late (69): then a Job tries again."""
        found = self.start(name, holder).wait()
        assert found in {code, 69}, self.printed(holder)
        return found == code

    def _has_marker(self) -> bool:
        return self.api.lease(NAMESPACE, "incumbent.marker") is not None

    def start(self, name: str, holder: str) -> subprocess.Popen[bytes]:
        """The pod `name` of the manifests, on this host; what it prints is `printed(holder)`."""
        (container,) = pods()[name]["spec"]["containers"]
        given = {each["name"]: each.get("value", holder) for each in container["env"]}
        account = self.api.account(self.folder / "account", namespace=NAMESPACE)
        account["INCUMBENT_SERVICE_ACCOUNT"] = str(self.folder / "account")
        kept = {name: it for name, it in os.environ.items() if not name.startswith("INCUMBENT_")}
        with (self.folder / holder).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "incumbent", *container["args"]],
                env=kept | account | given,
                stdout=output,
                stderr=output,
            )
        self._ends.callback(self._end, process)
        return process

    def printed(self, holder: str) -> str:
        return written(self.folder / holder)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ApiServer(tls=EtcdTls(tmp_path)) as api, ExitStack() as ends:
        yield Cluster(api, tmp_path, ends)


def test_the_nightly_job_runs_once_in_a_night(cluster: Cluster) -> None:
    cluster.grow_old()
    for holder in ("pod-1", "pod-2"):
        eventually(partial(cluster.ends_with, 0, "nightly", holder))
    assert "the work of a night" in cluster.printed("pod-1")
    # What names the account's folder is a setting, too.
    assert "no such setting" not in cluster.printed("pod-1")
    assert "skipped: already ran by pod-1" in cluster.printed("pod-2")


@pytest.mark.left(tiers.LONG)
def test_a_leader_that_ends_is_followed_by_a_standby(cluster: Cluster) -> None:
    cluster.grow_old()
    leader = cluster.start("leader", "pod-1")
    eventually(lambda: "UTC" in cluster.printed("pod-1"))
    cluster.start("leader", "pod-2")
    lease: dict[str, Any] | None = cluster.api.lease(NAMESPACE, "reports")
    assert lease is not None
    assert lease["spec"]["holderIdentity"].startswith("pod-1")
    assert lease["spec"]["leaseDurationSeconds"] == 30
    leader.terminate()
    assert leader.wait() == 0
    eventually(lambda: "UTC" in cluster.printed("pod-2"))


def test_the_label_is_on_the_pod_that_leads(cluster: Cluster) -> None:
    api, pods_of = cluster.api, f"/api/v1/namespaces/{NAMESPACE}/pods"
    api.allow_all()
    for name in ("pod-1", "pod-2"):
        api.call("POST", pods_of, {"metadata": {"name": name, "labels": {"app": "reports"}}})
    api.account(cluster.folder / "account", namespace=NAMESPACE)

    def labelled() -> set[str]:
        chosen = api.call("GET", f"{pods_of}?labelSelector=incumbent-leader%3Dtrue")
        return {it["metadata"]["name"] for it in chosen.body["items"]}

    program = load_program("kubernetes/label_leader.py")
    made = program.Pods(api.url, cluster.folder / "account", NAMESPACE, "app=reports")
    made.lead("pod-1")
    assert labelled() == {"pod-1"}
    ended = threading.Event()
    labels = threading.Thread(target=program.keep_label, args=(made, "pod-2", ended))
    labels.start()
    eventually(lambda: labelled() == {"pod-2"})
    ended.set()
    labels.join()
    assert labelled() == set()
