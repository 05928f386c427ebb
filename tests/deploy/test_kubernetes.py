"""deploy/kubernetes without Redis: what the manifests say fits together, and fits the program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package

from incumbent.cli.parser import parse, unknown_variables
from incumbent.durations import parse_duration
from incumbent.policy import make_policy
from tests import tiers
from tests.deploy.test_deploy import DEPLOY, load

KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
MANIFESTS = [
    *(path for path in sorted(KUBERNETES.rglob("*.yaml")) if path not in KUSTOMIZATIONS),
    DEPLOY / "cron" / "kubernetes.yaml",
]
# The first with all kinds that are used here, and the newest that the package knows.
RELEASES = ("1.29", "1.37")


def _named(path: Path) -> str:
    return path.relative_to(DEPLOY).as_posix()


def _of(kind: str, *, below: str = "base") -> dict[str, Any]:
    (found,) = (
        each
        for path in sorted((KUBERNETES / below).glob("*.yaml"))
        for each in load(path)
        if each["kind"] == kind
    )
    return dict(found)


def pods() -> dict[str, dict[str, Any]]:
    job = _of("CronJob")["spec"]["jobTemplate"]["spec"]
    return {"leader": _of("Deployment")["spec"]["template"], "nightly": job["template"]}


def role() -> dict[str, Any]:
    """The one rule of the account."""
    (rule,) = _of("Role")["rules"]
    return dict(rule)


@pytest.mark.left(tiers.FORMS, f"*-{RELEASES[-1]}")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", MANIFESTS, ids=_named)
def test_the_schemas_of_kubernetes_take_every_manifest(path: Path, release: str) -> None:
    import kubernetes_validate

    for manifest in load(path):
        kubernetes_validate.validate(manifest, release, strict=True)


def test_the_schemas_refuse_what_is_misspelt() -> None:
    import kubernetes_validate

    account = _of("ServiceAccount")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(account | {"autoMount": True}, RELEASES[-1], strict=True)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=_named)
def test_a_kustomization_names_what_is_there(path: Path) -> None:
    (made,) = load(path)
    for it in (*made.get("resources", ()), *made.get("components", ())):
        named = path.parent / it
        assert named.is_file() or (named / "kustomization.yaml").is_file(), it
    others = {each.name for each in path.parent.glob("*.yaml")} - {path.name}
    assert others <= set(made.get("resources", ()))


def test_the_account_may_do_what_leases_need_and_delete_nothing() -> None:
    assert (role()["apiGroups"], role()["resources"]) == (["coordination.k8s.io"], ["leases"])
    assert sorted(role()["verbs"]) == ["create", "get", "list", "update", "watch"]
    binding = _of("RoleBinding")
    assert binding["roleRef"]["name"] == _of("Role")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == _of("ServiceAccount")["metadata"]["name"]


def test_the_flow_schema_is_of_the_same_account_and_requests() -> None:
    schema = _of("FlowSchema", below="priority")["spec"]
    (rules,) = schema["rules"]
    (subject,), (resources,) = rules["subjects"], rules["resourceRules"]
    assert subject["serviceAccount"]["name"] == _of("ServiceAccount")["metadata"]["name"]
    assert {part: resources[part] for part in role()} == role()
    (example,) = load(KUBERNETES / "example" / "kustomization.yaml")
    assert subject["serviceAccount"]["namespace"] == example["namespace"]
    assert resources["namespaces"] == [example["namespace"]]


@pytest.mark.parametrize("name", ["leader", "nightly"])
def test_a_pod_has_the_account_the_policy_and_time_to_stop(name: str) -> None:
    pod = pods()[name]
    assert _of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= (
        pod["metadata"]["labels"].items()
    )
    spec = pod["spec"]
    assert spec["serviceAccountName"] == _of("ServiceAccount")["metadata"]["name"]
    assert spec.get("automountServiceAccountToken", True)
    variables = _variables(pod)
    policy = make_policy(variables["INCUMBENT_TTL"], grace=variables["INCUMBENT_GRACE"])
    given = parse_duration(f"{spec['terminationGracePeriodSeconds']}s", "given")
    assert given >= policy.grace + policy.request_timeout + 5


@pytest.mark.parametrize("name", ["leader", "nightly"])
def test_a_pod_runs_a_command_that_is_understood(name: str) -> None:
    pod = pods()[name]
    variables = _variables(pod)
    assert unknown_variables(variables) == []
    (container,) = pod["spec"]["containers"]
    call = parse(container["args"], variables)
    assert call.text("store") == "kubernetes:///"
    assert call.command == {"leader": "lead", "nightly": "run"}[name]


def _variables(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "x") for each in container["env"]}


def _patches() -> Iterator[dict[str, Any]]:
    (made,) = load(KUBERNETES / "leader-label" / "kustomization.yaml")
    (patch,) = made["patches"]
    yield from yaml.safe_load(patch["patch"])


def test_the_component_puts_the_label_around_the_same_command() -> None:
    replaced, *added = _patches()
    (container,) = pods()["leader"]["spec"]["containers"]
    args = list(container["args"])
    after = args.index("--") + 1
    assert replaced["value"] == [
        *(*args[:after], "python", "/opt/app/label_leader.py"),
        *args[after:],
    ]
    assert {each["value"]["name"] for each in added} == {
        *("POD_NAME", "POD_NAMESPACE", "POD_SELECTOR")
    }
    selector = next(it["value"]["value"] for it in added if it["value"]["name"] == "POD_SELECTOR")
    name, _, value = selector.partition("=")
    assert pods()["leader"]["metadata"]["labels"][name] == value
    service = _of("Service", below="leader-label")["spec"]["selector"]
    assert service == {name: value, "incumbent-leader": "true"}


def test_the_image_of_the_manifests_has_the_programs_that_they_run() -> None:
    docker = (DEPLOY / "cron" / "Dockerfile").read_text()
    texts = "".join(path.read_text() for path in (*MANIFESTS, *KUSTOMIZATIONS))
    for program in re.findall(r"/opt/app/(\w+\.py)", texts):
        if program != "client.py":  # of the other image
            assert re.search(rf"^COPY .*/{program}\b", docker, re.MULTILINE), program
