"""The inspector: what it shows of a session follows from the log, and looking changes nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from stored_sessions import offload, session, summarise, url_of

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    Failed,
    Memory,
    Skip,
    SummaryRequest,
    UnknownReference,
    compose,
)
from compactor.inspector.explanations import SKIPS, describe_event
from compactor.inspector.page import FILES, make_offline_page, read_file
from compactor.inspector.views import STATES, VIEWS, Inspection, describe_session
from compactor.testing import FakeClock
from memory.messages import from_round

#: Of version 1.6.32 of uPlot, as npm delivers it.
UPLOT = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.fixture
def shop() -> Memory:
    """Rounds in every state that a role can see: covered, failed, undone, left out, shortened, shown, open, pinned."""
    memory = Memory("shop")
    for number in range(1, 21):
        memory.append({"role": "user", "content": f"Which hall holds invoice {2_000 + number}?"})
        memory.append({"role": "assistant", "content": f"Invoice {2_000 + number} lies in hall {number}. " * 3})
    memory.rewind("r20.p0")
    failed = memory.create_round("An attempt")
    memory.finish_round(failed, state="failed")
    summarise(memory, 5, summary="Invoice 2003 lies in hall 3.\nThe halls were all looked up.")
    memory.pin("r2.p0")
    memory.append({"role": "user", "content": "Show the ledger."})
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    memory.append({"role": "assistant", "content": "", "tool_calls": [call]})
    memory.append({"role": "tool", "tool_call_id": "c1", "content": "a row of the ledger\n" * 300})
    memory.append({"role": "assistant", "content": "It has 300 rows."})
    other = memory.create_round("Look again")
    memory.add_post(other, send_from="Planner", send_to="Coder", message="Only between these two.")
    memory.add_post(other, send_from="assistant", send_to="User", message="I look.")
    return memory


def test_the_strip_names_what_prompts_show_of_each_round(shop: Memory) -> None:
    """Every round of the log has one state, its tokens as it was said, and those in the prompt."""
    strip = Inspection(shop, "assistant", budget=600).make_strip()
    assert len(strip.states) == len(strip.original) == len(strip.shown) == shop.snapshot.total
    assert strip.states == "ccccc" + "d" * 14 + "udfho"
    assert strip.pinned == [2]
    for state, said, shown in zip(strip.states, strip.original, strip.shown, strict=True):
        assert STATES[state] not in ("covered", "failed", "undone", "left out") or shown == 0
        assert STATES[state] != "shortened" or 0 < shown < said


@pytest.mark.parametrize("budget", [600, 1_500, 100_000])
def test_the_prompt_is_that_of_compose(shop: Memory, budget: int) -> None:
    """The page shows the messages that ``compose`` returns, with the same tokens."""
    seen = Inspection(shop, "assistant", budget=budget).describe_prompt()
    prompt = compose(shop, budget=budget)
    assert (seen.tokens, len(seen.messages)) == (prompt.tokens, len(prompt.messages))
    assert [one.ref for one in seen.messages] == [one.ref for one in prompt.sources]
    assert [one.text for one in seen.messages if not one.text.startswith("calls ")] == [
        one["content"] for one in prompt.messages if one.get("content")
    ]


@pytest.mark.parametrize("budget", [700, 1_500, 100_000])
@pytest.mark.parametrize("summary_as", ["system", "user", "header"])
def test_the_prompt_has_what_the_host_gave_to_the_last_one(shop: Memory, budget: int, summary_as: Any) -> None:
    """System message, plan and the place of the summary are the host's; of tools, the tokens are known."""
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    prompt = compose(
        shop, budget=budget, system="You keep the books.", plan="- read hall 3", tools=tools, summary_as=summary_as
    )
    seen = Inspection(shop, "assistant").describe_prompt()
    assert seen.tokens == prompt.tokens
    assert [(one.role, one.ref) for one in seen.messages] == [
        (one["role"], source.ref) for one, source in zip(prompt.messages, prompt.sources, strict=True)
    ]
    texts = [one.text for one in seen.messages]
    assert any("You keep the books." in text for text in texts)
    assert any("- read hall 3" in text for text in texts)
    assert 0 < seen.tool_tokens < prompt.tokens
    past = Inspection(shop, "assistant").go_back_to(shop.snapshot.total).describe_prompt()
    assert past.tool_tokens == seen.tool_tokens
    assert "You keep the books." in past.messages[0].text


