"""``compactor replay``: a transcript through a Memory and a compactor, with figures that can be relied on."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, dialogue, refusal, run, write_lines
from model_server import ModelServer, ok, status

from compactor import (
    CompactorConfig,
    Event,
    OpenAISummarizer,
    Prompt,
    Report,
    SummarizerError,
    Summary,
    SummaryRequest,
    background,
    count_message,
    count_prompt,
    count_tokens,
)
from compactor.cli import replay as module
from compactor.cli.replay import MAX_BUDGET, Replay, choose_budget, read_transcript, sum_results
from compactor.cli.terminal import CommandError
from compactor.presets import STEPS
from compactor.testing import ScriptedSummarizer
from memory import Memory

LONG = tuple(dialogue(16))
#: Of the conversations in a file.
ROUNDS = (16, 8, 2)
QUICK = CompactorConfig(threshold=5, retain_recent=2, backoff_initial=0.001, backoff_max=0.001)
PRESETS = ("auto_context", "selective", "memory_with_compress", "context_offload")


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Conversations of so many ``ROUNDS``."""
    return write_lines(tmp_path / "chats.jsonl", [{"id": f"d{n}", "messages": dialogue(n)} for n in ROUNDS])


def working(about: str) -> Iterator[dict[str, Any]]:
    """Give a conversation with small and large results, by twos and by dozens in a round."""
    yield {"role": "system", "content": "You keep a stock list."}
    for number in range(1, 4):
        yield {"role": "user", "content": f"How many of {about}-{number} are there? Never round figures."}
        for step in range(7 if number == 2 else 2):
            arguments = json.dumps({"name": f"{about}-{number}", "hall": step})
            call = {"id": f"{number}-{step}", "type": "function", "function": {"name": "count", "arguments": arguments}}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
            lines = (
                f"{about}-{number}, hall {step}, shelf {n}: {n * 37} pieces\n" for n in range(70 if step == 1 else 6)
            )
            yield {"role": "tool", "tool_call_id": f"{number}-{step}", "content": "".join(lines)}
        yield {"role": "assistant", "content": f"There are {number * 37} pieces of {about}-{number}."}


def replayed(messages: Sequence[Any], budget: int, summarizer: object | None = None, **more: Any) -> dict[str, Any]:
    """Return the figures of a conversation of these messages."""
    return Replay(QUICK, budget, summarizer, **more).run(("x", messages))[0]


def without_times(document: Any) -> Any:
    """Return a document without the figures that depend on the machine's speed."""
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if not key.endswith(("_ms", "_seconds"))}
    return [without_times(item) for item in document] if isinstance(document, list) else document


# -- figures ----------------------------------------------------------------------------------------------------------


def test_a_conversation_is_compacted_and_every_prompt_fits(file: Path) -> None:
    """The promise of the library on a user's own file."""
    document = run("replay", file, "--json", "--budget", 1000, "--threshold", 4).document
    totals = document["totals"]
    assert [one["name"] for one in document["conversations"]] == ["d16", "d8", "d2"]
    assert [one["rounds"] for one in document["conversations"]] == [*ROUNDS]
    assert (totals["conversations"], totals["rounds"], totals["messages"]) == (3, 26, 26 * 4 + 3)
    assert totals["prompts"] == 26 * 2 + 3  # one for each answer, and a last one for each conversation
    assert totals["prompts_over_budget"] == 0
    assert totals["compactions"] > 2
    assert totals["failures"] == 0
    long, _, short = document["conversations"]
    assert 11 < long["covered_rounds"] < 16
    assert long["prompt_tokens"] <= 1000 < long["raw_tokens"]
    assert long["tokens_of_all_prompts"] < long["raw_tokens_of_all_prompts"]
    assert (short["compactions"], short["prompt_tokens"]) == (0, short["raw_tokens"])


