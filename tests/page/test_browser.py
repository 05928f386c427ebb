"""The page in a real browser: it follows, it can be used by everybody, and nothing is run in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.cron.ledger import JOB, RUN, Ledger, SlotRecord, SlotState, encode
from incumbent.cron.schedule import slot_id
from incumbent.locks.clients import Client
from incumbent.model import Ask, Key
from incumbent.page.site import PageSite
from incumbent.runtime.link import link_for
from incumbent.serve.http import PageServer
from incumbent.stores.plan import run_blocking
from tests import tiers
from tests.page.proxy import below
from tests.support.browser import chromium

pytestmark = pytest.mark.left(tiers.BROWSER)

HOSTILE = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'
SECRET = "s3cret-s3cret-s3cret"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(f"sqlite://{tmp_path / 'leases.db'}") as made:
        yield made


@pytest.fixture
def url(tmp_path: Path, client: Client) -> Iterator[str]:
    token_file = tmp_path / "token"
    token_file.write_text(SECRET)
    token_file.chmod(0o600)
    store = f"sqlite://{tmp_path / 'leases.db'}"
    with (
        closing(PageSite(store, "default")) as site,
        closing(PageServer(site.routes(), "127.0.0.1:0", str(token_file))) as server,
    ):
        yield server.url


def seed(client: Client) -> SlotRecord:
    """A fleet: leases that are held, paused and free, and jobs with what became of them.

    Returns the run that goes on.
    """
    store, now = link_for(client).store, clock.wall()
    until = clock.now() + 60
    for number in range(6):
        key, claim = Key("default", f"switch-{number}"), f"{number:032x}"
        grant = store.take(key, claim, Ask(ttl=3600.0, holder=f"node-{number % 3}:41"), until)
        if number == 2:
            store.give(key, claim, grant.token, until)  # type: ignore[union-attr]
    hostile = Ask(ttl=3600.0, holder=HOSTILE)
    store.take(Key("default", "hostile"), "f" * 32, hostile, until)
    states = (
        *[SlotState.OK] * 16,
        SlotState.FAILED,
        SlotState.MISSED,
        SlotState.LOST,
        SlotState.OK,
    )
    for name in ("nightly", "report"):
        key = Key("default", name)
        facts = b'{"schedule":"*/5 * * * * (Europe/Berlin)","timezone":"Europe/Berlin","since":0}'
        store.put(key, JOB, facts, None, until)
        for place, state in enumerate(states):
            due = float(round(now - 170 * (len(states) - place)))
            ran = {"instance": "node-1:77", "started": due, "ended": due + 40, "output": HOSTILE}
            run = SlotRecord(slot_id(due), state, due, **ran)  # type: ignore[arg-type]
            store.put(key, RUN + run.slot, encode(run), None, until)
    grant = store.take(Key("default", "nightly"), GOING, Ask(ttl=3600.0, holder="node-1:77"), until)
    going = SlotRecord("manual/1", SlotState.RUNNING, now, "node-1:77", grant.token, now)  # type: ignore[union-attr]
    store.put(Key("default", "nightly"), RUN + going.slot, encode(going), None, until)
    show(client, going, f"so far {HOSTILE}")
    return going


GOING = "e" * 32


def show(client: Client, run: SlotRecord, output: str) -> None:
    ledger = Ledger(link_for(client).port, Key("default", "nightly"))
    assert run_blocking(ledger.show(run, output, GOING, clock.wall()))


class Looking:
    """A tab of the browser that is logged in, and what it complained about."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.tab.on("console", lambda said: self.complaints.append(said.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", self._asked)
        self.url = url
        self.tab.goto(url)
        self.tab.fill("[name=token]", SECRET)
        self.tab.click("button")
        self.tab.wait_for_selector("main")
        self.tab.wait_for_load_state()  # its script has run
        # The answer 401 with the question for the token is told there.
        self.complaints.clear()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.complaints.append(f"asks {request.url}")


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1360, "height": 900}},
    "tablet": {"color_scheme": "dark", "viewport": {"width": 800, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "wall": {"color_scheme": "dark", "viewport": {"width": 2560, "height": 1440}},
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", ["/", "/name?name=nightly", "/name?name=hostile"])
def test_everybody_can_use_it_and_nothing_of_a_record_runs(
    browser: Any, url: str, client: Client, look: str, path: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    seed(client)
    with closing(Looking(browser, url, **LOOKS[look]).context) as context:
        tab = context.pages[0]
        complaints: list[str] = []
        tab.on("console", lambda said: complaints.append(said.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(url + path)
        if path == "/":
            tab.wait_for_function("() => document.querySelectorAll('#leases tr').length == 7")
        found = Axe().run(tab).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        assert tab.title() == "default: incumbent"
        assert not tab.query_selector_all("img, #leases script")
        assert complaints == []
        wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "it has to be moved sideways"


def test_it_follows_what_changes_and_keeps_the_focus(
    browser: Any, url: str, client: Client
) -> None:
    seed(client)
    looking = Looking(browser, url)
    tab = looking.tab
    tab.focus("#leases a[href$='switch-0']")
    with client.lock("new", holder="node-9").acquire():
        tab.wait_for_selector("#leases :text('node-9')")
        assert tab.get_attribute("main", "data-edition")
    tab.wait_for_selector("#leases tr[data-name=new] :text('not held')")
    assert tab.evaluate("document.activeElement.textContent") == "switch-0"
    order = tab.eval_on_selector_all("#leases tr", "rows => rows.map(row => row.dataset.name)")
    assert set(order[-2:]) == {"switch-2", "new"}, "what nobody holds comes last"
    assert looking.complaints == []
    looking.context.close()


def test_the_output_of_a_run_is_followed_at_its_end_until_one_reads_back(
    browser: Any, url: str, client: Client
) -> None:
    going = seed(client)
    looking = Looking(browser, url)
    tab = looking.tab
    tab.goto(f"{url}/name?name=nightly")
    top = "document.querySelector('details[open] pre').scrollTop"
    for number in range(3):
        lines = "".join(f"line {line} of {number}\n" for line in range(150))
        show(client, going, f"{lines}the end of {number}")
        tab.wait_for_selector(f"details[open] pre:has-text('the end of {number}')")
        if number == 1:
            assert tab.evaluate(top) > 0
            tab.evaluate(f"{top} = 9")
            assert "output so far, seen at" in tab.text_content("details[open] p >> nth=-1")
    assert tab.evaluate(top) == 9
    assert looking.complaints == []
    looking.context.close()


def test_names_are_found_while_one_types_and_live_can_be_left(
    browser: Any, url: str, client: Client
) -> None:
    seed(client)
    looking = Looking(browser, url)
    tab = looking.tab
    tab.fill("[name=q]", "SWITCH-1")
    tab.wait_for_url(re.compile(r"\?q=SWITCH-1"))
    tab.wait_for_function("() => document.querySelectorAll('#leases tr').length == 1")
    assert tab.evaluate("document.activeElement.name") == "q"
    tab.reload()
    names = "rows => rows.map(row => row.dataset.name)"
    assert tab.eval_on_selector_all("#leases tr", names) == ["switch-1"]
    tab.click("#live")
    assert "gets old" in tab.inner_text("#link")
    assert tab.get_attribute("#live", "aria-pressed") == "false"
    tab.click("#live")
    assert tab.inner_text("#link") == ""
    looking.context.close()


def test_without_javascript_it_shows_the_same_and_a_form_acts(
    browser: Any, url: str, client: Client
) -> None:
    seed(client)
    looking = Looking(browser, url, java_script_enabled=False)
    tab = looking.tab
    assert tab.locator("#leases tr").count() == 7
    assert not tab.locator("#live").is_visible()
    tab.click("#leases a[href$='switch-2']")
    tab.fill("form:has(button[value=pause]) input[name=reason]", "tests")
    tab.click("button[value=pause]")
    assert "asked to pause" in tab.inner_text("#done")
    assert "paused" in tab.inner_text("#leases")
    assert b"tests" in client.read("switch-2").fields["pause"].value
    looking.context.close()


def test_the_end_of_the_server_is_said(browser: Any, tmp_path: Path, client: Client) -> None:
    seed(client)
    store = f"sqlite://{tmp_path / 'leases.db'}"
    tab = browser.new_page()
    with closing(PageSite(store, "default")) as site:
        with closing(PageServer(site.routes(), "127.0.0.1:0", None)) as server:
            tab.goto(server.url)
            tab.wait_for_selector("#leases tr")
        tab.wait_for_function(
            "() => document.getElementById('link').textContent.includes('gets old')"
        )
    tab.close()


def test_a_link_leads_to_its_view_through_the_question_for_the_token(
    browser: Any, url: str, client: Client
) -> None:
    seed(client)
    tab = browser.new_context(color_scheme="dark").new_page()
    tab.goto(f"{url}/?show=failed&window=1d")
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == "rgb(21, 24, 28)", "the question has no style"
    tab.fill("[name=token]", "a wrong token of mine")
    tab.click("button")
    assert "not the token" in tab.inner_text("[role=status]")
    tab.fill("[name=token]", SECRET)
    tab.click("button")
    tab.wait_for_selector("main[data-view]")
    assert tab.url == f"{url}/?show=failed&window=1d"
    tab.context.close()


def test_times_are_in_the_readers_zone_and_the_whole_is_on_hover(
    browser: Any, url: str, client: Client
) -> None:
    seed(client)
    looking = Looking(browser, url, timezone_id="Asia/Kathmandu")
    tab = looking.tab
    assert tab.inner_text("#zone") in ("Asia/Kathmandu", "Asia/Katmandu")
    shown, title, at = tab.eval_on_selector(
        "#leases time", "time => [time.textContent, time.title, time.dateTime]"
    )
    moment = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert f"{moment:%H:%M}" in shown
    assert f"{moment:%Y-%m-%d %H:%M:%S}" in title
    assert at.replace("T", " ").replace("Z", " UTC") in title
    looking.context.close()


def test_a_filter_a_fold_and_an_act_need_no_mouse(browser: Any, url: str, client: Client) -> None:
    seed(client)
    looking = Looking(browser, url)
    tab = looking.tab

    def reach(what: str) -> None:
        for _ in range(200):
            tab.keyboard.press("Tab")
            if tab.evaluate("what => document.activeElement.matches(what)", what):
                return
        raise AssertionError(f"{what} cannot be reached")

    reach("#facet-all a")
    reach("section:has(#leases) summary")
    tab.keyboard.press("Enter")
    assert not tab.is_visible("#leases")
    tab.keyboard.press("Enter")
    reach("#leases a[href$='switch-1']")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("button[value=pause]")
    reach("button[value=pause]")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#done:has-text('asked to pause')")
    assert "pause" in client.read("switch-1").fields
    looking.context.close()


def test_it_works_below_a_path_of_a_proxy(browser: Any, url: str, client: Client) -> None:
    seed(client)
    with below("/incumbent/", url) as outside:
        tab = browser.new_context().new_page()
        tab.goto(f"{outside}?q=switch")
        tab.fill("[name=token]", SECRET)
        tab.click("button")
        tab.wait_for_selector("#leases tr")
        assert tab.url == f"{outside}?q=switch"
        with client.lock("switch-new", holder="node-9").acquire():
            tab.wait_for_selector("#leases :text('node-9')")
        tab.click("#leases a[href$='switch-1']")
        tab.wait_for_selector("button[value=pause]")
        tab.click("button[value=pause]")
        tab.wait_for_selector("#done:has-text('asked to pause')")
        assert tab.url.startswith(f"{outside}name?")
        assert "pause" in client.read("switch-1").fields
        tab.context.close()
