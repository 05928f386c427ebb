"""What tooz finds by the URL, and which URLs and options are refused."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest
import tooz
from tooz import coordination
from tooz.coordination import Characteristics, get_coordinator

from incumbent import errors
from incumbent.stores import url
from incumbent.tooz_driver import Driver
from tests.cookbook.recipe import PAGES
from tests.support.servers import RedisServer, free_port
from tests.tooz_driver.world import ROOT


def driver(url: str) -> Driver:
    return cast("Driver", get_coordinator(url, b"one"))


def test_each_scheme_of_a_store_on_disk_or_on_a_server_has_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["tooz.backends"]
    assert {name.removeprefix("incumbent+") for name in declared} == {
        *url._BUILT_IN,
    } - {"memory"}
    assert {*declared.values()} == {"incumbent.tooz_driver:Driver"}
    installed = {entry.name for entry in entry_points(group="tooz.backends")}
    assert {*declared} <= installed, "install this checkout anew: pip install -e ."


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ("sqlite:", "sqlite:"),
        ("sqlite:///var/a%20b.db", "sqlite:///var/a%20b.db"),
        ("sqlite:///var/a.db#b", "sqlite:///var/a.db#b"),
        ("redis://u:p%23w@h:1/2?restart_wait=0", "redis://u:p%23w@h:1/2?restart_wait=0"),
        ("redis://h?lock_timeout=5&key=a:{name}&namespace=n", "redis://h?key=a:{name}"),
        ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
        ("redis+sentinel://a:1,b:2/main", "redis+sentinel://a:1,b:2/main"),
        ("redis+quorum://a:1,b:2,c:3?namespace=n", "redis+quorum://a:1,b:2,c:3"),
        ("etcds://a,b,c?ca=/x", "etcds://a,b,c?ca=/x"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
    ],
)
def test_the_store_gets_its_url_without_what_is_the_drivers(given: str, store: str) -> None:
    made = driver(f"incumbent+{given}")
    assert made._url == store


def test_only_a_file_is_of_one_host() -> None:
    across = Characteristics.DISTRIBUTED_ACROSS_HOSTS
    assert across in driver("incumbent+redis://h").CHARACTERISTICS
    assert across not in driver("incumbent+sqlite:").CHARACTERISTICS
    with pytest.raises(coordination.ToozDriverChosenPoorly):
        get_coordinator("incumbent+sqlite:", b"one", characteristics=[across])
    with pytest.raises(coordination.ToozDriverChosenPoorly):
        get_coordinator("incumbent+redis://h", b"one", [Characteristics.NON_TIMEOUT_BASED])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("?lock_timeout=soon", "lock_timeout='soon' is not a duration"),
        ("?lock_timeout=0.01", "ttl=0.01 is out of range"),
        ("?namespace=a/b", "'a/b' is not a namespace"),
        ("?namespace=", "has the option 'namespace'"),
        ("?timeout=5", "has the option 'timeout'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(tooz.ToozError, match=message) as raised:
        driver(f"incumbent+sqlite://{tmp_path}/leases.db{options}").start()
    assert isinstance(raised.value.__cause__, errors.ConfigError)


def test_keywords_are_refused() -> None:
    with pytest.raises(tooz.ToozError, match="takes no keywords"):
        get_coordinator("incumbent+sqlite:", b"one", lock_timeout=3)


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    for member in (b"", b"x" * 201):
        made = get_coordinator(f"incumbent+sqlite://{tmp_path}/leases.db", member)
        with pytest.raises(tooz.ToozError, match="1 to 200 printable characters"):
            made.start()


def test_a_store_that_does_not_answer_is_no_connection_and_can_be_tried_again() -> None:
    made = driver(f"incumbent+redis://127.0.0.1:{free_port()}")
    for _ in range(2):
        with pytest.raises(coordination.ToozConnectionError, match="refused"):
            made.start()
    assert not made.is_started


def test_a_wrong_password_is_no_connection_and_stays_unsaid() -> None:
    with RedisServer(password="right") as server:
        made = driver(f"incumbent+redis://:secret@127.0.0.1:{server.port}")
        with pytest.raises(coordination.ToozConnectionError) as raised:
            made.start()
    assert "secret" not in str(raised.value)


def test_what_is_not_answered_is_not_taken_for_a_no() -> None:
    def say(error: errors.Error) -> Any:
        from incumbent.tooz_driver import _as_tooz_says

        with pytest.raises(tooz.ToozError) as raised, _as_tooz_says():
            raise error
        assert raised.value.__cause__ is error
        return type(raised.value)

    assert say(errors.StoreUnavailable("x")) is coordination.ToozConnectionError
    assert say(errors.OutcomeUnknown("x")) is coordination.OperationTimedOut
    assert say(errors.Misuse("x")) is tooz.ToozError


def test_the_page_names_each_call_that_is_refused() -> None:
    """The blocks of the page are run by tests/docs."""
    page = (PAGES / "tooz").with_suffix(".md").read_text()
    refused = [name for name, found in vars(Driver).items() if found is Driver._no_groups]
    assert len(refused) > 10
    assert [name for name in refused if name != "_no_groups" and f"`{name}`" not in page] == []


def test_tooz_is_loaded_by_nobody_else() -> None:
    script = "import sys, incumbent, incumbent.compat; print('tooz' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert said.stdout == b"False\n"
