"""URLs of MySQL databases: what they say, what is refused, what never shows; and TLS."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.model import Released
from incumbent.stores.mysql import open_mysql
from incumbent.stores.mysql.site import site_of_url as site
from incumbent.stores.url import Endpoint, open_engine
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.mysql.world import new_database, party, soon
from tests.support.mariadb import MariaServer
from tests.support.servers import TlsFiles

SECRET = "pa55-never-shown"


def test_a_url_says_where_the_database_is() -> None:
    found = site("mysql://me:s%40y@h1:3307,h2,[::1]:7/leases?restart_wait=2m")
    assert found.hosts == (Endpoint("h1", 3307), Endpoint("h2", 3306), Endpoint("::1", 7))
    assert (found.user, found.password, found.database) == ("me", "s@y", "leases")
    assert found.restart_wait == 120.0
    assert found.tls is None


@pytest.mark.parametrize(
    ("options", "verifies", "checks_name"),
    [
        ("ssl_ca=/ca.pem", "required", True),
        ("ssl_mode=verify_identity", "required", True),
        ("ssl_mode=verify_ca&ssl_ca=/ca.pem", "required", False),
        ("ssl_mode=required", "none", False),
    ],
)
def test_tls_checks_the_server_unless_it_is_told_otherwise(
    options: str, verifies: str, checks_name: bool
) -> None:
    tls = site(f"mysql://h/db?{options}").tls
    assert tls is not None
    assert (tls.cert_reqs, tls.check_hostname) == (verifies, checks_name)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"mysql://me:{SECRET}@h1:1,h2:2/db", "mysql://me:***@h1:1,h2:2/db"),
        ("mariadb://me@h/d?ssl_mode=required", "mariadb://me@h/d"),
        ("mysql://me@/d?unix_socket=/run/m.sock", "mysql://me@/d"),
    ],
)
def test_people_see_no_password_and_no_options(given: str, shown: str) -> None:
    engine = open_engine(given)
    assert engine.url == shown
    assert SECRET not in repr(engine)


def test_the_password_can_come_from_elsewhere_and_wins() -> None:
    assert site(f"mysql://me:{SECRET}@h/db", "another").password == "another"
    assert open_mysql("mysql://me@h/db", SECRET).url == "mysql://me:***@h/db"


@pytest.mark.left(tiers.FORMS, "*@x@*", "*:port*")
@pytest.mark.parametrize(
    "url",
    [
        "mysql://h",
        "mysql://h/",
        "mysql://h/a/b",
        f"mysql://me:{SECRET}/x@h/db",
        f"mysql://me:{SECRET}@x@h/db",
        f"mysql://me:{SECRET}#@h/db",
        "mysql://h:0/db",
        "mysql://h:port/db",
        "mysql://h,h/db",
        "mysql://far/db?unix_socket=/run/m.sock",
    ],
)
def test_a_malformed_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="write mysql://") as caught:
        open_engine(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("ssl_mode=perhaps", "is one of disabled, required, verify_ca, verify_identity"),
        ("charset=utf8", "is not an option of this store"),
        ("restart_wait=", "is empty"),
        ("ssl_ca=/a&ssl_ca=/b", "is given twice"),
        ("restart_wait=never", "restart_wait"),
        ("ssl_ca=/nowhere/ca.pem", "ssl_ca, ssl_cert or ssl_key cannot be used: .*/nowhere/ca.pem"),
    ],
)
def test_an_option_that_cannot_work_is_said(options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_engine(f"mysql://h/db?{options}")


def test_the_driver_is_imported_when_the_first_engine_is_made() -> None:
    program = (
        "import sys, incumbent, incumbent.stores.mysql\n"
        "assert 'pymysql' not in sys.modules and 'asyncio' not in sys.modules\n"
        "incumbent.stores.mysql.open_mysql('mysql://h/db')\n"
        "assert 'pymysql' in sys.modules and 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_driver_is_named_with_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['pymysql'] = None\n"
        "from incumbent.stores.url import open_engine\n"
        "try: open_engine('mysql://h/db')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert "ConfigError" in done.stdout
    assert "pip install 'incumbent[mysql]'" in done.stdout


# -- sockets and TLS


def test_a_unix_socket_is_as_good(maria_server: MariaServer, database: str) -> None:
    with party(f"mysql://root@/{database}?unix_socket={maria_server.socket}") as one:
        one.take()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(files: TlsFiles) -> Iterator[MariaServer]:
    """A server with a certificate, where one user must use TLS and another a certificate."""
    with MariaServer(tls=files) as server:
        for name, how in (("safe", "SSL"), ("known", "X509")):
            server.sql(f"CREATE USER {name}@'127.0.0.1' REQUIRE {how}")
            server.sql(f"GRANT ALL ON *.* TO {name}@'127.0.0.1'")
        yield server


@pytest.mark.parametrize("side", ["sync", "async"])
def test_a_connection_is_encrypted_and_the_certificate_is_checked(
    tls: MariaServer, files: TlsFiles, side: str
) -> None:
    url = f"{tls.url_of(new_database(tls), 'safe')}?ssl_ca={files.ca}"
    with party(url) as one:
        granted = one.take() if side == "sync" else asyncio.run(one.take_async())
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        found = one.engine.diagnose(10.0, soon())
        assert ("ok", "TLS is used", "") in found
    done = incumbent("-s", f"{url}&restart_wait=0", "run", "job", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


@pytest.mark.left(tiers.FORMS)
def test_a_client_shows_its_certificate(tls: MariaServer, files: TlsFiles) -> None:
    own = f"ssl_cert={files.cert}&ssl_key={files.key}"
    url = f"{tls.url_of(new_database(tls), 'known')}?ssl_ca={files.ca}&{own}"
    with party(url) as one:
        one.take()


def test_a_certificate_that_nobody_signed_is_refused(
    tls: MariaServer, tmp_path: Path, files: TlsFiles
) -> None:
    database = new_database(tls)
    another = TlsFiles(tmp_path)
    for options in (f"ssl_ca={another.ca}", "ssl_mode=verify_ca"):
        url = f"{tls.url_of(database, 'safe')}?{options}"
        with party(url) as one, pytest.raises(StoreUnavailable, match="verify failed"):
            one.take()
    with party(f"{tls.url_of(database, 'safe')}?ssl_mode=required") as one:
        one.take()


@pytest.mark.left(tiers.FORMS)
def test_a_certificate_of_another_host_is_refused(tls: MariaServer, files: TlsFiles) -> None:
    url = tls.url_of(new_database(tls), "safe").replace("127.0.0.1", "127.0.0.2")
    with party(f"{url}?ssl_ca={files.ca}") as one, pytest.raises(StoreUnavailable):
        one.take()


def test_tls_that_the_server_does_not_speak_is_refused(
    maria_server: MariaServer, database: str
) -> None:
    url = f"{maria_server.url_of(database)}?ssl_mode=required"
    with party(url) as one, pytest.raises(StoreUnavailable, match="SSL is required"):
        one.take()


def test_a_connection_is_not_encrypted_unless_it_is_said(tls: MariaServer) -> None:
    url = tls.url_of(new_database(tls), "safe")
    with party(url) as one, pytest.raises(StoreUnavailable, match="check the user"):
        one.take()
