"""What deploy/cron says fits the program; its command and its probes run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from incumbent.cli.parser import parse, settings_from, unknown_variables
from incumbent.cli.table import COMMANDS, GLOBAL
from incumbent.cron.load import load_jobs
from incumbent.durations import parse_duration
from incumbent.policy import make_policy
from tests import tiers
from tests.cli.tool import command_line, environment
from tests.deploy.test_deploy import (
    DEPLOY,
    SYSTEMD,
    composed,
    load,
    nomad_task,
    unit_lines,
    unquoted,
)
from tests.support.needs import needs
from tests.support.servers import free_port
from tests.support.waiting import eventually

UNITS = ("incumbent-cron@.service", "incumbent-run@.service", "incumbent-run@.timer")


@cache
def pod() -> Any:
    found = load(DEPLOY / "cron/kubernetes.yaml")
    return next(each for each in found if each["kind"] == "Deployment")["spec"]["template"]["spec"]


def of_kubernetes() -> tuple[dict[str, str], str]:
    variables = {each["name"]: each.get("value", "x") for each in pod()["containers"][0]["env"]}
    return variables, f"{pod()['terminationGracePeriodSeconds']}s"


def of_systemd() -> tuple[dict[str, str], str]:
    unit = SYSTEMD / "incumbent-cron@.service"
    words = (pair for line in unit_lines("Environment", unit) for pair in line.split())
    return dict(word.split("=", 1) for word in words), f"{unit_lines('TimeoutStopSec', unit)[0]}s"


def of_compose(file: str) -> tuple[dict[str, str], str]:
    service = composed(file)["cron"]
    return service["environment"], service["stop_grace_period"]


def of_nomad() -> tuple[dict[str, str], str]:
    task = nomad_task("cron/cron.nomad.hcl")
    variables = {
        name: unquoted(str(value)) for name, value in task["env"][0].items() if name[0] != "_"
    }
    return variables, unquoted(task["kill_timeout"])


# Called by the tests: a file takes long to read for whoever only collects them.
WAYS: dict[str, Callable[[], tuple[dict[str, str], str]]] = {
    "kubernetes": of_kubernetes,
    "compose": partial(of_compose, "cron/compose.yaml"),
    "swarm": partial(of_compose, "cron/stack.yaml"),
    "nomad": of_nomad,
    "systemd": of_systemd,
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.left(tiers.FORMS, "compose", "kubernetes")
@every_way
def test_every_variable_is_one_that_cron_knows(way: str) -> None:
    variables, _ = WAYS[way]()
    assert unknown_variables(variables) == []
    options = (*COMMANDS["cron"].options, *GLOBAL)
    files = {"INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE"}
    assert set(variables) <= {option.variable for option in options} | files
    settings_from(variables, options)


@every_way
def test_there_is_time_to_drain_to_stop_and_to_give_the_leases_back(way: str) -> None:
    variables, given = WAYS[way]()
    policy = make_policy(variables["INCUMBENT_TTL"], grace=variables["INCUMBENT_GRACE"])
    drain = parse_duration(variables["INCUMBENT_DRAIN"], "drain")
    assert parse_duration(given, "given") >= drain + policy.grace + policy.request_timeout + 5


def test_the_jobs_of_every_file_have_no_problem(tmp_path: Path) -> None:
    texts = [(DEPLOY / "cron/jobs.toml").read_text()]
    texts += [each["data"]["jobs.toml"] for each in load(DEPLOY / "cron/kubernetes.yaml")[:1]]
    template = nomad_task("cron/cron.nomad.hcl")["template"][0]["data"]
    texts.append("\n".join(line.strip() for line in template.splitlines() if "JOBS" not in line))
    # As in the image, where python is on the path.
    path = {"PATH": str(Path(sys.executable).parent)}
    for text in texts:
        (tmp_path / "jobs.toml").write_text(text)
        loaded = load_jobs(str(tmp_path / "jobs.toml"), path, 0.0)
        assert (loaded.problems, bool(loaded.specs)) == ((), True)


def image() -> tuple[list[str], dict[str, str], list[str]]:
    """Of the Dockerfile: the command, its variables, and the health check."""
    text = (DEPLOY / "cron/Dockerfile").read_text()
    command = re.findall(r'^CMD \["(.*)"\]$', text, re.MULTILINE)[0].split('", "')
    check = re.findall(r'HEALTHCHECK .* CMD \["(.*)"\]$', text, re.MULTILINE)[0].split('", "')
    variables = dict(pair.split("=") for pair in re.findall(r"^ENV (.*)$", text, re.M)[0].split())
    return command, variables, check


def probe_of(kind: str) -> list[str]:
    words: list[str] = pod()["containers"][0][kind]["exec"]["command"]
    return words


def green(words: list[str], variables: dict[str, str]) -> bool:
    python, program, path = words
    assert (python, program) == ("python", "/opt/app/probe.py")
    line = [sys.executable, str(DEPLOY / "probe.py"), path]
    return subprocess.run(line, env={**os.environ, **variables}, check=False).returncode == 0


def test_the_image_runs_and_its_probes_are_green(tmp_path: Path) -> None:
    command, variables, check = image()
    assert variables["INCUMBENT_LISTEN"] == "127.0.0.1:8080"
    variables["INCUMBENT_LISTEN"] = f"127.0.0.1:{free_port()}"
    line = [word.replace("/opt/app", str(DEPLOY / "cron")) for word in command]
    fleet = {**WAYS["compose"]()[0], "INCUMBENT_STORE": f"sqlite:///{tmp_path}/leases.db"}
    with subprocess.Popen(
        command_line(*line), env=environment({**variables, **fleet}), stdout=subprocess.DEVNULL
    ) as instance:
        try:
            for words in (check, probe_of("livenessProbe"), probe_of("readinessProbe")):
                eventually(partial(green, words, variables))
        finally:
            instance.send_signal(signal.SIGTERM)
        assert instance.wait(60) == 0
    assert not green(check, variables)


@pytest.mark.parametrize("unit", UNITS[:2])
def test_the_command_of_a_unit_is_understood(unit: str) -> None:
    (line,) = unit_lines("ExecStart", SYSTEMD / unit)
    words = shlex.split(line.replace("%i", "jobs").replace("${ONCE_PER}", "20h"))
    assert parse(words[1:], {}).command in ("cron", "run")


@needs(shutil.which("systemd-analyze") is not None, "systemd-analyze is not on this machine")
def test_systemd_takes_the_units_and_the_timer(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is not on this machine: install systemd")
    for unit in UNITS:
        text = (SYSTEMD / unit).read_text().replace("/opt/incumbent/bin/incumbent", sys.executable)
        (tmp_path / unit.replace("@", "@x")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
