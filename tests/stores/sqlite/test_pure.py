"""`sqlite:` apart from its file: URLs, places, clocks, and the state that an opening leaves."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import ConfigError, OutcomeUnknown, StoreUnavailable
from incumbent.rules.record import HISTORY_KEPT
from incumbent.stores.sqlite import SqliteEngine, host, open_sqlite, schema
from incumbent.stores.sqlite.connection import SpoiledFile
from incumbent.stores.sqlite.core import pauses
from incumbent.stores.sqlite.engine import default_path, path_of
from incumbent.stores.sqlite.file import make_file
from incumbent.stores.sqlite.host import (
    boottime_offset,
    check_file_system,
    detect_orchestrator,
    may_be_remote,
    this_host,
    type_in,
)
from incumbent.stores.sqlite.schema import JUMP, LEAST, State, since_boot, state_of_boot

WALL = 1_800_000_000.0
MICROS = 1_800_000_000_000_000


# -- URLs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/leases.db", "/var/lib/leases.db"),
        ("sqlite:///a%20b/c%25d.db", "/a b/c%d.db"),
        ("sqlite:", "/state/incumbent/incumbent.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    assert path_of(url, {"XDG_STATE_HOME": "/state"}) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite",
        "sqlite:leases.db",
        "sqlite:/one/slash.db",
        "sqlite://relative.db",
        "sqlite://host/leases.db",
        "sqlite:///",
        "sqlite:///a/folder/",
        "sqlite:///nul%00.db",
        "sqlite:///a#b.db",
        "sqlite:///a.db?restart_wait=0",
        "sqlite:?mode=ro",
        "sqlite::memory:",
        "sqlite3:///a.db",
    ],
)
def test_any_other_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///absolute/path") as caught:
        open_sqlite(url)
    assert caught.value.name == "store"


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="'timeout'"):
        open_sqlite("sqlite:///a.db?timeout=5")


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/u"}, "/x/incumbent/incumbent.db"),
        ({"HOME": "/home/u"}, "/home/u/.local/state/incumbent/incumbent.db"),
        ({"XDG_STATE_HOME": "rel", "HOME": "/h"}, "/h/.local/state/incumbent/incumbent.db"),
    ],
)
def test_the_default_file_follows_the_xdg_rules(environ: Mapping[str, str], path: str) -> None:
    assert default_path(environ) == Path(path)


def test_the_default_file_and_its_folder_are_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "incumbent" / "incumbent.db"
    make_file(path, default=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_missing_folder_of_a_named_file_is_not_invented(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="mkdir -p") as caught:
        make_file(tmp_path / "missing" / "leases.db", default=False)
    assert caught.value.permanent


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such folder elsewhere")
def test_a_folder_that_takes_no_files_is_not_called_missing() -> None:
    with pytest.raises(StoreUnavailable, match=r"no files can be created in /proc$"):
        make_file(Path("/proc/leases.db"), default=False)


@pytest.mark.parametrize("path", ["", "file/leases.db"], ids=["a folder", "below a file"])
def test_a_path_that_cannot_be_a_file_is_refused_for_good(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="folder") as caught:
        make_file(tmp_path / path, default=False)
    assert caught.value.permanent


# -- file systems ----------------------------------------------------------------------------

MOUNTS = """\
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /mnt/share rw,relatime - nfs4 server:/export rw
31 22 0:41 / /mnt/with\\040space rw - cifs //server/x rw
32 30 0:42 / /mnt/share/local rw - xfs /dev/vdb rw
33 22 0:43 / /over rw - ext4 /dev/vdc rw
34 22 0:44 / /over rw - fuse.sshfs host: rw
35 22 0:45 / /mnt/sharex rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x.db", "ext4"),
        ("/mnt/share/x.db", "nfs4"),
        ("/mnt/share/local/x.db", "xfs"),
        ("/mnt/with space/x.db", "cifs"),
        ("/over/x.db", "fuse.sshfs"),
        ("/mnt/sharex/x.db", "tmpfs"),
        ("/mnt/sharey/x.db", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_says_the_type(path: str, kind: str) -> None:
    assert type_in(MOUNTS, path) == kind


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "afs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"),
    ],
)
def test_a_file_system_that_machines_share_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "file_system_of", lambda path: kind)
    with pytest.raises(ConfigError, match=kind):
        check_file_system(Path("/x"))


def test_another_fuse_is_doubtful_but_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "file_system_of", lambda path: "fuse.mergerfs")
    check_file_system(Path("/x"))
    assert may_be_remote("fuse.mergerfs")
    assert not may_be_remote("ext4")


def test_an_engine_is_not_even_made_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "file_system_of", lambda path: "nfs4")
    with pytest.raises(ConfigError, match="redis://"):
        SqliteEngine(tmp_path / "x")


# -- containers ------------------------------------------------------------------------------


def nothing_exists(path: str) -> bool:
    return False


def nothing_to_read(path: str) -> str:
    raise FileNotFoundError(path)


@pytest.mark.parametrize(
    ("environ", "phrase"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "a Kubernetes pod"),
        ({"NOMAD_ALLOC_ID": "1"}, "a Nomad allocation"),
        ({"container": "podman"}, "a podman container"),
        ({"DYNO": "web.1"}, "a Heroku dyno"),
    ],
)
def test_an_orchestrator_is_known_by_its_variables(environ: dict[str, str], phrase: str) -> None:
    found = detect_orchestrator(environ, nothing_exists, nothing_to_read)
    assert found is not None
    assert phrase in found


