"""deploy/helm: what Helm's own engine makes of the chart fits Kubernetes, and fits the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package

from incumbent.cli.parser import parse, unknown_variables
from incumbent.cron.load import parse_jobs
from incumbent.durations import parse_duration
from incumbent.policy import make_policy
from tests.deploy.test_deploy import DEPLOY
from tests.deploy.test_kubernetes import RELEASES, role

pytestmark = pytest.mark.left("Helm's engine comes with `make test-all` alone: it is 75 MB")

CHART = str(DEPLOY / "helm" / "incumbent")
JOBS = '[[job]]\nname = "sync"\nevery = "5m"\ncommand = "true"\n'
ALL: dict[str, Any] = {
    "leaders": {
        "reports": {"command": ["sh", "-c", "while :; do date; sleep 5; done"]},
        "telnet": {"command": ["./keep-session.sh"], "replicas": 1},
    },
    "cron": {"jobs": JOBS},
    "page": {"enabled": True, "tokenSecret": "page-token"},
}
REDIS: dict[str, Any] = {"store": {"url": "redis://redis:6379", "passwordSecret": "redis"}}


@pytest.fixture(scope="module")
def chart() -> Iterator[Any]:
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        yield chart


def rendered(chart: Any, values: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The manifests, and the notes."""
    chart.validate_schema(values)
    files = chart.render(values, name="fleet", namespace="shop")
    notes = files.pop("incumbent/templates/NOTES.txt")
    found = [it for text in files.values() for it in yaml.safe_load_all(text) if it]
    return found, notes


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {it["metadata"]["name"]: it for it in manifests if it["kind"] == kind}


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    import helm_python

    assert helm_python.lint(CHART)["errors"] in (None, [])


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", [{}, ALL, {**ALL, **REDIS}], ids=["defaults", "all", "redis"])
def test_the_schemas_of_kubernetes_take_what_it_makes(
    chart: Any, values: dict[str, Any], release: str
) -> None:
    import kubernetes_validate

    for manifest in rendered(chart, values)[0]:
        kubernetes_validate.validate(manifest, release, strict=True)


def test_each_part_runs_a_command_that_is_understood_and_has_time_to_stop(chart: Any) -> None:
    manifests, _ = rendered(chart, ALL)
    deployments = of_kind(manifests, "Deployment")
    commands = {}
    for name, it in deployments.items():
        spec = it["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        variables = {each["name"]: each.get("value", "x") for each in container["env"]}
        assert unknown_variables(variables) == []
        call = parse(container["args"], variables)
        commands[name] = (call.command, call.name, call.words)
        policy = make_policy(variables["INCUMBENT_TTL"], grace=variables["INCUMBENT_GRACE"])
        drain = parse_duration(variables.get("INCUMBENT_DRAIN", "0s"), "drain")
        least = drain + policy.grace + policy.request_timeout + 5
        assert spec["terminationGracePeriodSeconds"] >= least
    assert commands == {
        "fleet-reports": ("lead", "reports", tuple(ALL["leaders"]["reports"]["command"])),
        "fleet-telnet": ("lead", "telnet", ("./keep-session.sh",)),
        "fleet-cron": ("cron", "/etc/incumbent/jobs.toml", ()),
        "fleet-page": ("serve", "", ()),
    }


def test_pods_are_restricted_probed_and_found_by_their_own_labels(chart: Any) -> None:
    manifests, _ = rendered(chart, {**ALL, **REDIS})
    for it in of_kind(manifests, "Deployment").values():
        pod = it["spec"]["template"]
        assert it["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"livenessProbe", "readinessProbe"} <= container.keys()
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["spec"]["volumes"]}
    selectors = [
        tuple(it["spec"]["selector"]["matchLabels"].items())
        for it in of_kind(manifests, "Deployment").values()
    ]
    assert len(set(selectors)) == len(selectors)


def test_the_account_may_do_what_leases_need_and_nothing_with_another_store(chart: Any) -> None:
    manifests, _ = rendered(chart, ALL)
    (made,) = of_kind(manifests, "Role").values()
    assert made["rules"] == [role()]
    (binding,) = of_kind(manifests, "RoleBinding").values()
    assert binding["subjects"][0]["name"] in of_kind(manifests, "ServiceAccount")
    other, _ = rendered(chart, {**ALL, **REDIS})
    assert of_kind(other, "Role") == {}
    for given, mounts in ((manifests, True), (other, False)):
        for it in of_kind(given, "Deployment").values():
            assert it["spec"]["template"]["spec"]["automountServiceAccountToken"] is mounts


def test_a_budget_leaves_all_but_one_replica_and_none_stops_a_drain(chart: Any) -> None:
    manifests, _ = rendered(chart, ALL)
    deployments = of_kind(manifests, "Deployment")
    several = {name for name, it in deployments.items() if it["spec"]["replicas"] > 1}
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert budgets.keys() == several
    assert all(it["spec"]["maxUnavailable"] == 1 for it in budgets.values())


def test_the_jobs_reach_the_pods_and_a_change_restarts_them(chart: Any) -> None:
    def stamp(jobs: str) -> str:
        manifests, _ = rendered(chart, {"cron": {"jobs": jobs}})
        text = of_kind(manifests, "ConfigMap")["fleet-cron"]["data"]["jobs.toml"]
        assert [spec.name for spec in parse_jobs(text, "jobs.toml").specs] == ["sync"]
        pod = of_kind(manifests, "Deployment")["fleet-cron"]["spec"]["template"]
        return str(pod["metadata"]["annotations"])

    assert stamp(JOBS) == stamp(JOBS) != stamp(JOBS.replace("5m", "6m"))


@pytest.mark.parametrize(
    "values",
    [
        {"page": {"enabled": True}},
        {"store": {"url": "sqlite:///x.db"}},
        {"store": {"url": "memory://x"}},
        {"leaders": {"reports": {"replicas": 3}}},
        {"leaders": {"page": {"command": ["true"]}}},
        {"ttl": "soon"},
        {"tttl": "30s"},
    ],
)
def test_values_that_cannot_work_are_refused_by_the_schema(
    chart: Any, values: dict[str, Any]
) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError):
        chart.validate_schema({"page": {"enabled": False}, **values})


def test_the_notes_name_commands_that_are_understood(chart: Any) -> None:
    _, notes = rendered(chart, ALL)
    asked = [line.split(" -- incumbent ")[1] for line in notes.splitlines() if " -- " in line]
    assert [parse(words.split(), {}).command for words in asked] == ["why", "why", "jobs"]
    assert "Nothing runs yet" in rendered(chart, {})[1]
    assert "Nothing runs yet" not in notes
