"""Form 2: the same client under `incumbent lead`, with the settings of form 1.

    LOCK_KEY=switch-7 REDIS_HOST=redis TELNET_HOST=switch-7 python examples/telnet_leader/lead.py

It only puts the variables into incumbent's words and becomes

    incumbent lead switch-7 -- python client.py

so who has no old settings needs no more than that line. Options of `lead` may follow: lead.py
--isolate pidns. The guard kills the client inside the lease even if this very process is frozen or
killed, so the host never sees two sessions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from settings import Settings, settings_from

__all__ = ["command_line", "variables"]

CLIENT = Path(__file__).with_name("client.py")
# `lead` renews every ttl/5 by its own plan.
_FOR_FORM_1 = "LOCK_RENEW_EVERY_MS is not used: `lead` renews every fifth of the ttl"


def command_line(settings: Settings, options: Sequence[str]) -> list[str]:
    """What this process becomes."""
    lead = [sys.executable, "-m", "incumbent", "lead", settings.name, *options]
    return [*lead, "--", sys.executable, str(CLIENT)]


def variables(settings: Settings) -> dict[str, str]:
    """The settings in incumbent's words."""
    found = {
        "INCUMBENT_STORE": settings.store,
        "INCUMBENT_TTL": settings.ttl,
        "INCUMBENT_HOLDER": settings.holder,
    }
    return {name: value for name, value in found.items() if value}


def become(line: list[str], environ: Mapping[str, str]) -> NoReturn:
    os.execve(line[0], line, environ)  # noqa: S606 - no shell wanted


def main(environ: Mapping[str, str] = os.environ) -> int:
    try:
        settings = settings_from(environ)
    except KeyError as error:
        print(f"lead: bad settings: {error} is not set", file=sys.stderr)
        return 64
    for remark in (*settings.remarks, *([_FOR_FORM_1] if settings.renew_every else [])):
        print(f"lead: {remark}", file=sys.stderr)
    line = command_line(settings, sys.argv[1:])
    become(line, {**environ, **variables(settings)})


if __name__ == "__main__":
    sys.exit(main())
