"""The page's data as JSON: what is served fits the description that is served beside it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from incumbent import clock
from incumbent.cron.ledger import JOB
from incumbent.errors import ConfigError
from incumbent.locks.clients import Client
from incumbent.model import Field
from incumbent.page import api
from incumbent.page.site import PageSite
from incumbent.page.view import View
from incumbent.serve.http import PageServer
from tests import tiers
from tests.page.fleet import FAULTS, JOBS, LEASES, TROUBLE, big
from tests.page.records import NOW, held, job, reading, record, snapshot
from tests.page.test_site import (
    BEARER,
    SECRET,
    Stub,
    ask,
    client,
    following,
    guarded,
    listening,
    logged_in,
    store,
    stub,
    url,
)
from tests.support.waiting import eventually

__all__ = ["client", "guarded", "store", "stub", "url"]

DOCS = Path(__file__).parents[2] / "docs" / "openapi.json"
DESCRIPTION: dict[str, Any] = json.loads(DOCS.read_text())

FORMATS = jsonschema.FormatChecker(())


def is_instant(text: object) -> bool:
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    return not isinstance(text, str) or re.fullmatch(instant, text) is not None


FORMATS.checks("date-time")(is_instant)


def check(answer: object, path: str, method: str = "get", status: str = "200") -> None:
    """Raise unless the answer is as the description says; what it does not name is refused."""
    response = DESCRIPTION["paths"][path][method]["responses"][status]
    (content,) = response["content"].values()
    schema = {"components": DESCRIPTION["components"], **content["schema"]}
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(answer)


def said(found: tuple[HTTPResponse, str]) -> Any:
    return json.loads(found[1])


def test_each_answer_about_a_big_fleet_fits_the_description() -> None:
    fleet = reading(big())
    for path in ("overview", "leases", "jobs", "events"):
        found = api.look(fleet, f"{api.BASE}/{path}", {}, NOW)
        check(json.loads(api.encode(found or {})), f"{api.BASE}/{path}")
    for entry in fleet.entries:
        table = "leases" if entry.job is None else "jobs"
        found = api.look(fleet, f"{api.BASE}/{table}/{entry.name}", {}, NOW)
        check(json.loads(api.encode(found or {})), f"{api.BASE}/{table}/{{name}}")


def test_the_description_refuses_an_answer_with_another_type() -> None:
    found = api.look(reading(big()), f"{api.BASE}/overview", {}, NOW) or {}
    with pytest.raises(jsonschema.ValidationError):
        check({**found, "result": {**found["result"], "held": "many"}}, f"{api.BASE}/overview")


def test_the_description_names_each_path_and_is_a_valid_one() -> None:
    assert {path.split("/")[3] for path in DESCRIPTION["paths"]} == {
        *("overview", "leases", "jobs", "events")
    }
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_first_answer_names_each_planted_fault() -> None:
    overview = api.overview(reading(big()))
    assert {fault: sorted(names) for fault, names in overview["names"].items()} == {
        fault: sorted(names) for fault, names in FAULTS.items()
    }
    assert overview["troubles"] == [TROUBLE]
    assert (overview["leases"], overview["jobs"]) == (LEASES, JOBS)


def test_tables_are_filtered_sorted_and_paged() -> None:
    fleet = reading(big())

    def names(path: str, **given: str) -> list[str]:
        found = api.look(fleet, f"{api.BASE}/{path}", given, NOW) or {}
        return [row["name"] for row in found["result"]["rows"]]

    assert sorted(names("jobs", show="late")) == ["report.daily"]
    assert names("leases", sort="name", limit="2", q="shard/") == ["shard/0000", "shard/0001"]
    assert names("leases", sort="name", limit="2", q="shard/", page="2")[0] == "shard/0002"
    assert len(names("leases", limit="9999")) == LEASES
    assert names("leases", page="99999") == []
    assert len(names("leases", limit="-1")) == 100


def test_what_cannot_be_an_instant_or_a_number_is_null() -> None:
    odd = job("a", schedule="by slot", command="x", at_most_for=float("inf"))
    fields = {**odd.fields, "run/x": Field(b'{"v": 1, "state": "ok", "due": 1e300}', 1)}
    fleet = reading(snapshot(record("a", fields=fields), held("b")))
    text = api.encode(api.whole(fleet, View(), NOW)).decode()
    assert "Infinity" not in text
    assert json.loads(text)["result"]["jobs"]["rows"][0]["at_most_for"] is None
    assert JOB in fields


# -- through the listener -------------------------------------------------------------------------


def test_a_program_reads_what_people_see(url: str, client: Client) -> None:
    with client.lock("shard/7", holder="node-1").acquire():
        whole = said(ask(url, "/", headers={"Accept": "application/json"}))
        assert whole["result"]["leases"]["rows"][0]["holder"] == "node-1"

        def of_one_reading() -> list[Any]:
            found = [said(ask(url, f"/api/v1/leases/{name}")) for name in ("shard%2F7", "shard/7")]
            return found if found[0]["read_at"] == found[1]["read_at"] else []

        one, other = eventually(of_one_reading)
        assert one == other | {"time": one["time"]}
        check(one, "/api/v1/leases/{name}")
        same = said(ask(url, "/name?name=shard/7", headers={"Accept": "application/json"}))
        assert same["result"]["token"] == one["result"]["token"]
    assert said(ask(url, "/api/v1/openapi.json")) == DESCRIPTION
    for path in ("/api/v1/leases/nobody", "/api/v1/jobs/shard/7", "/api/v1/nothing", "/api/v1/"):
        response, text = ask(url, path)
        assert response.status == 404
        assert json.loads(text)["status"] == 404
        check(json.loads(text), "/api/v1/leases/{name}", status="404")


def test_a_browser_that_takes_anything_is_shown_the_page(url: str) -> None:
    accept = "text/html,application/xhtml+xml,application/json;q=0.9,*/*;q=0.8"
    assert ask(url, "/", headers={"Accept": accept})[1].startswith("<!doctype html>")


def test_a_program_acts_with_the_token_and_its_name_is_on_record(
    guarded: str, client: Client
) -> None:
    with client.lock("shard/7").acquire() as lease:
        path = "/api/v1/leases/shard/7"
        json_body = {**BEARER, "Content-Type": "application/json"}
        response, text = ask(guarded, f"{path}/break", '{"reason": "stuck"}', json_body)
        assert response.status == 202
        check(json.loads(text), "/api/v1/leases/{name}/{wish}", "post", "202")
        notice = json.loads(client.read("shard/7").fields["resign"].value)
        assert notice["kind"] == "break"
        assert (notice["token"], notice["reason"]) == (lease.fencing_token, "stuck")
    for wish in ("pause", "unpause"):
        assert ask(guarded, f"{path}/{wish}", "", json_body)[0].status == 202
        assert ("pause" in client.read("shard/7").fields) == (wish == "pause")


@pytest.mark.parametrize("path", ["leases/a/format", "leases/@cron/pause", "x/a/pause", "leases/a"])
def test_a_wish_that_makes_no_sense_is_refused_as_json(
    guarded: str, client: Client, path: str
) -> None:
    response, text = ask(guarded, f"/api/v1/{path}", "{}", BEARER)
    assert response.status == 400
    check(json.loads(text), "/api/v1/leases/{name}/{wish}", "post", "400")
    assert not client.scan()


def test_a_script_of_another_page_acts_as_little_as_its_forms(
    url: str, guarded: str, client: Client
) -> None:
    client.lock("telnet").acquire().release()
    headers = logged_in(guarded)
    permit = said(ask(guarded, "/api/v1/overview?permit=1", headers=headers))["permit"]
    path, body = "/api/v1/leases/telnet/pause", json.dumps({"permit": permit})
    own = {**headers, "Content-Type": "application/json"}
    evil = {**own, "Origin": "https://evil.example"}
    proxied = {**BEARER, "Origin": "https://evil.example"}
    refused = [
        ask(guarded, path, body, evil),
        ask(guarded, path, body, {**own, "Origin": "null"}),
        ask(guarded, path, "{}", own),
        ask(guarded, path, "[]", own),
        ask(guarded, path, "{", own),
        # A proxy adds the token to whatever a browser sends.
        ask(guarded, path, body, proxied),
        ask(guarded, path, "{}", {**BEARER, "Origin": guarded}),
        ask(guarded, path, "{}", {**BEARER, "Sec-Fetch-Site": "cross-site"}),
        ask(url, path, "{}", {"Origin": url}),
    ]
    assert [response.status for response, _ in refused] == [403] * len(refused)
    assert not client.read("telnet").fields
    assert "permit" not in said(ask(url, "/api/v1/overview?permit=1"))
    assert ask(guarded, path, body, own)[0].status == 202
    assert SECRET not in permit


def test_a_program_without_the_token_is_told_so_in_json(guarded: str) -> None:
    response, text = ask(guarded, "/api/v1/overview")
    assert response.status == 401
    check(json.loads(text), "/api/v1/overview", status="401")


# -- who did it ------------------------------------------------------------------------------------


@contextmanager
def named(store: str, tmp_path: Path, header: str | None = None) -> Iterator[str]:
    """A listener with the tokens of two people, and the header of a proxy."""
    token_file = tmp_path / "tokens"
    token_file.write_text(f"ann:{SECRET}\nbob:{SECRET[::-1]}\n")
    token_file.chmod(0o600)
    with (
        closing(PageSite(store, "default")) as site,
        closing(PageServer(site.routes(), "127.0.0.1:0", str(token_file), header)) as server,
    ):
        yield server.url


def who_paused(client: Client) -> str:
    found = json.loads(client.read("a").fields["pause"].value)["who"]
    assert isinstance(found, str)
    return found


def test_the_name_of_the_token_is_on_record(store: str, client: Client, tmp_path: Path) -> None:
    forged = {"X-Forwarded-User": "root"}
    with named(store, tmp_path) as url:
        for token, name in ((SECRET, "ann"), (SECRET[::-1], "bob")):
            headers = {"Authorization": f"Bearer {token}", **forged}
            ask(url, "/api/v1/leases/a/unpause", "", headers)
            ask(url, "/api/v1/leases/a/pause", "", headers)
            assert who_paused(client).startswith(f"{name} by the page at ")
        response, _ = ask(url, "/login", f"token={SECRET[::-1]}", {"Origin": url})
        cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0], "Origin": url}
        permit = said(ask(url, "/api/v1/overview?permit=1", headers=cookie))["permit"]
        ask(url, "/act", f"name=a&wish=unpause&permit={permit}", cookie)
        ask(url, "/act", f"name=a&wish=pause&permit={permit}", {**cookie, **forged})
        assert who_paused(client).startswith("bob by the page at ")


def test_a_header_of_the_proxy_names_who_acts_only_where_it_is_configured(
    store: str, client: Client, tmp_path: Path
) -> None:
    with named(store, tmp_path, "X-Forwarded-User") as url:
        headers = {**BEARER, "X-Forwarded-User": "carol\x1b[31m"}
        ask(url, "/api/v1/leases/a/pause", "", headers)
        assert who_paused(client).startswith(r"carol\x1b[31m by the page at ")
        without = {"X-Forwarded-User": "carol"}
        assert ask(url, "/api/v1/leases/a/unpause", "", without)[0].status == 403
        assert ask(url, "/api/v1/leases", headers=without)[0].status == 401


def test_a_header_of_the_proxy_that_came_twice_names_nobody(
    store: str, client: Client, tmp_path: Path
) -> None:
    """The first is the client's own, if the proxy adds its header and replaces none."""
    twice = (("X-Forwarded-User", "root"), ("X-Forwarded-User", "carol"))
    with (
        named(store, tmp_path, "X-Forwarded-User") as url,
        closing(HTTPConnection(urlsplit(url).netloc, timeout=30)) as link,
    ):
        link.putrequest("POST", "/api/v1/leases/a/pause")
        for header in (*BEARER.items(), *twice, ("Content-Length", "0")):
            link.putheader(*header)
        link.endheaders()
        assert link.getresponse().status == 202
        assert who_paused(client).startswith("ann by the page at ")


