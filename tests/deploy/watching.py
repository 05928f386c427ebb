"""The alert rules and the dashboard, and what they ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its types are another package

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "incumbent.json"
_METRIC = re.compile(r"\bincumbent_[a-z_]+")


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def queries() -> list[str]:
    """Those of the dashboard, with Grafana's variables replaced."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [query.replace("$name", ".*").replace("$__rate_interval", "5m") for query in found]


def metrics_in(query: str) -> set[str]:
    return set(_METRIC.findall(query))
