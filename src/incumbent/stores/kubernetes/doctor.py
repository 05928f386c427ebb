"""The findings of `doctor` about a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from incumbent.errors import StoreError
from incumbent.net.http import Garbled
from incumbent.net.pool import Broken
from incumbent.stores.findings import Finding, cannot_tell, finding, grants_nothing
from incumbent.stores.kubernetes.client import KubernetesClient
from incumbent.stores.kubernetes.errors import VERBS, grant_commands
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.probing import about_registers, probe
from incumbent.stores.registers import Load, Seen, Wanted

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _ReadRegisters:
    """What `about_registers` needs of them."""

    def __init__(self, client: KubernetesClient[Any]) -> None:
        self._client = client

    def load(self, wanted: Sequence[Wanted], until: float) -> list[Seen | StoreError]:
        def start(_facts: None, _until: float) -> Any:
            return (yield Load(tuple(wanted)))

        return list(run_blocking(self._client.run(Plan("look", start), until)))


def diagnose(client: KubernetesClient[Any], ttl: float, until: float) -> list[Finding]:
    """See Engine.diagnose."""
    try:
        findings, lacking = run_blocking(_of_the_server(client, until))
    except (StoreError, Broken, Garbled) as error:
        return [cannot_tell(str(error), "check the address, the login and the network")]
    if lacking:
        return findings
    try:
        proof = Plan[None, None]("look", lambda _facts, _until: probe(client.where))
        run_blocking(client.run(proof, until))
        about = about_registers(_ReadRegisters(client), client.site.restart_wait, ttl, until)  # type: ignore[arg-type] # only `load` is used
    except StoreError as error:
        return [*findings, grants_nothing(str(error), "see docs/kubernetes.md", level="error")]
    return [*findings, *about]


async def _of_the_server(
    client: KubernetesClient[Any], until: float
) -> tuple[list[Finding], list[str]]:
    """What the server says about itself and us, and the verbs that we lack."""
    site, namespace = client.site, client.namespace
    wire = await client.dial(until)
    try:
        version = await client.call(wire, "get", "/version", until)
        denied = []
        for verb in VERBS:
            asked = {
                "namespace": namespace,
                "verb": verb,
                "group": "coordination.k8s.io",
                "resource": "leases",
            }
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            answer = await client.call(wire, "create", _REVIEWS, until, body)
            if answer.status >= 300:
                raise client.failed(answer)
            if not (answer.body.get("status") or {}).get("allowed"):
                denied.append(verb)
    finally:
        wire.close()
    checked = site.tls is not None and site.tls.cert_reqs != "none"
    return [
        ("ok", f"Kubernetes {version.body.get('gitVersion', '(of unknown version)')}", ""),
        finding(
            checked,
            "TLS is used, and the server's certificate is checked",
            "the server's certificate is not checked: whoever is between can grant leases twice",
            "name its certificate-authority in the kubeconfig",
        ),
        finding(
            not denied,
            f"we may {', '.join(VERBS)} leases in {namespace}",
            f"we may not {', '.join(denied)} leases in {namespace}",
            grant_commands(namespace),
            level="error",
        ),
    ], denied
