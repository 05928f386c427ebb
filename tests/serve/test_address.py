"""Where to listen, and who may ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent.errors import ConfigError
from incumbent.serve.gate import name_by_header, read_secrets
from incumbent.serve.http import parse_address

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
    assert read_secrets(written(tmp_path / "t", f"{SECRET}\nmore\n", 0o640)) == {SECRET: ""}


def test_a_token_may_have_a_name_and_then_each_has(tmp_path: Path) -> None:
    other = SECRET[::-1]
    path = written(tmp_path / "t", f"ann:{SECRET}\n\nci-bot:{other}\n")
    names = read_secrets(path)
    assert (names[SECRET], names[other]) == ("ann", "ci-bot")
    assert name_by_header(f"Bearer {other}", names) == "ci-bot"
    assert name_by_header(f"Bearer ann:{SECRET}", names) == "ann", "the whole line was copied"
    assert name_by_header(f"Bearer ann:{other}", names) is None


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        (SECRET, 0o604, "everybody"),
        ("7hort", 0o600, "16 characters"),
        ("", 0o600, "16 characters"),
        ("with blanks in the line", 0o600, "blanks"),
        ("µ" * 20, 0o600, "ASCII"),
        ("ann:7hort", 0o600, "16 characters"),
        (f"ann:{SECRET}\nbob 123456789012345678", 0o600, "no NAME:TOKEN in line 2"),
        (f"ann:{SECRET}\n" + "\n" * 65_536, 0o600, "more than 65536 bytes"),
        (f"ann:{SECRET}\nbob:7hort", 0o600, "line 2 needs at least 16 characters"),
        (f"ann:{SECRET}\nbob:{SECRET}", 0o600, "the token of ann in its line 2 again"),
    ],
)
def test_a_weak_or_open_secret_is_refused_and_not_shown(
    tmp_path: Path, content: str, mode: int, word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as refused:
        read_secrets(written(tmp_path / "t", content, mode))
    for line in filter(None, content.splitlines()):
        assert line.rpartition(":")[2] not in str(refused.value)


def test_a_missing_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secrets(str(tmp_path / "none"))


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
    assert name_by_header(header, {SECRET: "ann"}) == ("ann" if known else None)
    assert name_by_header(header, None) == ""