@pytest.mark.parametrize("header", ["", "X User", "X:User"])
def test_a_header_that_cannot_be_one_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(ConfigError, match="user-header"):
        PageServer({}, "127.0.0.1:0", None, "X-User")
    token_file = tmp_path / "token"
    token_file.write_text(SECRET)
    token_file.chmod(0o600)
    with pytest.raises(ConfigError, match="no name of a header"):
        PageServer({}, "127.0.0.1:0", str(token_file), header)


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.left(tiers.LONG)
def test_many_views_of_a_big_fleet_cost_the_store_a_reading_in_five_seconds(
    stub: Stub, store: str
) -> None:
    stub.found, began = big(), clock.now()
    views = ("", "?show=failed", "?sort=name", "?q=shard&leases=2", "?show=late&window=1d")
    with listening(store) as url, ExitStack() as stack:
        changes = [stack.enter_context(following(url)) for _ in range(3)]
        for view in views * 4:
            assert "<table" in ask(url, f"/{view}")[1]
            assert ask(url, "/api/v1/jobs")[0].status == 200
        for change in changes:
            change()
        least = began + 12
        while clock.now() < least:
            assert ask(url, "/?sort=newest")[0].status == 200
            time.sleep(0.1)
    # A Redis is asked ten times for 700 records, so that is twice a second.
    assert 2 <= len(stub.reads) <= 2 + (clock.now() - began) / 5.6