def test_raw_tokens_are_those_of_the_messages_in_the_file(file: Path) -> None:
    """What is compared with is what sending everything would cost, counted by itself here."""
    for one, rounds in zip(run("replay", file, "--json").document["conversations"], ROUNDS, strict=True):
        assert one["raw_tokens"] == count_prompt(dialogue(rounds), count_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--each", "--joined"])
def test_the_same_file_gives_the_same_figures(file: Path, how: str) -> None:
    """To the token: nothing depends on when the compactor's thread got to run."""
    first, second = (run("replay", file, how, "--json", "--budget", 900, "--threshold", 4).document for _ in "12")
    assert first["totals"]["compactions"] > 5
    assert without_times(first) == without_times(second)


def test_joined_conversations_are_one(file: Path) -> None:
    """Every message is there, later system messages too, and the rounds are covered across the seams."""
    document = run("replay", file, "--joined", "--json", "--budget", 1500).document
    (one,) = document["conversations"]
    assert document["joined"] is True
    assert (one["name"], one["messages"], one["rounds"]) == ("1-3 joined", 26 * 4 + 3, 26)
    assert one["covered_rounds"] > 15
    assert one["prompts_over_budget"] == 0
    said = [message for rounds in ROUNDS for message in dialogue(rounds)]
    assert one["raw_tokens"] == count_prompt(said, count_tokens)


@pytest.fixture
def no_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extractive summarizer makes something of everything, so here is one that makes nothing of anything."""
    monkeypatch.setattr(background, "find_summarizer", lambda _config: ScriptedSummarizer(default=""))


@pytest.mark.usefixtures("no_summaries")
def test_a_failing_summary_is_tried_again_at_the_same_place_every_time() -> None:
    """Figures repeat even where compactions fail; once the circuit is open, rounds are extracted offline."""
    said = tuple(
        chain.from_iterable(
            ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!" * 9}) for _ in range(30)
        )
    )
    (first, _), (second, _) = (Replay(QUICK.copy_with(max_tokens=300), 300).run(("marks", said)) for _ in "12")
    assert first["failures"] > 20
    assert first["compactions"] > 0
    assert first["covered_rounds"] > 20
    assert first["prompts_over_budget"] == 0
    assert without_times(first) == without_times(second)


def test_options_reach_the_compactor(file: Path) -> None:
    """--threshold and --retain say when, and how much stays."""
    document = run("replay", file, "--json", "--threshold", 2, "--retain", 1, "--budget", 100_000).document
    assert (document["threshold"], document["retain_recent"], document["prompt"]) == (2, 1, "assistant")
    # With 3 rounds behind the end it is due, and leaves the newest.
    assert [one["covered_rounds"] for one in document["conversations"]] == [14, 6, 0]


def test_a_conversation_of_nothing_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    path.write_text('{"messages": []}', encoding="utf-8")
    document = run("replay", path, "--json").document
    assert document["totals"]["rounds"] == 0
    assert run("replay", path).code == 0


@pytest.mark.slow
def test_the_real_dialogues_fit_each_and_joined(data: list[dict[str, Any]], tmp_path: Path) -> None:
    """Real tool-calling dialogues, each alone and all as one conversation: no prompt is over the budget."""
    path = write_lines(tmp_path / "airline.jsonl", data[:4])
    each = run("replay", path, "--json", "--budget", 2500, "--threshold", 4).document["totals"]
    one = run("replay", path, "--joined", "--json", "--budget", 4000).document["totals"]
    rounds = sum(message["role"] == "user" for dialogue in data[:4] for message in dialogue["messages"])
    assert each["rounds"] == one["rounds"] == rounds
    assert each["prompts_over_budget"] == one["prompts_over_budget"] == 0
    assert each["compactions"] > 8
    assert one["covered_rounds"] > rounds - 12
    assert one["tokens_of_all_prompts"] < one["raw_tokens_of_all_prompts"] / 2


def test_the_prompt_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """That no prompt is over the budget is measured, not taken from who promises it."""

    def too_long(memory: Memory, *args: Any, **options: Any) -> Any:
        return Prompt([{"role": "user", "content": "word " * 500}], 5, Report(5, 5))

    monkeypatch.setattr(module, "compose", too_long)
    assert replayed(LONG[:5], 100)["prompts_over_budget"] == 3


def test_torn_calls_and_missing_queries_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promises are looked up in the prompts themselves: who breaks one is found out."""

    def lossy(memory: Memory, *args: Any, **options: Any) -> Any:
        shown = [message for message in memory.messages() if message["role"] not in ("tool", "user")]
        return Prompt(shown, 5, Report(5, 5))

    monkeypatch.setattr(module, "compose", lossy)
    done = replayed(LONG[:9], 1000)
    assert (done["prompts"], done["orphaned_calls"], done["queries_not_verbatim"]) == (5, 6, 5)
    assert replayed(LONG[:3], 1000)["orphaned_calls"] == 0  # its call waits in the file too


def test_a_budget_is_chosen_at_which_something_happens(tmp_path: Path) -> None:
    """A quarter of the longest conversation; more if a prompt would not fit, and never more than there is a use for.
    System messages stay, so that a quarter is one of the rest."""
    path = write_lines(tmp_path / "short.jsonl", [{"messages": dialogue(n)} for n in (2, 8)])
    document = run("replay", path, "--json").document
    raw = max(one["raw_tokens"] for one in document["conversations"])
    rest = raw - count_message(dialogue(8)[0], count_tokens)
    assert document["budget"] == raw - rest + rest // 4 + 1
    assert document["totals"]["compactions"] > 0
    assert document["totals"]["prompts_over_budget"] == 0
    header = {"role": "system", "content": "Rule. " * 2_000}
    headed = write_lines(tmp_path / "headed.jsonl", [{"messages": [header, *dialogue(8)]}])
    document = run("replay", headed, "--json").document
    assert document["budget"] == raw - rest + rest // 4 + 1 + count_message(header, count_tokens)
    assert document["totals"]["compactions"] > 0
    long_message = [{"role": "user", "content": "word " * 2_000}, {"role": "assistant", "content": "Yes."}]
    one_message = write_lines(tmp_path / "one.jsonl", long_message)
    assert 2_000 < run("replay", one_message, "--json").document["budget"] < 8_100
    endless = write_lines(tmp_path / "long.jsonl", [{"messages": dialogue(600)}])
    assert choose_budget(read_transcript(str(endless)), "") == MAX_BUDGET


def test_the_advice_where_nothing_was_shortened_can_be_followed(tmp_path: Path) -> None:
    """A smaller budget is no advice where the command chose the smallest one that holds a prompt."""
    path = write_lines(tmp_path / "one.jsonl", [{"role": "user", "content": "word " * 2_000}])
    assert "Try a longer conversation." in run("replay", path).out
    assert "Try a smaller --budget." in run("replay", path, "--budget", 5_000).out


@pytest.mark.slow
def test_the_tokens_of_each_prompt_are_plotted(file: Path, tmp_path: Path) -> None:
    """On the terminal, in the page, and as numbers."""
    page = tmp_path / "replay.html"
    done = run("replay", file, "--html", page)
    assert done.code == 0
    for shown in (done.out, page.read_text(encoding="utf-8")):
        assert "tokens of prompts 1 to 33, conversation d16" in shown
        assert "everything" in shown
        assert "█" in shown
        assert "░" in shown
    one = run("replay", file, "--json").document["conversations"][0]
    assert len(one["sizes"]) == one["prompts"] == 33
    assert one["sizes"][-1] == [one["raw_tokens"], one["prompt_tokens"]]


def test_what_was_said_is_text_in_the_page(tmp_path: Path) -> None:
    """Nothing in a conversation, or in a file's name, becomes a part of the page."""
    said = "<script>alert(1)</script> {code} </pre><img src=x onerror=1> \x1b[2J"
    path = write_lines(tmp_path / "<b>{title}.jsonl", [{"id": said, "messages": [{"role": "user", "content": said}]}])
    page = tmp_path / "page.html"
    assert run("replay", path, "--show", "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in text
    assert "{title}.jsonl</title>" in text
    assert not re.search("<script|<img|<b>|\x1b", text)
    assert text.count("</pre>") == 1


def test_a_long_text_does_not_make_the_page_wider(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "wide.jsonl", [{"role": "user", "content": "No line is as long as this. " * 12}])
    page = tmp_path / "page.html"
    assert run("replay", path, "--show", "--html", page).code == 0
    shown = re.sub("<[^>]+>", "", page.read_text(encoding="utf-8").partition("<pre>")[2])
    assert "No line is as long as this." in shown
    assert max(map(len, html.unescape(shown).splitlines())) <= 140


# -- presets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """Two conversations with results of all sizes, many of them in one round."""
    return write_lines(
        tmp_path / "heavy.jsonl", [{"id": about, "messages": list(working(about))} for about in ("bolt", "rivet")]
    )


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("how", ["--each", "--joined"])
def test_every_preset_keeps_the_promises_and_shows_what_it_saved(preset: str, how: str, heavy: Path) -> None:
    """Each under the same pressure: all prompts fit, nothing is torn, and the same figures come twice."""
    first, second = (run("replay", heavy, how, "--preset", preset, "--budget", 1500, "--json").document for _ in "12")
    assert (first["preset"], first["threshold"], first["budget"]) == (preset, None, 1500)
    sums = first["totals"]
    assert (sums["prompts_over_budget"], sums["orphaned_calls"], sums["queries_not_verbatim"]) == (0, 0, 0)
    saved = sums["strategies"]
    assert sum(one["overlays"] for one in saved.values()) == sums["compactions"] + sums["reductions"] > 5
    assert sum(one["tokens_saved"] for one in saved.values()) > 4_000
    assert all(one["tokens_saved"] == one["tokens_before"] - one["tokens_after"] for one in saved.values())
    assert without_times(first) == without_times(second)


def test_presets_have_their_own_strategies_in_their_order() -> None:
    """Also those that saved nothing, with zeros: that is a result as well."""
    said = json.dumps(dialogue(2))

    def names(*words: object) -> list[str]:
        return list(run("replay", "-", "--json", *words, said=said).document["totals"]["strategies"])

    assert names() == ["compact_rounds"]
    assert names("--preset", "auto_context") == list(STEPS)
    assert names("--preset", "selective")[-1] == "compact_rounds"
    assert names("--preset", "context_offload") == ["offload_large", "compact_view", "compress_tool_runs"]


def test_the_budget_is_the_presets_own_limit() -> None:
    """Twice the budget, half the pressure: what is due is due by it."""
    options = [Replay(QUICK, budget, preset=preset).make_options() for preset in PRESETS for budget in (1500, 3000)]
    assert [made["config"].max_tokens for made in options] == [1500, 3000] * 4
    model = Replay(CompactorConfig(model="gpt-4"), 900, preset="selective").make_options()["config"].model
    assert model == "gpt-4"


def test_sums_are_those_of_the_conversations(heavy: Path) -> None:
    document = run("replay", heavy, "--preset", "context_offload", "--budget", 1200, "--json").document
    one, other = document["conversations"]
    for part in ("strategies", "levels"):
        assert document["totals"][part]
        for name, summed in document["totals"][part].items():
            for figure, value in summed.items():
                assert value == pytest.approx(one[part][name][figure] + other[part][name][figure], abs=0.002)


def test_what_compose_still_had_to_do_is_shown(heavy: Path) -> None:
    """Where overlays are late or too few, prompts are shortened when they are made, and that is told."""
    pressed = run("replay", heavy, "--budget", 700, "--threshold", 1000)
    assert re.search(r"shortened anew in each prompt", pressed.out)
    assert re.search(r"rounds left out, entirely or in part\W+[1-9]", pressed.out)
    free = run("replay", heavy, "--budget", 1_000_000)
    assert "shortened anew" not in free.out
    assert re.search(r"newest user messages not verbatim\W+0 ", free.out)
    assert re.search(r"tool calls parted from their results\W+0 ", free.out)


def test_a_table_shows_what_each_strategy_saved(heavy: Path) -> None:
    out = run("replay", heavy, "--preset", "selective", "--budget", 1500).out
    assert "saved by strategies in the background" in out
    assert re.search(r"│compact_rounds\W+[1-9]", out)
    assert re.search(r"│drop\(tool_result\)\W+[1-9]", out)


def test_what_a_preset_decides_itself_is_not_given_with_it(file: Path) -> None:
    """An option that would do nothing is refused; its default is no wish of the user's."""
    for option, value in (("--threshold", 5), ("--retain", 1), ("--prompt", "assistant")):
        said = refused(file, "--preset", "selective", option, value)
        assert said.startswith(f"{option} is for the default strategies")


def test_a_budget_too_small_for_anything_is_refused_with_a_preset_too(file: Path) -> None:
    for preset in PRESETS:
        assert re.search(r"need \d+ tokens, and the budget is 20", refused(file, "--preset", preset, "--budget", 20))


def test_a_model_summarises_for_a_preset(server: ModelServer, heavy: Path) -> None:
    """The preset's strategies ask whoever summarises."""
    halls = [ok(f"Parts were counted in hall {number}, and no figure was rounded.") for number in range(100)]
    server.answers(*halls)
    words = ("--summarizer", "openai", "--base-url", server.base_url, "--preset", "memory_with_compress")
    done = run("replay", heavy, *words, "--budget", 2500, "--json")
    assert done.code == 0, done.err
    saved = done.document["totals"]["strategies"]["compact_rounds"]
    assert len(server.requests) >= saved["requests"] >= saved["overlays"] > 0


# -- what is printed --------------------------------------------------------------------------------------------------


def test_few_conversations_get_a_row_each_and_all_get_totals(file: Path) -> None:
    done = run("replay", file, "--budget", 1500)
    assert (done.code, done.err) == (0, "")
    for name in ("d16", "d8", "d2"):
        assert re.search(rf"[│|]{name} ", done.out)
    assert "3 conversations: 107 messages" in done.out
    assert re.search(r"prompts over the budget\W+0 ", done.out)
    assert re.search(r"rounds\W+26 ", done.out)


def test_many_conversations_get_totals_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", [{"id": f"d{n}", "messages": dialogue(1)} for n in range(21)])
    out = run("replay", path).out
    assert "21 conversations: 105 messages" in out
    assert "d7" not in out


@pytest.mark.usefixtures("no_summaries")
def test_failed_summaries_are_told(tmp_path: Path) -> None:
    """A figure that hides failures would be worth nothing."""
    path = write_lines(
        tmp_path / "marks.jsonl", [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}] * 30
    )
    out = run("replay", path, "--threshold", 3).out
    assert re.search(r"\d+ attempts at a summary failed; what was there before stayed in place", out)


@pytest.mark.slow
def test_the_last_prompt_is_shown_when_asked_for(file: Path) -> None:
    """The longest conversation's: roles, the summary as a whole, calls, and other texts shortened."""
    assert "[system]" not in run("replay", file, "--budget", 1500).out
    out = run("replay", file, "--budget", 1500, "--show").out
    assert "The last prompt of conversation d16, the longest of 3 conversations" in out
    for part in ("[system]\nYou keep a stock list.", "[Conversation History Summary]", "Covers rounds 1-", "[user]\n"):
        assert part in out
    assert 'calls look_up({"name": "item-16"})' in out
    assert "[tool]\nitem-16: 592 pieces, ok" in out


def test_long_texts_are_shortened_and_say_by_how_much(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "long.jsonl", [{"role": "user", "content": "x" * 1000}])
    out = run("replay", path, "--show").out
    assert "x" * 400 + " [... 600 more characters]" in out
    assert "x" * 401 not in out


def test_what_was_said_is_printed_as_text(tmp_path: Path) -> None:
    """Markup in a conversation is not markup, and nothing in it reaches the terminal as a command."""
    said = "[bold]no[/bold] [red] :smile: \x1b[2J\x1b]0;title\x07 \x9b31m \u202e \x00 \ud800 end"
    parts = [{"type": "text", "text": "in parts \x1b[1m"}]
    call = {"id": "c", "type": "function", "function": {"name": "f\x1b", "arguments": '{"a":\n"\x07"}'}}
    path = write_lines(
        tmp_path / "evil.jsonl",
        [{"role": "user", "content": said}, {"role": "assistant", "content": parts, "tool_calls": [call]}],
    )
    done = run("replay", path, "--show", "--budget", "8000")
    assert done.code == 0
    expected = r"[bold]no[/bold] [red] :smile: \x1b[2J\x1b]0;title\x07 \x9b31m \u202e \x00 \ud800 end"
    assert expected in done.out
    assert r"in parts \u001b[1m" in done.out
    assert r'calls f\x1b({"a": "\x07"})' in done.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.out)


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_only(file: Path) -> None:
    """On standard error, so that what is printed can be kept; nothing of it in a log."""
    on_terminal = run("replay", file, terminal=True)
    assert "replaying" in on_terminal.err
    assert "107" in on_terminal.err
    assert "replaying" not in on_terminal.out
    assert run("replay", file).err == ""


