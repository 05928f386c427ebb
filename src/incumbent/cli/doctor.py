"""`doctor`: checks the store, the times and the isolation; `--fix` makes the store's schema."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.cli.receivers import webhook_of
from incumbent.cli.text import coloured, print_json, say
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError, StoreError
from incumbent.model import Capabilities
from incumbent.notify.outbox import WITHIN, read_secrets, send
from incumbent.notify.receivers import Webhook
from incumbent.policy import TTL_DEFAULT, Policy, make_policy
from incumbent.printable import printable
from incumbent.runtime.link import link_for
from incumbent.stores.base import Engine
from incumbent.stores.names import make_key
from incumbent.stores.url import store_url
from incumbent.supervise.codes import OK, UNPROVED
from incumbent.supervise.guarding import start_guard

_WITHIN = 2.0
_FIX_WITHIN = 10.0
_Finding = tuple[str, str, str]


def command(request: CommandRequest) -> int:
    policy = make_policy(request.text("ttl") or TTL_DEFAULT, grace=request.text("grace"))
    url = store_url(request.text("store"))
    isolation = _check_isolation()
    engine = link_for(url).engine
    findings: list[_Finding] = []
    if request.on("fix"):
        fix: Callable[[float], list[_Finding]] | None = getattr(engine, "fix", None)
        nothing = ("ok", f"{engine.url} has no schema: there is nothing to make", "")
        findings += [nothing] if fix is None else fix(clock.now() + _FIX_WITHIN)
    findings += [*_check_store(request, engine, policy), _describe_times(policy), isolation]
    if request.on("test_notify"):
        findings.append(_test_notify(request))
    _show(request, findings)
    errors = [what for level, what, _ in findings if level == "error"]
    if errors:
        say(f"{len(errors)} of {len(findings)} findings must be settled: {errors[0]}")
    return UNPROVED if errors else OK


def _check_store(request: CommandRequest, engine: Engine, policy: Policy) -> list[_Finding]:
    until = clock.now() + _WITHIN
    try:
        engine.store().read(make_key(request.namespace, "doctor"), until)
        found = engine.diagnose(policy.ttl, until)
    except StoreError as error:
        return [("error", f"{engine.url} gives no usable answer: {error}", "")]
    return [("ok", f"{engine.url} answers", ""), *found, _describe_leases(engine.capabilities)]


_CLOCKS = {
    "boottime": "this host's clock since boot",
    "wall": "the store's wall clock",
    "consensus": "no single clock: the servers agree",
    "observed": "each client's clock since boot: how long it has seen a lease unchanged",
}


def _describe_leases(can: Capabilities) -> _Finding:
    """What the store declares about leases."""
    cost = "one request" if can.round_trips == 1 else f"up to {can.round_trips} requests"
    upsets = {"a restart": can.survives_restart, "a failover": can.survives_failover}
    outlived = " and ".join(upset for upset, survived in upsets.items() if survived)
    ended = " or ".join(upset for upset, survived in upsets.items() if not survived)
    line = f"ttls count on {_CLOCKS[can.ttl_clock]}; a take, a renewal or a release costs {cost}"
    line += f"; leases outlive {outlived}" if outlived else ""
    return ("ok", line + (f"; {ended} may end leases" if ended else ""), "")


def _describe_times(policy: Policy) -> _Finding:
    line = (
        f"ttl {say_seconds(policy.ttl)}: renewed every {say_seconds(policy.renew_every)}, a request"
        f" may take {say_seconds(policy.request_timeout)}; without a proof the work is stopped"
        f" after {say_seconds(policy.renew_deadline)} and killed {say_seconds(policy.grace)} later,"
        f" {say_seconds(policy.ttl - policy.span)} before the store lets others in"
    )
    return ("ok", line, "")


def _check_isolation() -> _Finding:
    """The isolation that `--isolate auto` gives here. It forks: call it before opening a store."""
    try:
        with start_guard("pidns"):
            return ("ok", "commands run in a PID namespace, which dies with its guard", "")
    except ConfigError as error:
        refused = str(error)
    if sys.platform == "linux" and os.getpid() == 1:
        return ("ok", "commands run in this container, all of which ends with the lease", "")
    return (
        "warning",
        f"commands are stopped as a process group: {refused}",
        "a daemon of CMD with an environment of its own can outlive a killed supervisor",
    )


def _test_notify(request: CommandRequest) -> _Finding:
    """Send a test message to the receiver of `--notify`, once."""
    receiver = webhook_of(request)
    if receiver is None:
        raise ConfigError("test_notify needs a receiver: add --notify", name="test_notify")
    facts = {"namespace": request.namespace, "host": os.uname().nodename}
    webhook = Webhook("test", clock.wall(), facts)
    outcome = send(receiver, webhook, read_secrets, clock.now() + WITHIN)
    if outcome.accepted:
        return ("ok", f"{receiver} accepts notifications", "")
    return ("error", f"{receiver} accepts no notification: {outcome.why}", "")


def _show(request: CommandRequest, findings: list[_Finding]) -> None:
    if request.on("json"):
        keys = ("level", "what", "advice")
        print_json(request, [dict(zip(keys, finding, strict=True)) for finding in findings])
        return
    for level, what, advice in findings:
        print(f"{coloured(level)}{' ' * (8 - len(level))}{printable(what)}")
        if advice:
            print(f"{'':8}-> {printable(advice)}")