def test_looking_changes_nothing(shop: Memory) -> None:
    """No view writes to the log or moves the budget that the role's compactor goes by."""
    compose(shop, budget=900)
    before = shop.snapshot
    inspection = Inspection(shop, "assistant", budget=50_000)
    for make_view in (*VIEWS.values(), Inspection.make_strip, Inspection.describe_prompt, Inspection.describe_role):
        make_view(inspection)
    inspection.go_back_to(5).describe_prompt()
    assert shop.snapshot is before
    assert inspection.budget == 900


def test_one_sentence_says_why_a_post_is_not_in_the_prompt(shop: Memory) -> None:
    inspection = Inspection(shop, "assistant", budget=600)

    def why(ref: str) -> tuple[str, str]:
        number = int(re.findall(r"\d+", ref)[0])
        post = next(one for one in inspection.describe_round(number).posts if one.ref == ref)
        return post.status, post.reason

    summary = "The summary of generation 1 by small-1 covers rounds r1-r5, this one included"
    assert why("r1.p1") == ("covered", f"{summary}; r1.p1 reloads it.")
    assert why("r2.p0") == ("pinned", f"{summary}; it is pinned, so the prompt has it verbatim above the summary.")
    budget = "The prompt would not fit its budget of 600 tokens, so its oldest rounds were left out"
    assert why("r7.p1") == ("left out", f"{budget}; r7.p1 reloads it.")
    assert why("r20.p1")[0] == "undone"
    assert why("r22.p0") == ("failed", "Its round failed, so no prompt, summary or search shows it.")
    assert why("r23.p2")[0] == "shortened"
    assert "r23.p2 reloads it" in why("r23.p2")[1]
    assert why("r24.p1") == ("hidden", "It is between other agents: assistant neither sent nor received it.")
    assert why("r24.p2") == ("shown", "It is in the prompt as it was said.")
    with pytest.raises(UnknownReference):
        inspection.describe_round(99)


def test_published_reductions_and_erased_posts_are_explained(shop: Memory) -> None:
    shop.redact("r7.p1")
    inspection = Inspection(shop, "assistant")
    assert inspection.describe_round(7).posts[1].status == "erased"
    assert inspection.make_strip().states.count("d") == 0


def test_a_sentence_of_a_summary_leads_to_its_post(shop: Memory) -> None:
    """The very words name their post; else the post that shares most words, and the view says so."""
    (only,) = Inspection(shop, "assistant").list_generations()
    assert (only.happened, only.rounds, only.current, only.model) == ("published", (1, 5), True, "small-1")
    exact, closest = Inspection(shop, "assistant").describe_summary(0).sentences
    assert (exact.change, exact.ref, exact.exact) == ("came in", "r3.p1", True)
    assert (closest.change, closest.exact) == ("came in", False)
    with pytest.raises(UnknownReference):
        Inspection(shop, "assistant").describe_summary(1)


def test_each_sentence_of_an_extract_is_found_word_for_word() -> None:
    memory = Memory()
    for number in range(1, 13):
        memory.append({"role": "user", "content": f"Please book hall {number} for the fair on {number} May 2027."})
        memory.append({"role": "assistant", "content": f"Hall {number} is booked under the number F-{900 + number}."})
    ContextCompactor.for_role(memory, "assistant", CompactorConfig(target_tokens=200)).compact_now()
    sentences = Inspection(memory, "assistant").describe_summary(0).sentences
    said = [one for one in sentences if re.search(r"\d", one.text)]
    assert said
    assert [one.text for one in said if not one.exact and ";" not in one.text] == []


@pytest.mark.parametrize(
    "heading", ["Which halls were looked up:", "## Invoice 2003 in its hall", "**Hall of invoice**"]
)
def test_a_heading_of_a_summary_comes_from_no_post(heading: str) -> None:
    memory = Memory()
    memory.append({"role": "user", "content": "Which hall holds invoice 2003? Which halls were looked up?"})
    memory.append({"role": "assistant", "content": "Invoice 2003 lies in hall 3."})
    memory.append({"role": "user", "content": "Thank you."})
    summarise(memory, 1, summary=f"{heading}\nInvoice 2003 lies in hall 3.")
    sentences = Inspection(memory, "assistant").describe_summary(0).sentences
    assert [one.ref for one in sentences] == [None, "r1.p1"]