@pytest.mark.slow
def test_events_go_to_standard_error_when_asked_for(file: Path) -> None:
    """As JSON lines with numbers, and never with what was said."""
    done = run("replay", file, "--log-events", "json", "--json", "--budget", 1500, terminal=True)
    events = [json.loads(line) for line in done.err.splitlines()]
    published = [event for event in events if event["event"] == "compaction.published"]
    assert len(published) == done.document["totals"]["compactions"]
    assert "item-" not in done.err
    assert "compaction.published" in run("replay", file, "--log-events", "console").err


# -- a model as the summarizer ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_summarises_when_asked_for(server: ModelServer, file: Path) -> None:
    """It is asked with the shipped prompt that was chosen, and its summary stands in the prompt."""
    server.always(ok("Halls 1 to 6 hold items; figures are never rounded."))
    done = run(
        "replay",
        file,
        "--summarizer",
        "openai",
        "--model",
        "m-9",
        "--base-url",
        server.base_url,
        "--prompt",
        "default",
        "--threshold",
        4,
        "--json",
    )
    assert done.code == 0, done.err
    assert done.document["summarizer"] == "openai"
    assert len(server.requests) == done.document["totals"]["compactions"] > 2
    assert {request.body["model"] for request in server.requests} == {"m-9"}
    shown = run("replay", file, "--summarizer", "openai", "--base-url", server.base_url, "--show")
    assert "Halls 1 to 6 hold items; figures are never rounded." in shown.out