@pytest.mark.parametrize(
    "query",
    [
        *("show=fialed", "sort=bogus", "limit=abc", "limit=-1", "limt=3", "window=7x", "page=x"),
        *("shwo=", "shwo", "show=", "limit=0", "page=0", "limit=", "limit=1&limit=2", "q=a&q=a"),
        *("page=1000000", "limit=1000000", "page=-1"),
    ],
)
def test_a_query_that_is_misspelt_is_refused_with_what_is_known(url: str, query: str) -> None:
    response, text = ask(url, f"/api/v1/leases?{query}")
    assert response.status == 400
    check(json.loads(text), "/api/v1/leases", "get", "400")
    assert ask(url, "/api/v1/leases?show=failed&sort=name&limit=3&page=1&q=a")[0].status == 200
    assert ask(url, "/api/v1/leases?q=")[0].status == 200


@pytest.mark.parametrize(
    "body",
    ["{reason", '{"resaon": "x"}', "[]", '{"reason": 3}', "reason=x", "[" * 5000],
)
def test_a_body_that_is_no_wish_is_refused_and_nothing_is_done(
    guarded: str, client: Client, body: str
) -> None:
    path = "/api/v1/leases/switch-7/pause"
    response, text = ask(guarded, path, body, BEARER)
    assert response.status == 400
    check(json.loads(text), "/api/v1/leases/{name}/{wish}", "post", "400")
    assert not client.scan()


