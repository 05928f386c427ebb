"""The findings of `doctor` about a cluster."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import Any, Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.net.http import Garbled, parse
from incumbent.stores.etcd.client import EtcdClient
from incumbent.stores.etcd.kv import GatewayRequest
from incumbent.stores.etcd.site import GatewayError
from incumbent.stores.findings import Finding, about_trip, cannot_tell, finding, grants_nothing
from incumbent.stores.url import Endpoint

_OLDEST: Final = (3, 4)
_QUOTA: Final = 2 * 1024**3
_FAILURES: Final = (StoreError, Garbled, GatewayError, ValueError, KeyError)


async def diagnose(client: EtcdClient[Any], ttl: float, until: float) -> list[Finding]:
    """All findings; a check that fails is a finding too."""
    findings: list[Finding] = []
    well, seen = [], dict[str, str]()
    for endpoint in client.site.options.endpoints:
        here = await _findings_of(_member(client, endpoint, until, seen), f"{endpoint}")
        findings += here
        if all(level != "error" for level, _, _ in here):
            well.append(endpoint)
    if not well:
        return list(map(_as_untold, findings))
    for check in (_alarms, _members, _incarnation, _trip):
        here = await _findings_of(check(client, well[0], ttl, until), "the cluster")
        here = list(map(_as_untold, here)) if check is _incarnation else here
        findings += [each for each in here if each not in findings]
    if client.site.restart_wait == 0:
        findings.append((
            "warning",
            "restart_wait=0: a cluster that lost its data grants at once",
            "a holder from before may still believe: use it for tests only",
        ))  # fmt: skip
    return findings


def _as_untold(told: Finding) -> Finding:
    """The finding; an error becomes a CannotTell, as it hides whether leases are granted."""
    level, what, todo = told
    return cannot_tell(what, todo) if level == "error" else told


async def _findings_of(check: Coroutine[Any, Any, list[Finding]], who: str) -> list[Finding]:
    try:
        return await check
    except _FAILURES as error:
        text = str(error)
        shown = text if who in text else f"{who}: {text}"
        return [("error", shown, "check the address, the login and the network, or its log")]


async def _member(
    client: EtcdClient[Any], endpoint: Endpoint, until: float, seen: dict[str, str]
) -> list[Finding]:
    limit = clock.now() + (until - clock.now()) / 4
    reading = await client.send_checked(GatewayRequest("/version", b"", endpoint=endpoint), limit)
    version = str(parse(reading.body).get("etcdserver", "?"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        return [("error", f"{endpoint} runs etcd {version}", "3.4 is the oldest that is served")]
    status = await client.send_checked(
        GatewayRequest("/v3/maintenance/status", endpoint=endpoint), limit
    )
    cluster_id = str(status.get("header", {}).get("cluster_id", ""))
    if seen.setdefault("id", cluster_id) != cluster_id:
        what = f"{endpoint} belongs to another cluster than the endpoint before it"
        return [("error", what, "name members of one cluster only: two would grant twice")]
    leader = str(status.get("leader", "0"))
    if leader == "0":
        return [("error", f"{endpoint} (etcd {version}) has no leader", "too few members are up")]
    findings = [finding(True, f"{endpoint} runs etcd {version} and has a leader")]
    size = int(status.get("dbSize", 0))
    if size > _QUOTA * 0.8:
        what = f"its database has {size / 1024**2:.0f} MiB; the default quota is 2048"
        findings.append(("warning", what, "compact and defragment it before it refuses writes"))
    return findings


async def _alarms(
    client: EtcdClient[Any], endpoint: Endpoint, _ttl: float, until: float
) -> list[Finding]:
    reply = await client.send_checked(
        GatewayRequest("/v3/maintenance/alarm", endpoint=endpoint), until
    )
    raised = sorted({str(alarm.get("alarm")) for alarm in reply.get("alarms", ())})
    if not raised:
        return [("ok", "no alarm is raised", "")]
    advice = "compact and defragment, then `etcdctl alarm disarm`"
    return [grants_nothing(f"alarm {', '.join(raised)}: it takes no writes", advice, level="error")]


async def _members(
    client: EtcdClient[Any], endpoint: Endpoint, _ttl: float, until: float
) -> list[Finding]:
    reply = await client.send_checked(
        GatewayRequest("/v3/cluster/member/list", endpoint=endpoint), until
    )
    count, named = len(reply.get("members", ())), len(client.site.members)
    what = f"the cluster has {count} member{'s' if count > 1 else ''}"
    if count < 3:
        findings = [("warning", f"{what}: none may fail", "three members survive one")]
    else:
        findings = [finding(count % 2 == 1, what, advice="an odd number is better")]
    if named < count:
        what = f"the URL names {named} of {count} members"
        findings.append(("warning", what, "name them all: etcd://h1,h2,h3"))
    return findings


async def _incarnation(
    client: EtcdClient[Any], endpoint: Endpoint, ttl: float, until: float
) -> list[Finding]:
    """Whether a restore would be noticed, and whether the cluster was restored."""
    cluster = client.cluster
    if await client.run_program(cluster.status(endpoint), until) is None:
        what = f"{endpoint} does not tell what it has carried out (Maintenance.Status)"
        return [("warning", what, "a restored snapshot is not noticed: see docs/etcd.md")]
    place = cluster.marker_key
    left = await client.run_program(cluster.seconds_until_grants(endpoint, ttl), until)
    if left is None:
        what = f"its marker {place} is of an earlier incarnation: it was restored, or copied"
        advice = "nothing is granted for restart_wait once an instance connects"
        return [grants_nothing(what, advice)]
    if left > 0:
        what = f"it is new, lost its data or was restored: it grants in {say_seconds(left)}"
        advice = "wait, or name restart_wait=0 if no holder from before is left"
        return [grants_nothing(what, advice)]
    hint = f"after putting back a data folder: etcdctl del '{place}', before instances start"
    return [("ok", "it has not been restored since its marker was written", hint)]


async def _trip(
    client: EtcdClient[Any], _endpoint: Endpoint, ttl: float, until: float
) -> list[Finding]:
    # Connects first, so that the trip alone is measured.
    await client.run_program(client.cluster.token_base(), until)
    started = clock.now()
    await client.run_program(client.cluster.read_marker(), until)
    return [about_trip(clock.now() - started, ttl, "a linearizable read")]