def test_a_model_that_fails_now_and_then_is_asked_again(server: ModelServer) -> None:
    """Its back-offs are waited for, as a chat would have gone on meanwhile and come back to it."""
    server.answers(status(500), status(429), ok("Halls hold items."))
    server.always(ok("Halls hold items."))
    with OpenAISummarizer("m", base_url=server.base_url) as summarizer:
        done = replayed(LONG, 8000, summarizer)
    assert done["failures"] == 2
    assert done["covered_rounds"] > 10


def test_a_model_that_always_fails_ends_the_replay(server: ModelServer) -> None:
    """After three times in a row, with its own reason, in the words of the options."""
    server.always(status(500))
    with (
        OpenAISummarizer("m", base_url=server.base_url) as summarizer,
        pytest.raises(CommandError, match=r"failed \d+ times in a row: .*HTTP 500"),
    ):
        replayed(LONG, 8000, summarizer)
    assert len(server.requests) >= 3  # further attempts may begin before the replay looks


@pytest.mark.parametrize(("code", "remedy"), [(401, "OPENAI_API_KEY"), (403, "--model"), (404, "--model")])
def test_a_refused_key_or_model_ends_the_replay_at_once(server: ModelServer, code: int, remedy: str) -> None:
    """With the remedy, and not after back-offs: no later attempt is answered otherwise."""
    server.always(status(code))
    with (
        OpenAISummarizer("m", base_url=server.base_url) as summarizer,
        pytest.raises(CommandError, match=rf"^http\S+ answered HTTP {code} .*{remedy}"),
    ):
        replayed(LONG, 8000, summarizer)


