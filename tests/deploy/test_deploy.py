"""What deploy/ says fits the program: names, times, and programs that go into the image."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package

from incumbent.cli.parser import parse, settings_from, unknown_variables
from incumbent.cli.table import COMMANDS, GLOBAL
from incumbent.durations import parse_duration
from incumbent.policy import make_policy
from tests.support.needs import needs

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "incumbent-lead@.service"


def load(path: Path) -> Any:
    return list(yaml.safe_load_all(path.read_text()))


def kinds() -> dict[str, Any]:
    return {document["kind"]: document for path in MANIFESTS for document in load(path)}


def composed(file: str) -> Any:
    return load(DEPLOY / file)[0]["services"]


def unquoted(value: str) -> str:
    return value.strip('"')


def nomad_task(file: str = "nomad/telnet.nomad.hcl") -> dict[str, Any]:
    # Its grammar takes a quarter of a second: too long for whoever only collects tests.
    import hcl2

    job = hcl2.loads((DEPLOY / file).read_text())["job"][0]
    group = next(iter(job.values()))["group"][0]
    return next(iter(next(iter(group.values()))["task"][0].values()))


def unit_lines(key: str, unit: Path = UNIT) -> list[str]:
    lines = unit.read_text().splitlines()
    return [line.split("=", 1)[1] for line in lines if line.startswith(f"{key}=")]


@cache
def settings() -> dict[str, tuple[dict[str, str], str]]:
    """Of each way to run it: the environment, and how long it is given to end."""
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value", "x") for each in pod["containers"][0]["env"]}
    task, compose, stack = nomad_task(), composed("compose.yaml"), composed("stack.yaml")
    nomad = {name: unquoted(str(value)) for name, value in task["env"][0].items()}
    unit = dict(pair.split("=", 1) for line in unit_lines("Environment") for pair in line.split())
    return {
        "kubernetes": (variables, f"{pod['terminationGracePeriodSeconds']}s"),
        "compose": (compose["leader"]["environment"], compose["leader"]["stop_grace_period"]),
        "swarm": (stack["leader"]["environment"], stack["leader"]["stop_grace_period"]),
        "nomad": (nomad, unquoted(task["kill_timeout"])),
        "systemd": (unit, f"{unit_lines('TimeoutStopSec')[0]}s"),
    }


WAYS = ["kubernetes", "compose", "swarm", "nomad", "systemd"]


@pytest.mark.parametrize("way", WAYS)
def test_every_variable_is_one_that_lead_knows(way: str) -> None:
    variables, _ = settings()[way]
    ours = {name: str(value) for name, value in variables.items() if name.startswith("INCUMBENT_")}
    assert ours
    assert unknown_variables(ours) == []
    lead = {option.variable for option in (*COMMANDS["lead"].options, *GLOBAL)}
    files = {"INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE"}
    assert set(ours) <= lead | files
    settings_from(ours, COMMANDS["lead"].options)


@pytest.mark.parametrize("way", WAYS)
def test_there_is_time_to_stop_the_work_and_give_the_lease_back(way: str) -> None:
    variables, given = settings()[way]
    policy = make_policy(variables["INCUMBENT_TTL"], grace=variables["INCUMBENT_GRACE"])
    assert parse_duration(given, "given") >= policy.grace + policy.request_timeout + 5


def command_lines() -> list[list[str]]:
    docker = (DEPLOY / "Dockerfile").read_text()
    from_image = json.loads(re.findall(r"^CMD (\[.*\])$", docker, re.MULTILINE)[0])
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    unit = shlex.split(unit_lines("ExecStart")[0].replace("%i", "switch-7"))[1:]
    return [from_image, pod["args"], unit]


@pytest.mark.parametrize("line", command_lines(), ids=["image", "kubernetes", "systemd"])
def test_every_command_line_is_one_that_is_understood(line: list[str]) -> None:
    docker = (DEPLOY / "Dockerfile").read_text()
    listen = re.findall(r"INCUMBENT_LISTEN=(\S+)", docker)[0]
    call = parse(line, {"INCUMBENT_LISTEN": listen})
    assert call.command == "lead"


def test_the_page_is_a_service_whose_command_line_is_understood() -> None:
    unit = (SYSTEMD / "incumbent-page.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    call = parse(shlex.split(line)[1:], {})
    assert (call.command, call.text("listen")) == ("serve", "127.0.0.1:8080")
    assert call.text("token_file")


def test_the_image_has_every_file_that_something_runs() -> None:
    docker = (DEPLOY / "Dockerfile").read_text()
    words = [word for line in re.findall(r"^COPY (.*)$", docker, re.M) for word in line.split()]
    copied = [DEPLOY.parent / word for word in words if word[0] not in "./"]
    assert copied
    assert all(path.exists() for path in copied)
    texts = [docker, *(path.read_text() for path in MANIFESTS)]
    run = {name for text in texts for name in re.findall(r"/opt/app/(\w+\.py)", text)}
    assert run <= {path.name for path in copied}


def test_no_probe_asks_who_leads() -> None:
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert pod["livenessProbe"]["exec"]["command"][-1] == "/healthz"
    assert pod["readinessProbe"]["exec"]["command"][-1] == "/readyz"


def test_the_service_selects_the_label_that_the_leader_is_given() -> None:
    label = load_program("kubernetes/label_leader.py").LABEL
    service = next(
        each for each in load(DEPLOY / "kubernetes" / "leader.yaml") if each["kind"] == "Service"
    )
    assert service["spec"]["selector"][label] == "true"
    assert set(kinds()["Role"]["rules"][0]["verbs"]) == {"list", "patch"}


@pytest.mark.parametrize("file", ["compose.yaml", "stack.yaml", "kubernetes/redis.yaml"])
def test_no_redis_may_evict_and_each_keeps_its_tokens(file: str) -> None:
    text = (DEPLOY / file).read_text()
    assert re.search(r"--maxmemory-policy,? noeviction", text)
    assert re.search(r'--appendonly,? "?yes', text)


def test_every_file_says_what_was_not_run() -> None:
    for path in [p for p in DEPLOY.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}]:
        assert re.search(r"Not run", path.read_text()[:900]), path


@needs(shutil.which("systemd-analyze") is not None, "systemd-analyze is not on this machine")
def test_systemd_takes_the_unit_and_its_drop_in(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is not on this machine: install systemd")
    unit = tmp_path / "incumbent-lead@x.service"
    unit.write_text(UNIT.read_text().replace("/opt/incumbent/bin/incumbent", sys.executable))
    page = tmp_path / "incumbent-page.service"
    of_page = (SYSTEMD / page.name).read_text()
    page.write_text(of_page.replace("/opt/incumbent/bin/incumbent", sys.executable))
    drop_ins = tmp_path / "incumbent-lead@x.service.d"
    drop_ins.mkdir()
    shutil.copy(DEPLOY / "systemd" / "pidns.conf", drop_ins)
    done = subprocess.run(
        ["systemd-analyze", "verify", unit, page],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def load_program(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("program", DEPLOY / path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


class Api(BaseHTTPRequestHandler):
    """As much of an API server as two verbs need; `pods` are names and whether they lead."""

    pods: dict[str, bool]

    def do_GET(self) -> None:
        items = [{"metadata": {"name": name}} for name, leads in self.pods.items() if leads]
        self._answer({"items": items})

    def do_PATCH(self) -> None:
        assert self.headers["Authorization"] == "Bearer secret"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        value = body["metadata"]["labels"]["incumbent-leader"]
        self.pods[self.path.rpartition("/")[2]] = value == "true"
        self._answer({})

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
        pass


@pytest.fixture
def api() -> Iterator[tuple[str, dict[str, bool]]]:
    pods = {"old": True, "mine": False, "other": False}
    handler = type("Handler", (Api,), {"pods": pods})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}", pods
        server.shutdown()
        serving.join()


def test_the_label_moves_to_the_leader_and_goes_when_it_ends(
    api: tuple[str, dict[str, bool]], tmp_path: Path
) -> None:
    url, pods = api
    (tmp_path / "token").write_text("secret\n")
    program = load_program("kubernetes/label_leader.py")
    mine = program.Pods(url, tmp_path, "default", "app=telnet")
    mine.lead("mine")
    assert [name for name, leads in pods.items() if leads] == ["mine"]
    mine.resign("mine")
    assert not any(pods.values())


def test_an_api_server_that_is_away_is_told_and_not_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_program("kubernetes/label_leader.py")
    ended = threading.Event()
    ended.set()
    program.keep_label(program.Pods("http://127.0.0.1:9", tmp_path, "x", "a=b"), "mine", ended)
    assert "label_leader:" in capsys.readouterr().err


def test_a_probe_says_no_where_nobody_answers() -> None:
    where = {**os.environ, "INCUMBENT_LISTEN": "127.0.0.1:9"}
    probe = [sys.executable, str(DEPLOY / "probe.py"), "/healthz"]
    done = subprocess.run(probe, env=where, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "probe: 127.0.0.1:9/healthz" in done.stderr