def test_the_series_is_shorter_with_compaction(shop: Memory) -> None:
    series = Inspection(shop, "assistant", model="gpt-5-mini").compute_series()
    assert series.rounds == [one.number for one in shop.snapshot.get_rounds("assistant")]
    assert series.marks == [(22, 1)]
    assert series.tokens_with[:19] == series.tokens_without[:19]
    assert series.tokens_with[-1] < series.tokens_without[-1]
    view = Inspection(shop, "assistant", model="gpt-5-mini")
    assert series.tokens_with[-1] == pytest.approx(view.describe_role().prompt_tokens, abs=40)  # beside the pinned post
    assert series.cost_with == sorted(series.cost_with)
    assert series.unit == "dollars"


def test_an_estimate_differs_only_in_the_original_tokens_of_rounds_that_are_not_shown(shop: Memory) -> None:
    """So a page shows a long session before its tokens are counted."""
    exact, estimate = (Inspection(shop, "assistant", estimate=one).describe_role() for one in (False, True))
    assert (exact.estimated, estimate.estimated) == (False, True)
    original = {"original_tokens", "strip", "estimated"}
    assert estimate.model_dump(exclude=original) == exact.model_dump(exclude=original)
    assert (estimate.strip.states, estimate.strip.shown) == (exact.strip.states, exact.strip.shown)
    assert abs(estimate.original_tokens - exact.original_tokens) < exact.original_tokens / 2


def test_no_prompt_of_the_series_is_over_the_budget(shop: Memory) -> None:
    """Also where no compaction had come in time: what was over was left out."""
    whole, cut = (Inspection(shop, "assistant", budget=budget).compute_series() for budget in (None, 300))
    assert max(whole.tokens_with) > 300
    assert cut.tokens_with == [min(one, 300) for one in whole.tokens_with]
    assert cut.tokens_without == whole.tokens_without


def test_the_series_tells_how_long_turns_waited() -> None:
    """For their prompts alone; beside it, what they would have waited for the summarizer."""
    memory, seconds = Memory(), 25.0

    def summarize(request: SummaryRequest) -> str:
        clock.advance(seconds)
        return "The user asks what each item costs; the assistant gives the price in euros."

    clock = FakeClock()
    config = CompactorConfig(threshold=1_000, retain_recent=1)
    with ContextCompactor.for_role(memory, "assistant", config, summarizer=summarize, clock=clock) as compactor:
        for number in range(1, 5):
            memory.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
            memory.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 9})
            if number != 2:
                compose(memory, budget=9_000)
        assert compactor.compact_now(10)
        series = Inspection(memory, "assistant").compute_series()
    assert series.timed_rounds == [1, 3, 4]
    assert all(0 < waited < seconds for waited in series.wait_with)
    assert series.wait_without == [*series.wait_with[:2], series.wait_with[2] + seconds]


def test_the_prompt_of_an_earlier_moment_is_as_it_was(shop: Memory) -> None:
    """The log up to a round is read again: no summary, pin or later round is in that prompt."""
    earlier = Inspection(shop, "assistant").go_back_to(3).describe_prompt()
    wanted = [message for round_ in shop.conversation.rounds[:3] for message in from_round(round_, "assistant")]
    assert [one.text for one in earlier.messages] == [one["content"] for one in wanted]


def test_refused_summaries_say_why(shop: Memory) -> None:
    shop.journal("assistant").note("compaction.failed", {"error": "invented", "failures": 1, "retry_in": 4.0})
    inspection = Inspection(shop, "assistant")
    assert [one.text for one in inspection.list_rejected()] == [
        "the answer named things that its source does not contain"
    ]
    assert "Tries again in 4 s." in inspection.list_decisions()[0].text


def test_a_failure_in_this_process_is_told_once() -> None:
    """The log has it, too, for those who come later. An equal one there is another process's."""
    memory = Memory()
    for number in range(12):
        memory.append({"role": "user", "content": f"What does item-{number} cost?"})
        memory.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 9})
    sorry = "I am sorry, but I cannot help with that."
    with ContextCompactor.for_role(memory, "assistant", summarizer=lambda _request: sorry) as compactor:
        with pytest.raises(CompactionFailed):
            compactor.compact_now(10)
        here = Inspection(memory, "assistant")
        said = [one.text.partition(":")[0] for one in here.list_rejected()]
        assert said == [f"Refused attempt {number} of 2 at rounds 1 to 9" for number in (1, 2)]
        assert [one.name for one in here.list_decisions()].count("compaction.failed") == 1
        (failed,) = (one for one in compactor.events if isinstance(one, Failed))
        memory.journal("assistant").note(failed.name, failed.facts())  # as another process writes it
        here = Inspection(memory, "assistant")
        assert [one.name for one in here.list_decisions()].count("compaction.failed") == 2