@pytest.mark.parametrize("marker", ["/.dockerenv", "/run/.containerenv"])
def test_a_container_is_known_by_its_marker(marker: str) -> None:
    found = detect_orchestrator({}, lambda path: path == marker, nothing_to_read)
    assert found is not None
    assert marker in found


@pytest.mark.parametrize(
    "line",
    ["12:cpu:/docker/3f2a", "0::/kubepods.slice/pod1", "0::/system.slice/containerd/x"],
)
def test_a_container_is_known_by_its_cgroup(line: str) -> None:
    assert detect_orchestrator({}, nothing_exists, lambda path: f"1:x:/\n{line}\n")


@pytest.mark.parametrize("text", ["0::/init.scope", "0::/system.slice/docker.service", "", "x"])
def test_a_plain_host_is_no_container(text: str) -> None:
    assert detect_orchestrator({"container": ""}, nothing_exists, lambda path: text) is None
    assert detect_orchestrator({}, nothing_exists, nothing_to_read) is None


# -- the host --------------------------------------------------------------------------------


def test_the_offset_of_a_time_namespace_is_read() -> None:
    text = "monotonic           5         0\nboottime         1000 500000000\n"
    assert boottime_offset(text) == 1000.5
    assert boottime_offset("1 0 0\n7 -30 0\n") == -30.0


@pytest.mark.parametrize("text", ["", "monotonic 0 0\n", "boottime 1\n", "boottime x y\n"])
def test_offsets_that_cannot_be_read_are_not_taken_for_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        boottime_offset(text)


def test_the_boot_id_is_the_same_at_every_call() -> None:
    assert this_host().boot_id == this_host().boot_id != ""


# -- the state -------------------------------------------------------------------------------


def test_a_new_file_starts_its_tokens_above_all_that_a_lost_one_can_have_reserved() -> None:
    old = state_of_boot(None, "boot", WALL, "born")
    for boot in range(20):
        # Each boot starts above what the one before had reserved.
        old = state_of_boot(old, f"boot {boot}", WALL + boot / 100, "")
    assert state_of_boot(None, "boot", WALL + 0.25, "born").floor > old.reserved


def test_another_boot_starts_above_everything_that_was_reserved() -> None:
    old = State("born", "boot", MICROS, MICROS + JUMP)
    new = state_of_boot(old, "next boot", WALL, "")
    assert new.floor == old.reserved
    assert new.reserved > new.floor
    assert new.born == "born"


def test_however_often_the_host_boots_nothing_is_reserved_beyond_the_jump() -> None:
    state = state_of_boot(None, "boot", WALL, "born")
    for boot in range(1, 1000):
        wall = WALL + boot / 100
        state = state_of_boot(state, f"boot {boot}", wall, "")
        assert 0 < state.reserved - int(wall * 1e6) <= JUMP + LEAST + 1


def test_the_same_boot_changes_nothing() -> None:
    old = State("born", "boot", MICROS, MICROS + JUMP)
    assert state_of_boot(old, "boot", WALL + 600, "") == old


@pytest.mark.parametrize(
    ("passed", "left"), [(20.0, 40.0), (70.0, -10.0), (0.0, 60.0), (-3600.0, 60.0)]
)
def test_a_row_of_an_earlier_boot_lasts_for_what_is_left_by_the_wall_clock(
    passed: float, left: float
) -> None:
    """At most for what was left when it was written, in case the wall clock was set back."""
    written, now = 5_000_000_000, 30_000_000
    wall = MICROS + int(passed * 1e6)
    moved = written + 60_000_000 + since_boot(now, wall, written, MICROS)
    assert moved - now == left * 1e6


def test_the_floor_never_falls_when_the_wall_clock_does() -> None:
    old = State("born", "boot", MICROS, MICROS + JUMP)
    for boot_id in ("boot", "next boot"):
        assert state_of_boot(old, boot_id, WALL - 1e6, "").floor >= old.floor


def test_the_numbers_written_out_in_the_statements_are_the_constants() -> None:
    assert f"% {HISTORY_KEPT - 1}," in schema.ARCHIVE


# -- waiting and loading ---------------------------------------------------------------------


def test_pauses_end_at_the_deadline_and_never_pass_it() -> None:
    now = [0.0]
    with pytest.raises(StoreUnavailable, match="stayed locked"):
        for pause in pauses(Path("/leases.db"), 1.0, lambda: now[0]):
            assert 0 < pause <= 0.015
            now[0] += pause
    assert now[0] == pytest.approx(1.0)


def test_naming_a_store_loads_no_driver_and_the_blocking_side_no_asyncio() -> None:
    code = (
        "import sys; from incumbent.stores.sqlite import open_sqlite;"
        "e = open_sqlite('sqlite:///x.db'); assert 'sqlite3' not in sys.modules;"
        "e.store(); assert 'sqlite3' in sys.modules; assert 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_errors_of_the_store_survive_pickling() -> None:
    again = pickle.loads(pickle.dumps(SpoiledFile("gone", permanent=True)))
    assert (str(again), again.permanent) == ("gone", True)
    assert not isinstance(again, OutcomeUnknown)


@pytest.mark.parametrize("where", ["a container", None])
def test_doctor_warns_where_a_file_excludes_nobody_else(
    where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.stores.sqlite.engine.detect_here", lambda: where)
    engine = SqliteEngine(tmp_path / "leases.db")
    found = [what for level, what, _ in engine.diagnose(5.0, clock.now() + 5) if level == "warning"]
    engine.store().close()
    assert any("this process runs in a container" in what for what in found) == (where is not None)