def test_a_slow_summarizer_is_waited_for() -> None:
    """The figures of a replay do not depend on how long a model took."""
    slow = ScriptedSummarizer(default="Parts were counted in all the halls.").hold()
    release = threading.Timer(0.7, slow.release)  # longer than one of the replay's waits
    release.start()
    done = replayed(LONG[:40], 8000, slow)
    release.join()
    assert done["compactions"] == len(slow.requests) > 0


def test_a_summarizer_without_a_reason_of_its_own_is_named_by_its_error() -> None:
    class Broken(SummarizerError):
        pass

    def broken(request: SummaryRequest) -> Summary:
        raise Broken("base_url= is odd")

    with pytest.raises(CommandError, match=r"\d+ times in a row: --base-url is odd"):
        replayed(LONG, 8000, broken)


def test_a_machine_without_threads_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is compacted, which is counted as failures, and the prompts still fit."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = replayed(LONG, 1000)
    assert (done["compactions"], done["prompts_over_budget"]) == (0, 0)
    assert done["failures"] > 20


@pytest.mark.slow
def test_hooks_are_told_of_every_event() -> None:
    seen: list[Event] = []
    done = replayed(LONG, 8000, hooks=[seen.append])
    assert [event.name for event in seen].count("compaction.published") == done["compactions"] > 0


