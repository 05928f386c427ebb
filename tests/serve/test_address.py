"""Where to listen, and who may ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent.errors import ConfigError
from incumbent.serve.http import authorized, parse_address, read_secret

SECRET = "s3cret-s3cret-s3cret"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:8080", "::1", 8080),
        (":0", "127.0.0.1", 0),
        (":9000", "127.0.0.1", 9000),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize("text", ["", "8080", "::1:8080", "a:b", "h:65536", "[::1]", "http://h:1"])
def test_what_is_no_address_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:8080"):
        parse_address(text)


def test_a_host_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(ConfigError, match="resolved"):
        parse_address("999.1.1.1:80")


@pytest.mark.parametrize("text", [":0", "127.0.0.9:1", "[::1]:1"])
def test_the_loopback_address_is_known_in_all_its_forms(text: str) -> None:
    assert parse_address(text).is_loopback


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1"])
def test_what_other_hosts_reach_is_no_loopback_address(text: str) -> None:
    assert not parse_address(text).is_loopback


def written(path: Path, content: str, mode: int = 0o600) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_the_secret_is_the_first_line(tmp_path: Path) -> None:
    assert read_secret(written(tmp_path / "t", f"{SECRET}\nmore\n", 0o640)) == SECRET


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        (SECRET, 0o604, "everybody"),
        ("7hort", 0o600, "16 characters"),
        ("", 0o600, "16 characters"),
        ("with blanks in the line", 0o600, "blanks"),
        ("µ" * 20, 0o600, "ASCII"),
    ],
)
def test_a_weak_or_open_secret_is_refused_and_not_shown(
    tmp_path: Path, content: str, mode: int, word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as refused:
        read_secret(written(tmp_path / "t", content, mode))
    assert not content or content not in str(refused.value)


def test_a_missing_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (f"Bearer {SECRET}", True),
        (f"bearer {SECRET}", True),
        (f"Basic {SECRET}", False),
        (SECRET, False),
        (f"Bearer {SECRET}x", False),
        ("Bearer ", False),
        ("Bearer \udcffµ", False),
        (None, False),
    ],
)
def test_only_the_secret_itself_authorizes(header: str | None, known: bool) -> None:
    assert authorized(header, SECRET) is known
    assert authorized(header, None)