def test_every_reason_to_do_nothing_has_words() -> None:
    assert set(SKIPS) == set(Skip)


@pytest.mark.parametrize(
    ("name", "facts", "said"),
    [
        ("compaction.evaluated", {"rounds": 9, "tail": 4, "is_due": False}, "no compaction is due"),
        ("compaction.skipped", {"reason": "limited"}, "waits in the queue"),
        ("compaction.cost_evaluated", {"is_due": False, "reason": "below_best", "tokens": 1_200}, "1,200 tokens now"),
        ("compaction.deferred", {"shows": False, "reason": "saving"}, "Defers the prepared summary"),
        ("compaction.started", {"start": 1, "end": 7, "tokens_before": 900}, "rounds 1 to 7"),
        ("compaction.prepared", {"start": 1, "end": 7}, "passed its checks"),
        ("compaction.rejected", {"attempt": 1, "attempts": 2, "check": "echo"}, "mostly copied"),
        ("compaction.rejected", {"check": "invented", "unknown_identifiers": ("QX-9", "HX-1")}, "such as QX-9, HX-1."),
        ("compaction.published", {"start": 1, "end": 7, "tokens_before": 900, "tokens_after": 90}, "900 to 90"),
        ("compaction.reduced", {"strategy": "drop", "kind": "dropped"}, "drop dropped posts"),
        ("compaction.discarded", {"reason": "rounds_changed"}, "rounds changed"),
        ("compaction.reverted", {"end": 0}, "Reverted: no summary"),
        ("compaction.stopped", {"reason": "session_purged"}, "session purged"),
        ("plan.failed", {"error": "ValueError", "role": "a"}, "error ValueError"),
    ],
)
def test_each_decision_is_a_sentence(name: str, facts: dict[str, object], said: str) -> None:
    assert said in describe_event(name, facts)


def test_a_running_compactor_tells_why_it_did_not_fire() -> None:
    memory = Memory()
    with ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=5)) as compactor:
        memory.append({"role": "user", "content": "Hello"})
        compactor.wait_idle(30)
        inspection = Inspection(memory, "assistant")
        texts = " ".join(one.text for one in inspection.list_decisions())
        assert "its trigger is not due" in texts or "no compaction is due" in texts
        assert inspection.describe_role().state == "idle"
        assert inspection.describe_role().description
        assert inspection.describe_role().skip_reason == "its trigger is not due"


def test_a_file_allows_its_own_scripts_alone(shop: Memory) -> None:
    """The policy names each script and style by its hash, and allows no address; data cannot end its element."""
    shop.append({"role": "user", "content": "</script><script>alert(1)</script>"})
    page = make_offline_page(shop)
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    texts = re.findall(r"(?s)<script(?: type=\"module\")?>(.*?)</script>|<style>(.*?)</style>", page)
    for script, style in texts:
        digest = base64.b64encode(hashlib.sha256((script or style).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(texts) == 4
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert policy.startswith("default-src 'none'")
    data = json.loads(re.findall(r'(?s)id="data">(.*?)</script>', page)[0])
    assert data["session"]["session"] == "shop"
    assert not re.search(r'(?:src|href)="(?!#/|data:,")', page)


def test_the_vendored_chart_library_is_the_published_one() -> None:
    folder = Path(read_file.__code__.co_filename).parent / "static"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in UPLOT} == UPLOT
    assert set(FILES) == {path.name for path in folder.iterdir()} - {"uplot-LICENSE.txt"}


def test_a_session_without_words_has_a_page() -> None:
    memory = Memory("new")
    assert describe_session(memory).roles == []
    assert "new in compactor" in make_offline_page(memory)


def test_show_writes_the_page(tmp_path: Path) -> None:
    """``compactor show SESSION --html FILE``: the file appears when it is complete."""
    url, file = url_of(tmp_path / "chats.db"), tmp_path / "shop.html"
    with session(url) as memory:
        summarise(memory, 3)
        offload(memory, 4)
    result = run("show", "shop", "--store", url, "--html", str(file), "--budget", "2000")
    assert "open it in a browser" in result.out
    data = json.loads(re.findall(r'(?s)id="data">(.*?)</script>', file.read_text(encoding="utf-8"))[0])
    assert data["role/assistant"]["strip"]["states"].startswith("ccch")