def test_totals_are_sums_and_the_longest_time() -> None:
    one, other = ({"name": "a", "rounds": rounds, "longest_compose_ms": ms} for rounds, ms in ((1, 3.0), (4, 2.0)))
    assert sum_results([one, other]) == {"conversations": 2, "rounds": 5, "longest_compose_ms": 3.0}


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(*words: object, **more: Any) -> str:
    return refusal(run("replay", *words, **more))


@pytest.mark.slow
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, file: Path) -> None:
    """No traceback, whatever is wrong, and the remedy in the line."""
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"messages": []}\n{"messages": [\n', encoding="utf-8")
    assert "cannot be read" in refused(tmp_path / "gone.json")
    assert "is a folder" in refused(tmp_path)
    assert "is not JSON (line 2" in refused(broken)
    assert "Missing argument 'FILE'" in refused()
    assert "--budget" in refused(file, "--budget", 0)
    assert "--threshold" in refused(file, "--threshold", -1)
    assert "--summarizer" in refused(file, "--summarizer", "nobody")
    assert "shipped prompts are assistant, code_interpreter, " in refused(file, "--prompt", "nope")
    assert "--preset" in refused(file, "--preset", "nobodys")
    assert "No such option" in refused(file, "--nope")
    assert "standard input: is empty" in refused("-")


def test_a_budget_that_is_too_small_names_the_place_and_what_is_needed(file: Path) -> None:
    said = refused(file, "--budget", 20)
    assert said.startswith("conversation d16, message 3: ")
    assert re.search(r"need \d+ tokens, and the budget is 20", said)


def test_an_endpoint_must_be_configured_for_a_model(file: Path) -> None:
    assert "set OPENAI_API_KEY, or pass --base-url" in refused(file, "--summarizer", "openai")


def test_an_address_that_is_none_is_refused(file: Path) -> None:
    assert "--base-url must be an address" in refused(file, "--summarizer", "openai", "--base-url", "nowhere")


def test_the_transcript_may_come_from_standard_input() -> None:
    said = json.dumps({"messages": dialogue(3)})
    done: Done = run("replay", "-", "--json", said=said)
    assert done.document["totals"]["rounds"] == 3
