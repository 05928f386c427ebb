"""Where notifications go, and how they are signed."""

from __future__ import annotations

import base64
import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from incumbent.errors import ConfigError
from incumbent.notify.outbox import read_secrets
from incumbent.notify.receivers import (
    Webhook,
    parse_ping,
    parse_receiver,
    parse_secrets,
    sign,
)
from tests.docs.blocks import PAGES, blocks_of
from tests.notify.listening import SECRET


def test_a_signature_is_that_of_the_reference_implementation() -> None:
    """Made by the package standardwebhooks 1.1 from the values of its own tests."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    content = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    assert sign(secret, content) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_secret_signs_so_that_one_can_replace_another() -> None:
    from standardwebhooks.webhooks import Webhook as Reference

    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    secrets = parse_secrets(f"{SECRET}\n{other}\n", "file")
    request = Webhook("test", 1e9, {}).request(parse_receiver("http://h/p", "n"), secrets, 4e9)
    head, _, body = request.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    headers["webhook-timestamp"] = "4000000000"
    signatures = headers["webhook-signature"].split()
    assert len(signatures) == 2
    for text, signature in zip((SECRET, other), signatures, strict=True):
        content = f"{headers['webhook-id']}.4000000000.".encode() + body
        key = base64.b64decode(text.removeprefix("whsec_"))
        assert signature == sign(key, content)
        assert Reference(text).sign(headers["webhook-id"], AT, body.decode()) == signature


def test_a_message_has_no_facts_that_are_empty_and_no_bytes_that_are_no_text() -> None:
    facts = {"why": "", "code": None, "job": "\ud800ä", "count": 0}
    request = Webhook("job.failed", 0.0, facts).request(
        parse_receiver("http://h", "n"), [b"x"], 1.0
    )
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body == {
        "type": "job.failed",
        "timestamp": "1970-01-01T00:00:00.000Z",
        "data": {"job": "\ud800ä", "count": 0},
    }


AT = datetime.fromtimestamp(4e9, UTC)

BAD_URLS = (
    *("", "SECRET", "//host/SECRET", "ftp://host/SECRET", "HTTPS//SECRET", "https:///SECRET"),
    *("https://host:SECRET/", "https://host:99999/SECRET", "https://host:0/SECRET"),
    *("https://host/SECRET\r\nX: y", "https://host/SE CRET", "https://[::SECRET/", "https://hóst/"),
    *("https://host/#SECRET", "https://host/SECRET\0"),
)


def test_a_port_that_no_server_has_is_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="the port of the URL is from 1 on, not 0"):
        parse_receiver("https://h:0/", "notify")


@pytest.mark.parametrize("url", [*BAD_URLS, 7, None, ["SECRET"]])
def test_a_url_that_cannot_be_used_is_refused_without_showing_it(url: object) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_receiver(url, "notify")
    assert str(raised.value).startswith("notify: ")
    assert "SECRET" not in str(raised.value)
    with pytest.raises(ConfigError):
        parse_ping({"success": url}, "ping")


@pytest.mark.parametrize(
    "text", ["", "SECRETx", "whsec_SECRET", "whsec_U0VDUkVU", SECRET + "\nSECRETx"]
)
def test_a_secret_that_cannot_sign_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_secrets(text, "INCUMBENT_NOTIFY_SECRET")
    assert "INCUMBENT_NOTIFY_SECRET" in str(raised.value)
    assert not re.search("SECRETx|U0VDUkVU|MfKQ", str(raised.value).replace("_SECRET", ""))


def test_without_a_secret_the_message_names_both_variables() -> None:
    with pytest.raises(
        ConfigError, match=r"INCUMBENT_NOTIFY_SECRET or INCUMBENT_NOTIFY_SECRET_FILE"
    ):
        read_secrets({})


def test_a_receiver_shows_its_host_alone() -> None:
    receiver = parse_receiver("https://user:SECRET@host:8443/SECRET?SECRET", "notify")
    assert str(receiver) == "host:8443"
    assert "SECRET" not in repr(receiver)
    request = receiver.request().decode()
    assert "GET /SECRET?SECRET HTTP/1.1\r\nHost: host:8443\r\n" in request
    assert f"Authorization: Basic {base64.b64encode(b'user:SECRET').decode()}\r\n" in request


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://host/", "host"),
        ("https://host:443/", "host"),
        ("https://host:80/", "host:80"),
        ("http://host:443/", "host:443"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_host_header_has_the_port_unless_it_is_that_of_the_scheme(url: str, host: str) -> None:
    assert f"\r\nHost: {host}\r\n".encode() in parse_receiver(url, "notify").request()


# -- pings -----------------------------------------------------------------------------------------


def test_one_url_has_the_words_of_healthchecks() -> None:
    ping = parse_ping("https://hc.example/ping/slug/?create=1", "ping")
    assert ping.start is not None
    assert ping.fail is not None
    paths = [
        (it.path, it.query)
        for it in (
            ping.start,
            ping.after(0, ok=True),
            ping.after(3, ok=False),
            ping.after(None, ok=False),
            ping.after(-9, ok=False),
            ping.after(300, ok=False),
        )
        if it is not None
    ]
    assert paths == [
        ("/ping/slug/start", "create=1"),
        ("/ping/slug/", "create=1"),
        ("/ping/slug/3", "create=1"),
        *[("/ping/slug/fail", "create=1")] * 3,
    ]


def test_a_success_with_another_code_than_0_is_a_success() -> None:
    after = parse_ping("https://hc.example/u", "ping").after(3, ok=True)
    assert after is not None
    assert after.path == "/u"


def test_a_table_has_the_urls_of_any_other_service() -> None:
    ping = parse_ping({"success": "https://snitch.example/x"}, "ping")
    assert (ping.start, ping.after(3, ok=False)) == (None, None)
    full = {"start": "https://h/?s=run", "success": "https://h/?s=ok", "fail": "https://h/?s=no"}
    after = parse_ping(full, "ping").after(3, ok=False)
    assert after is not None
    assert after.query == "s=no"


@pytest.mark.parametrize("value", [{}, {"start": "https://h/"}, {"sucess": "https://h/"}])
def test_a_table_of_pings_needs_success_and_knows_its_keys(value: object) -> None:
    with pytest.raises(ConfigError, match=r"success|sucess"):
        parse_ping(value, "ping")


def test_the_lines_in_the_docs_verify_a_message_and_refuse_a_changed_one() -> None:
    (page,) = (page for page in PAGES if page.name == "notifications.md")
    (block,) = (block for block in blocks_of(page) if block.language == "python")
    program: dict[str, Any] = {}
    exec(block.code, program)
    now = time.time()
    request = Webhook("test", now, {"name": "ä"}).request(
        parse_receiver("http://h/p", "n"), parse_secrets(SECRET, "test"), now
    )
    head, _, body = request.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert program["verify"](headers, body, SECRET)
    assert not program["verify"](headers, body + b" ", SECRET)
    assert not program["verify"](headers | {"webhook-id": "msg_other"}, body, SECRET)
    old = headers | {"webhook-timestamp": str(int(now) - 1000)}
    assert not program["verify"](old, body, SECRET)
