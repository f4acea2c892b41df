"""The inspector in a real browser: Debian's Chromium, driven by Playwright. Skipped where there is none."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")
pytest.importorskip("playwright", reason="Playwright is not installed")

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from command_line import run
from playwright import sync_api
from pydantic import SecretStr
from stored_sessions import url_of

from compactor import CompactedMessage, CompactorConfig, InMemoryStore, Memory
from compactor.server import ServerSettings, create_app
from memory import Origin, open_store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Generous: these tests run beside others. ``docs/inspector.md`` has the measured time.
PATIENCE = 90_000
DOCS = Path(__file__).resolve().parents[3] / "docs"
TOKEN = "alice-token-0123456789"
HOSTILE = "<script>document.title='broken'</script><img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u202egnp.exe"
TABS = ("Rounds", "Prompt", "Tokens and cost", "Summaries", "Decisions")


def chat(memory: Memory, rounds: int) -> None:
    for number in range(1, rounds + 1):
        invoice = 2_000 + number
        memory.append(
            {"role": "user", "content": f"Which hall holds the goods of invoice {invoice}? Never round sums."}
        )
        answer = (
            f"Invoice {invoice} lies in hall {number % 7 + 1}. Its {number % 5 + 2} pallets were counted on Monday."
        )
        memory.append({"role": "assistant", "content": answer})


def publish(memory: Memory, end: int, summary: str) -> None:
    journal, rounds = memory.journal("assistant"), memory.conversation.rounds
    before = journal.read()
    start = before.current.last_round if before.current is not None else 0
    made = CompactedMessage(
        start_index=1,
        end_index=end,
        summary=summary,
        end_round_id=rounds[end - 1].id,
        model="gpt-5-mini",
        usage={"input_tokens": 60 * (end - start), "output_tokens": 90},
    )
    ids = [one.id for one in rounds[start:end] if one.state == "finished"]
    origin = Origin(checks=("empty", "invented"), strategy="compact_rounds", tokens_before=60 * end, tokens_after=90)
    journal.publish(made, base=before.generation, round_ids=ids, origin=origin)


def make_shop(store: Any, name: str = "warehouse", rounds: int = 60) -> Memory:
    """Return a session with rounds in most states: covered, shown, shortened, failed, pinned."""
    memory = Memory(name, store=store)
    chat(memory, rounds // 3)
    memory.pin("r5.p0")
    failed = memory.create_round("An attempt that failed")
    memory.finish_round(failed, state="failed")
    publish(memory, rounds // 4, "The user wants sums that are never rounded. Invoice 2004 lies in hall 5.")
    chat(memory, rounds - rounds // 3)
    publish(
        memory,
        rounds * 2 // 3,
        "The user wants sums that are never rounded. Its 4 pallets were counted on Monday.\nInvoice 2002 is settled.",
    )
    memory.append({"role": "user", "content": "Show the whole ledger."})
    memory.append(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read_ledger", "arguments": '{"hall": 3}'}}
            ],
        }
    )
    memory.append({"role": "tool", "tool_call_id": "c1", "content": "row of the ledger, hall 3, 17 pallets\n" * 400})
    memory.append({"role": "assistant", "content": "Hall 3 holds 17 pallets in each row."})
    memory.append({"role": "user", "content": "And what is still open?"})
    return memory


@contextmanager
def serve(store: Any, *, enabled: bool = True, **settings: Any) -> Iterator[str]:
    """Provide the address of a server over *store*, in a thread of its own. It compacts when it is asked to."""
    config = CompactorConfig(threshold=1_000, retain_recent=3, enabled=enabled)
    app = create_app(ServerSettings(store="memory://", config=config, budget=3_000, **settings), store=store)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=2)
    )
    started = threading.Event()
    startup = server.startup

    async def tell(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = tell  # type: ignore[method-assign]

    async def run() -> None:
        await server.serve()
        for connection in list(server.server_state.connections):  # a browser keeps some open
            connection.transport.abort()
        for _ in range(3):  # transports close their sockets in the next turns of the loop
            await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        with warnings.catch_warnings():  # a connection of the browser's may have come in at the very end
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def watch(browser: Any, **options: Any) -> Iterator[Any]:
    """Provide a page. At the end, no error was on its console, and it asked nobody but its own server."""
    context = browser.new_context(viewport={"width": 1_280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    faults: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    try:
        yield page
        own = page.url.split("#")[0].rsplit("/", 1)[0]
        assert faults == []
        assert [url for url in asked if not url.startswith((own, "data:"))] == []
    finally:
        context.close()


def open_tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    page.locator(f"[role=tabpanel][aria-label='{name}'][aria-busy=false]").wait_for()


def check_width(page: Any) -> None:
    for width in (360, 1_920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
    page.set_viewport_size({"width": 1_280, "height": 900})


def check_access(page: Any) -> None:
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []


def take(page: Any, name: str) -> None:
    """Renew a picture of the documentation where SCREENSHOTS=1 asks for it."""
    if os.environ.get("SCREENSHOTS") == "1":
        page.screenshot(path=str(DOCS / f"inspector-{name}.png"))


def test_each_view_of_a_server_shows_a_session_and_changes_it(browser: Any) -> None:
    """List, rounds, prompt, charts, summaries and decisions; at 360 and 1,920 pixels; pin and revert ask first."""
    store = InMemoryStore()
    make_shop(store)
    with serve(store, enabled=False) as address, watch(browser) as page:
        page.goto(address)
        page.get_by_role("link", name="warehouse").wait_for()
        check_width(page)
        check_access(page)
        page.get_by_label("Search sessions").fill("nothing like it")
        page.get_by_text("0 sessions").wait_for()
        page.get_by_label("Search sessions").fill("ware")
        page.get_by_role("link", name="warehouse").click()
        page.get_by_role("slider", name="Round").press("Home")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Why is this not").first.click()
        page.get_by_text("The summary of generation 2 by gpt-5-mini covers rounds r1-r40").first.wait_for()
        take(page, "rounds")
        for name in TABS:
            open_tab(page, name)
            check_width(page)
            check_access(page)
            if name == "Prompt":
                page.get_by_text("made by the compactor").first.wait_for()
            if name == "Tokens and cost":
                page.locator("canvas").nth(2).wait_for()
                take(page, "cost")
            if name == "Summaries":
                take(page, "summaries")
        page.get_by_role("button", name="Theme").click()
        page.get_by_role("button", name="Theme").click()
        check_access(page)
        open_tab(page, "Summaries")
        take(page, "dark")
        page.get_by_role("button", name="Revert").click()
        page.get_by_role("dialog").get_by_role("button", name="Revert").click()
        page.get_by_text("Reverted: The summary covers rounds 1 to 15.").wait_for()
        page.get_by_role("button", name="generation 2").last.click()
        page.get_by_role("heading", name="Generation 2, no longer shown").wait_for()
        page.get_by_role("button", name="generation 3").click()
        page.get_by_role("heading", name="Generation 3, reverted").wait_for()
        page.get_by_label("Go to round").fill("60")
        page.get_by_label("Go to round").press("Enter")
        page.get_by_role("button", name="Pin", exact=True).first.click()
        page.get_by_role("dialog").get_by_role("button", name="Pin").click()
        page.get_by_text("r60.p0 is pinned.").wait_for()
        assert Memory("warehouse", store=store).pins() == ("r5.p0", "r60.p0")


def test_a_compaction_shows_by_itself(browser: Any) -> None:
    """Nobody reloads the page: it hears of what the compactor did."""
    store = InMemoryStore()
    chat(Memory("live", store=store), 12)
    with serve(store) as address, watch(browser) as page:
        page.goto(f"{address}/#/live")
        page.get_by_text("live", exact=True).last.wait_for()
        page.get_by_role("button", name="Compact now").click()
        page.get_by_role("dialog").get_by_role("button", name="Compact now").click()
        page.get_by_text(re.compile("covers rounds 1 to")).wait_for()
        open_tab(page, "Decisions")
        page.get_by_text("compaction.published").first.wait_for()


def test_a_round_that_is_rare_is_drawn_though_it_is_narrow(browser: Any) -> None:
    """A failed round is seen among thousands, and each state has the colour of the legend; what the strip tells of a
    covered round is where its words are now."""
    store = InMemoryStore()
    memory = Memory("long", store=store)
    chat(memory, 1_500)
    memory.finish_round(memory.create_round("This failed."), state="failed")
    chat(memory, 1_500)
    publish(memory, 2_990, "The user wants sums that are never rounded.")
    with serve(store, enabled=False) as address, watch(browser) as page:
        page.goto(f"{address}/#/long")
        strip = page.get_by_role("slider", name="Round")
        strip.press("Home")
        assert strip.get_attribute("aria-valuetext") == "Round 1: covered, 42 tokens as said, now in the summary"
        page.wait_for_function(
            """() => {
                const canvas = document.querySelector("canvas.strip"), pen = canvas.getContext("2d");
                const pixels = pen.getImageData(0, canvas.height >> 1, canvas.width, 1).data;
                const hex = (at) => "#" + [0, 1, 2].map((one) => pixels[at + one].toString(16).padStart(2, "0")).join("");
                const count = (state) => {
                    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${state}`).trim();
                    return [...Array(canvas.width).keys()].filter((at) => hex(4 * at) === pen.fillStyle).length;
                };
                return count("failed") > 0 && count("covered") > 0.9 * canvas.width;
            }"""
        )


def test_the_first_session_appears_by_itself(browser: Any) -> None:
    """In the list, and at its own address."""
    with serve(InMemoryStore()) as address, watch(browser) as page, closing(browser.new_page()) as early:
        early.goto(f"{address}/#/first")
        early.get_by_text("there is no session of that name").wait_for()
        early.get_by_text("live", exact=True).last.wait_for()
        page.goto(address)
        page.get_by_text("No session yet.").wait_for()
        page.get_by_text("live", exact=True).last.wait_for()
        said = [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "Hall 3."}]
        page.request.post(f"{address}/api/sessions/first/messages", data={"messages": said})
        page.get_by_role("link", name="first").wait_for()
        early.get_by_role("slider", name="Round").wait_for()


def test_the_list_reaches_every_session(browser: Any) -> None:
    """Page by page, in another order, and by name; what is focused stays focused while the page is live."""
    store = InMemoryStore()
    for number in range(120):
        chat(Memory(f"user-{number:03}", store=store), 1 + number % 3)
    with serve(store) as address, watch(browser) as page:
        page.goto(address)
        page.get_by_text("Sessions 1 to 50").wait_for()
        page.get_by_label("Sort by").select_option("tokens")
        names = set[str]()
        for first, last in ((1, 50), (51, 100), (101, 120)):
            page.locator(".scroll[aria-busy=false]").wait_for()
            page.get_by_text(f"Sessions {first} to {last}", exact=True).wait_for()
            names |= set(page.locator("tbody a").all_text_contents())
            if last < 120:
                page.get_by_role("button", name="Next").click()
        assert len(names) == 120
        assert page.get_by_role("button", name="Next").is_hidden()
        page.get_by_role("button", name="Previous").click()
        page.get_by_text("Sessions 51 to 100", exact=True).wait_for()
        page.get_by_label("Search sessions").fill("USER-119")
        page.get_by_text("1 session", exact=True).wait_for()
        page.get_by_role("link", name="user-119").focus()
        said = [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "Hall 3."}]
        page.request.post(f"{address}/api/sessions/user-119/messages", data={"messages": said})
        page.locator("td[data-name=rounds]", has_text="4").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "user-119"


def test_the_list_asks_for_missing_figures_with_pauses(browser: Any) -> None:
    """The server's own figures do not wait for them."""
    asked: list[str] = []
    store = InMemoryStore()
    with serve(store) as address, watch(browser) as page:
        page.route("**/inspect/sessions?*", lambda one: one.fulfill(json={"sessions": [], "after": None, "pending": 5}))
        page.on("request", lambda one: asked.append(one.url.partition("/inspect/")[2].partition("?")[0]))
        page.clock.install(time=0)
        page.clock.pause_at(1_000)
        page.goto(address)
        page.get_by_text("sessions open").wait_for()
        page.get_by_text("the figures of 5 are being computed").wait_for()
        page.evaluate("fetch('healthz')")  # time for one more
        assert [one for one in asked if one in ("server", "sessions")] == ["server", "sessions"]
        with page.expect_request("**/inspect/sessions?*"):
            page.clock.run_for(200)


def test_nobody_without_a_token_sees_anything(browser: Any) -> None:
    """Without a token there is the login alone, and no answer to any question; with it, only the tenant's own."""
    store = InMemoryStore()
    chat(Memory("shared", store=store), 3)
    with serve(store, tokens={"alice": SecretStr(TOKEN)}) as address:
        context = browser.new_context()
        page = context.new_page()
        assert page.goto(address).status == 401
        for part in ("sessions", "session?session=shared", "strip?session=shared&role=assistant", "events"):
            assert context.request.get(f"{address}/inspect/{part}").status == 401, part
        check_access(page)
        page.get_by_label("Token").fill("wrong-token-0123456789")
        page.keyboard.press("Enter")
        page.get_by_text("No tenant has this token.").wait_for()
        check_width(page)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("No session yet.").wait_for()
        assert context.request.get(f"{address}/inspect/session?session=shared").status == 404
        context.close()


def test_a_page_listens_again_after_an_error_and_asks_no_more_once_it_is_signed_out(browser: Any) -> None:
    """A reverse proxy answers 502 while the server restarts. After a change of tokens, each question would count as a
    wrong token, and nobody at that address could log in."""
    with serve(InMemoryStore()) as address, closing(browser.new_context()) as context:
        page, asked = context.new_page(), list[str]()
        page.set_default_timeout(PATIENCE)
        page.clock.install()
        page.route("**/inspect/events", lambda route: route.fulfill(status=502))
        page.goto(address)
        page.get_by_text("not connected").wait_for()
        page.unroute("**/inspect/events")
        page.clock.fast_forward(10_000)
        page.get_by_text("live", exact=True).wait_for()

        def refuse(route: Any) -> None:
            asked.append(route.request.url)
            route.fulfill(status=401)

        page.route("**/inspect/**", refuse)
        page.clock.run_for(11_000)
        page.get_by_text("You are signed out").wait_for()
        before = len(asked)
        page.clock.run_for(60_000)
        assert len(asked) == before
        page.unroute("**/inspect/**")
        page.get_by_label("Search sessions").fill("x")
        page.clock.run_for(1_000)
        page.get_by_text("0 sessions").wait_for()


def test_hostile_content_is_inert(browser: Any, tmp_path: Path) -> None:
    """Markup, terminal codes, right-to-left marks and a word of a megabyte are shown as text, in every view."""
    url = url_of(tmp_path / "chat.db")
    store = open_store(url)
    memory = Memory(name := "<script>alert(1)</script>\u202e", store=store)
    for _ in range(3):
        memory.append({"role": "user", "content": HOSTILE})
        memory.append({"role": "assistant", "content": "x" * 1_000_000})
        memory.append({"role": "user", "content": "</script><!-- \u05e9\u05dc\u05d5\u05dd \ud800"})
        memory.append({"role": "assistant", "content": HOSTILE})
    publish(memory, 2, HOSTILE)
    file = tmp_path / "hostile.html"
    store.close()
    assert run("show", name, "--store", url, "--html", file).code == 0
    with watch(browser) as page:
        page.goto(file.as_uri())
        page.get_by_role("slider", name="Round").press("Home")
        page.keyboard.press("Enter")
        page.get_by_text("\\u001b[31mred").first.wait_for()
        for name in TABS:
            open_tab(page, name)
            check_width(page)
        assert page.evaluate("document.title") == "<script>alert(1)</script>\u202e in compactor"
        assert page.locator("main script, main img").count() == 0


def test_an_update_leaves_focus_choice_and_width_alone(browser: Any) -> None:
    """The strip of a live session grows under the reader's hands; a name of 200 characters does not widen the page."""
    store, name = InMemoryStore(), "x" * 200
    chat(Memory(name, store=store), 12)
    with serve(store) as address, watch(browser) as page:
        page.goto(f"{address}/#/{name}")
        slider = page.get_by_role("slider", name="Round")
        slider.wait_for()
        check_width(page)
        slider.evaluate("canvas => canvas.focus()")
        page.keyboard.press("Home")
        slider.evaluate("canvas => canvas.dataset.seen = 'yes'")
        said = [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "Hall 3."}]
        page.request.post(f"{address}/api/sessions/{name}/messages", data={"messages": said})
        page.locator("canvas.strip[aria-valuemax='13']").wait_for()
        assert slider.get_attribute("data-seen") == "yes"
        assert slider.get_attribute("aria-valuenow") == "1"
        assert page.evaluate("document.activeElement.className") == "strip"


def press_until(page: Any, key: str, name: str) -> None:
    """Press *key* until a control of that name has the focus."""
    read = "(one => one.getAttribute('aria-label') || one.textContent)(document.activeElement)"
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate(read) == name:
            return
    raise AssertionError(f"{key} reaches no {name!r}")


def test_the_keyboard_alone_reaches_everything_in_a_live_session(browser: Any) -> None:
    """Neither an update nor an answered question takes away the focus, an open answer, or the moment looked at."""
    store = InMemoryStore()
    make_shop(store)

    def say(rounds: int) -> None:
        said = [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "Hall 3."}]
        page.request.post(f"{address}/api/sessions/warehouse/messages", data={"messages": said})
        page.locator(f"canvas.strip[aria-valuemax='{rounds}']").wait_for()

    with serve(store, enabled=False) as address, watch(browser) as page:
        page.goto(address)
        page.get_by_role("link", name="warehouse").wait_for()
        press_until(page, "Tab", "warehouse")
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Rounds").wait_for()
        assert page.title() == "warehouse in compactor"
        press_until(page, "Tab", "Round")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.get_by_text("Round 1 (finished)").wait_for()
        press_until(page, "Tab", "Why is this not in the prompt as it was said?")
        page.keyboard.press("Enter")
        press_until(page, "Tab", "Pin")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        press_until(page, "Tab", "Pin")
        page.keyboard.press("Enter")
        page.get_by_text("r1.p0 is pinned.").wait_for()
        page.locator("button:focus", has_text="Unpin").wait_for()
        page.get_by_text("so the prompt has it verbatim above the summary").wait_for()

        press_until(page, "Shift+Tab", "Rounds")
        page.keyboard.press("ArrowRight")
        page.locator("[role=tabpanel][aria-label=Prompt][aria-busy=false]").wait_for()
        press_until(page, "Tab", "After round")
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        page.get_by_text("6 messages").wait_for()
        say(63)
        page.get_by_text("6 messages").wait_for()
        assert page.evaluate("document.activeElement.value") == "3"

        press_until(page, "Shift+Tab", "Prompt")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.locator("[role=tabpanel][aria-label=Summaries][aria-busy=false]").wait_for()
        press_until(page, "Tab", "generation 1")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Generation 1").wait_for()
        publish(Memory("warehouse", store=store), 45, "The user wants sums that are never rounded.")
        say(64)
        page.get_by_role("button", name="generation 3").wait_for()
        assert page.get_by_role("heading", name="Generation 1").is_visible()
        assert page.evaluate("document.activeElement.textContent") == "generation 1"


def test_an_update_while_a_question_is_open_leaves_the_focus_at_what_asked(browser: Any) -> None:
    """It replaces the button, because the reason above it has been opened."""
    store = InMemoryStore()
    make_shop(store)
    pin = "[data-control='pin r1.p0']"
    with serve(store, enabled=False) as address, watch(browser) as page:
        page.goto(address)
        page.get_by_role("link", name="warehouse").click()
        page.get_by_role("slider", name="Round").press("Home")
        page.keyboard.press("Enter")
        page.get_by_text("Round 1 (finished)").wait_for()
        page.get_by_role("button", name="Why is this not in the prompt as it was said?").first.click()
        page.locator(pin).evaluate("one => one.classList.add('old')")
        page.locator(pin).press("Enter")
        page.get_by_role("dialog").wait_for()
        said = [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "Hall 3."}]
        page.request.post(f"{address}/api/sessions/warehouse/messages", data={"messages": said})
        page.locator(f"{pin}:not(.old)").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").press("Enter")
        page.get_by_role("dialog").wait_for(state="detached")
        assert page.evaluate("document.activeElement.dataset.control") == "pin r1.p0"


@pytest.fixture(scope="module")
def long_session() -> InMemoryStore:
    store = InMemoryStore()
    memory = Memory("long", store=store)
    for end in range(1_000, 10_001, 1_000):
        chat(memory, 1_000)
        publish(memory, end - 5, f"So far there were {end} invoices. The user wants sums that are never rounded.")
    return store


def check_long_session(page: Any) -> None:
    """The first paint was there at once, and each view works."""
    began = time.monotonic()
    page.get_by_role("slider", name="Round").wait_for()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first paint after {paint:.0f} ms; all rounds {1_000 * (time.monotonic() - began):.0f} ms after loading")
    assert paint < 20_000
    page.get_by_role("slider", name="Round").press("Home")
    page.keyboard.press("Enter")
    page.get_by_text("Which hall holds the goods of invoice 2001?").first.wait_for()
    for name in TABS:
        open_tab(page, name)


@pytest.mark.timeout(300)
def test_a_file_of_ten_thousand_rounds_opens_at_once(browser: Any, tmp_path: Path, long_session: InMemoryStore) -> None:
    """``show --html`` works without a server."""
    file = tmp_path / "long.html"
    url = url_of(tmp_path / "chat.db")
    with closing(open_store(url)) as store:
        store.append("long", list(long_session.read("long")), after=0)
    assert run("show", "long", "--store", url, "--html", file, "--budget", 8_000).code == 0
    with watch(browser) as page:
        page.goto(file.as_uri())
        check_long_session(page)


@pytest.mark.timeout(300)
def test_a_server_shows_ten_thousand_rounds_at_once(browser: Any, long_session: InMemoryStore) -> None:
    with serve(long_session, enabled=False) as address, watch(browser) as page:
        page.goto(f"{address}/#/long")
        check_long_session(page)