def test_a_reason_is_read_whatever_type_the_body_is_said_to_have(
    guarded: str, client: Client
) -> None:
    path = "/api/v1/leases/switch-7/pause"
    form = {**BEARER, "Content-Type": "application/x-www-form-urlencoded"}
    assert ask(guarded, path, '{"reason": "by curl"}', form)[0].status == 202
    assert json.loads(client.read("switch-7").fields["pause"].value)["reason"] == "by curl"


@pytest.mark.parametrize("query", ["reason=maintenance", "raeson", "permit=1"])
def test_a_wish_with_a_query_is_refused_as_its_reason_would_be_lost(
    guarded: str, client: Client, query: str
) -> None:
    assert ask(guarded, f"/api/v1/leases/switch-7/pause?{query}", "{}", BEARER)[0].status == 400
    assert not client.scan()


def test_a_body_without_a_length_is_refused(guarded: str, client: Client) -> None:
    headers = {**BEARER, "Transfer-Encoding": "chunked"}
    response, text = ask(guarded, "/api/v1/leases/switch-7/pause", "", headers)
    assert (response.status, "Content-Length" in text) == (411, True)
    assert not client.scan()


@pytest.mark.parametrize("host", ["[", "[::1", "a]"])
def test_a_host_that_is_none_is_refused(url: str, guarded: str, host: str) -> None:
    assert ask(url, "/api/v1/overview", headers={"Host": host})[0].status == 403
    assert ask(guarded, "/api/v1/overview", headers={"Host": host, **BEARER})[0].status == 403


def test_an_origin_or_a_permit_that_is_none_is_refused(guarded: str, client: Client) -> None:
    path = "/api/v1/leases/switch-7/pause"
    assert ask(guarded, path, "{}", {**BEARER, "Origin": "http://["})[0].status == 403
    own = {**logged_in(guarded), "Origin": guarded}
    assert ask(guarded, path, '{"permit": "\\ud800"}', own)[0].status == 403
    assert not client.scan()


@pytest.mark.parametrize(
    "path",
    [
        *("jobs/boks/trigger", "leases/books/trigger", "jobs/boks/pause", "jobs/boks/unpause"),
        *("jobs/books/pause", "jobs/books/resign", "jobs/books/break"),
    ],
)
def test_what_is_no_job_is_not_steered_as_one(guarded: str, client: Client, path: str) -> None:
    with client.lock("books").acquire():
        response, text = ask(guarded, f"/api/v1/{path}", "{}", BEARER)
    assert response.status == 404
    check(json.loads(text), "/api/v1/jobs/{name}/{wish}", "post", "404")
    assert not client.read("books").fields
    assert not client.read("@cron").fields
    assert not client.read("boks").fields
