"""What `doctor` says of a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.kubernetes.world import open_at, url_of
from tests.support.kubernetes import ApiServer


def findings(url: str) -> dict[str, str]:
    """Each finding with its level."""
    engine = open_at(url)
    found = engine.diagnose(15.0, clock.now() + 20.0)
    engine.store().close()
    return {f"{what} | {advice}": level for level, what, advice in found}


def said(found: dict[str, str], words: str) -> str:
    """The level of the finding that has these words."""
    (level,) = (level for what, level in found.items() if words in what)
    return level


def test_all_is_well_where_all_rights_are_there(api_server: ApiServer, place: str) -> None:
    found = findings(url_of(api_server, place))
    assert said(found, "Kubernetes v1.") == "ok"
    assert said(found, "we may get, list, watch, create, update leases") == "ok"
    assert said(found, "it compares what it should") == "ok"
    # The fake speaks HTTP here.
    assert said(found, "the server's certificate is not checked") == "warning"


@pytest.mark.left(tiers.FORMS, "watch")
@pytest.mark.parametrize("verb", ["watch", "update"])
def test_a_missing_right_is_an_error_with_the_commands(
    own_api_server: ApiServer, verb: str
) -> None:
    own_api_server.deny(verb)
    found = findings(url_of(own_api_server, "default"))
    (what,) = (what for what, level in found.items() if level == "error")
    assert f"we may not {verb} leases in default" in what
    assert "kubectl -n default create role incumbent" in what


@pytest.mark.left(tiers.LONG)
def test_a_clock_that_is_off_is_said(own_api_server: ApiServer) -> None:
    own_api_server.set_clock(600.0)
    found = findings(url_of(own_api_server, "default"))
    assert said(found, "its clock and this machine's are") == "warning"


@pytest.mark.left(tiers.LONG)
def test_a_server_that_does_not_answer_is_said(own_api_server: ApiServer) -> None:
    url = url_of(own_api_server, "default")
    own_api_server.stop()
    assert list(findings(url).values()) == ["error"]


def test_the_command_says_how_ttls_are_counted(api_server: ApiServer, tmp_path: Path) -> None:
    config = str(api_server.kubeconfig(tmp_path / "config"))
    store = "kubernetes://test/default?restart_wait=0"
    done = incumbent("-s", store, "doctor", env={"KUBECONFIG": config})
    assert "ttls count on each client's clock since boot" in done.stdout + done.stderr
