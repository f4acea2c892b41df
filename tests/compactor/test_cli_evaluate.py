"""``compactor evaluate``: what survives of a user's transcripts, what that costs, and that nothing is paid for twice."""

from __future__ import annotations

import _thread
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, dialogue, refusal, run, write_lines
from fenced import ROOT, blocks
from model_server import Answer, Exchange, ModelServer, completion, ok, status

from compactor.cli.evaluate import command
from compactor.cli.evaluate.retention import KINDS

ROUNDS = 12
#: What the conversation counts; each is an identifier.
ABOUT = "AB2040"
MODEL = "model-1"
KEY = "sk-secret-key"


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """An endpoint that fails is asked again at once; gives the seconds that would have been waited."""
    seconds: list[float] = []
    monkeypatch.setattr(command, "EvaluationRunner", partial(command.EvaluationRunner, wait=seconds.append))
    return seconds


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.always(stock_list)
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "chat.jsonl", [{"id": "d", "messages": dialogue(ROUNDS, about=ABOUT)}])


def told(exchange: Exchange) -> str:
    """Return the text of the request."""
    return "\n".join(str(message["content"]) for message in exchange.request.body["messages"])


def list_stock(text: str) -> str:
    """Return a summary of everything that a request says of the stock, in other words than the conversation's."""
    said = re.findall(r"AB2040-(\d+): (\d+) pieces|AB2040-(\d+) has (\d+)", text)
    counts = {int(a or c): int(b or d) for a, b, c, d in said}
    listed = "; ".join(f"{ABOUT}-{number} has {count}" for number, count in sorted(counts.items()))
    return f"The stock in the halls so far: {listed}. Figures are never rounded."


def stock_list(exchange: Exchange) -> None:
    exchange.send(
        200, json.dumps(completion(list_stock(told(exchange)), usage={"prompt_tokens": 1000, "completion_tokens": 100}))
    )


def evaluate(file: Path, server: ModelServer, *words: object) -> Done:
    """Evaluate the server's model with a price of a dollar for a thousand tokens in, and two out."""
    options = ("--model", MODEL, "--base-url", server.base_url, "--price", "1000,2000", "--json", "report.json")
    return run("evaluate", file, "--strategy", "compact_rounds", *options, *words, OPENAI_API_KEY=KEY)


def read_report(name: str = "report.json") -> Any:
    return json.loads(Path(name).read_text(encoding="utf-8"))


def without_times(report: Any) -> Any:
    """Return *report* without what depends on the clock, or on what was paid in which run."""
    account = {
        key: value for key, value in report["account"].items() if key not in ("seconds", "dollars_now", "calls_now")
    }
    return report | {"account": account}


# -- without a model -----------------------------------------------------------------------------------------------------


def test_without_a_model_nobody_is_asked(file: Path, server: ModelServer) -> None:
    """The offline summarizer is measured, even where the environment has a key and an endpoint."""
    done = run("evaluate", file, "--json", "-", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url)
    assert (done.code, done.err, server.requests) == (0, "", [])
    assert [method["name"] for method in done.document["methods"]] == ["offline", "first words", "last words"]
    assert done.document["account"] is None
    assert not list(Path().glob("*answers*"))


def test_the_table_shows_each_kind_beside_the_baselines(file: Path) -> None:
    done = run("evaluate", file)
    assert done.code == 0
    for text in ("offline", "first words", "last words", "ids", "numbers", "prohibitions", "tool outcomes", "invented"):
        assert text in done.out


def test_what_only_quotes_makes_nothing_up(file: Path) -> None:
    """Else the measure itself would be at fault."""
    assert run("evaluate", file, "--json", "-").document["figures"]["grounded"] == 100.0


def test_baselines_are_as_long_as_the_summaries(file: Path) -> None:
    """A longer text keeps more, so only equal lengths can be compared."""
    methods = run("evaluate", file, "--json", "-", "--target", 100).document["methods"]
    first, *others = (method["summary_tokens"] for method in methods)
    assert all(first * 0.9 <= length <= first for length in others)
    assert len({method["compactions"] for method in methods}) == 1


def test_a_short_conversation_is_not_cut_into_crumbs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "short.jsonl", [{"messages": dialogue(2)}])
    assert run("evaluate", path, "--json", "-").document["methods"][0]["compactions"] <= 1


# -- with a model --------------------------------------------------------------------------------------------------------


def test_a_model_is_measured_beside_the_offline_summarizer(file: Path, server: ModelServer) -> None:
    """A model that keeps every count keeps ids and outcomes, and what it is paid is in the report."""
    done = evaluate(file, server)
    assert (done.code, done.err) == (0, "")
    report = read_report()
    assert [method["name"] for method in report["methods"]] == [MODEL, "offline", "first words", "last words"]
    assert report["figures"]["ids@1"] == report["figures"]["prohibitions@1"] == 100.0
    account = report["account"]
    assert account["answers"] == len(server.requests) == account["calls_now"] > 2
    assert account["input_tokens"] == 1000 * account["answers"]
    assert account["dollars"] == account["dollars_now"] == pytest.approx(1.2 * account["answers"])
    assert report["settings"]["endpoint"] == server.base_url


def test_the_offline_summarizer_gets_as_much_room_as_the_model_took(file: Path, server: ModelServer) -> None:
    """However much the model was asked for."""

    def list_little(exchange: Exchange) -> None:
        first = "; ".join(list_stock(told(exchange)).split("; ")[:6])
        exchange.send(200, json.dumps(completion(f"{first}.")))

    server.always(list_little)
    evaluate(file, server)
    lengths = [method["summary_tokens"] for method in read_report()["methods"]]
    assert lengths[0] * 0.5 < lengths[1] <= lengths[0] * 1.2, lengths


def test_a_model_that_keeps_half_is_measured_as_half(file: Path, server: ModelServer) -> None:
    """The measure can be trusted where the truth is known: this one leaves out every second thing, each time."""

    def halve(exchange: Exchange) -> None:
        text = re.sub(r"AB2040-\d*[13579]: \d+ pieces", "", told(exchange))
        exchange.send(200, json.dumps(completion(list_stock(text))))

    server.always(halve)
    evaluate(file, server)
    shares = read_report()["methods"][0]["retention"]["ids"]
    assert {2 * share["part"] - share["of"] for share in shares.values()} <= {-1, 0, 1}
    assert shares["1"]["of"] == ROUNDS


def test_the_figures_of_a_model_fit_on_a_terminal_of_eighty_columns(file: Path, server: ModelServer) -> None:
    """Each figure stands in the line of its kind, under its method."""
    options = ("--model", "gpt-5-mini", "--base-url", server.base_url)
    done = run("evaluate", file, *options, "--json", "wide.json", OPENAI_API_KEY=KEY, COLUMNS="80")
    lines = done.out.splitlines()
    report = read_report("wide.json")
    for label in ("ids", "numbers", "mean of kinds", "invented", "tokens, mean"):
        (line,) = [line for line in lines if line.strip().startswith(label)]
        assert len(line) <= 80
    (ids,) = [line.split()[1:] for line in lines if line.split()[:1] == ["ids"]]
    asked = [report["methods"][0]["retention"]["ids"].get(str(after), {}).get("of") for after in (1, 5, 20)]
    assert ids[:3] == [str(count or 0) for count in asked]
    assert len(ids) == 3 * 5


def test_the_report_holds_no_text_and_no_key(file: Path, server: ModelServer) -> None:
    """It goes to CI, which the conversations may not."""
    done = evaluate(file, server)
    for text in (Path("report.json").read_text(encoding="utf-8"), done.out):
        assert ABOUT not in text
        assert KEY not in text
    assert KEY not in Path("report.json.answers.jsonl").read_text(encoding="utf-8")


def test_what_is_made_up_is_counted_and_marked(file: Path, server: ModelServer) -> None:
    def invent(exchange: Exchange) -> None:
        exchange.send(200, json.dumps(completion(f"{list_stock(told(exchange))} The order is QX-48213.")))

    server.always(invent)
    evaluate(file, server, "--html", "page.html")
    report = read_report()
    assert report["methods"][0]["invented"]["part"] == 1  # once, though every summary repeats it
    assert report["figures"]["grounded"] < 100
    assert "<mark>QX-48213</mark>" in Path("page.html").read_text(encoding="utf-8")


def test_refused_answers_are_counted_by_their_check(file: Path, server: ModelServer) -> None:
    server.answers(ok("Hello! How can I help you today?"), ok("none", usage=None, finish="length"))
    done = evaluate(file, server)
    assert done.code == 0
    account = read_report()["account"]
    assert account["rejected"] == {"greeting": 1}
    assert account["failed"] == 1  # and the greeting before it is not paid for again
    assert account["calls_now"] == account["answers"] + 1 == len(server.requests)
    assert read_report()["figures"]["accepted"] == pytest.approx(100 * (1 - 1 / account["answers"]), abs=0.1)


def test_a_refused_compaction_is_left_out(file: Path, server: ModelServer, waits: list[float]) -> None:
    """Refused at every attempt: the next one covers its rounds too, and nothing is waited for."""
    evaluate(file, server)
    compactions = read_report()["methods"][0]["compactions"]
    greeting = ok("Hello! How can I help you today?")
    server.answers(stock_list, greeting, greeting)
    assert evaluate(file, server, "--answers", "others.jsonl").code == 0
    assert waits == []
    assert read_report()["account"]["rejected"] == {"greeting": 2}
    assert {method["compactions"] for method in read_report()["methods"]} == {compactions - 1}
    assert read_report()["methods"][0]["retention"]["ids"]["1"] == {"part": ROUNDS, "of": ROUNDS}


@pytest.mark.parametrize(
    "none", [ok(""), ok("", finish="content_filter"), ok("The user", finish="length"), ok("", usage=None)]
)
def test_a_part_without_an_answer_is_left_out(file: Path, server: ModelServer, none: Answer) -> None:
    """A filter stops one part of a transcript: that does not keep the others from being measured."""
    evaluate(file, server)
    compactions = read_report()["methods"][0]["compactions"]
    server.answers(stock_list, none, none, none)
    assert evaluate(file, server, "--answers", "others.jsonl").code == 0
    assert {method["compactions"] for method in read_report()["methods"]} == {compactions - 1}
    assert read_report()["account"]["failed"] == 3
    assert read_report()["methods"][0]["retention"]["ids"]["1"] == {"part": ROUNDS, "of": ROUNDS}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ok(""), "no answer in 3 attempts: empty answer: check that --model is a chat model"),
        (status(500), "the server failed"),
        (ok("The user", finish="length"), "cut off at its token limit: choose another --model, or ask for a shorter"),
    ],
)
def test_a_model_that_gives_no_summary_at_all_ends_it_with_what_to_do(
    file: Path, server: ModelServer, answer: Answer, says: str
) -> None:
    server.always(answer)
    done = evaluate(file, server)
    assert says in refusal(done)
    assert not re.search("max_output_tokens|or OPENAI_API_KEY", done.err)  # no option of this command; nor twice
    assert len(server.requests) == 3


def test_a_model_is_asked_for_changes_of_notes_by_default(file: Path, server: ModelServer) -> None:
    """As a compactor asks one that was told nothing else."""
    run("evaluate", file, "--model", MODEL, "--base-url", server.base_url, "--json", "report.json")
    assert read_report()["settings"]["strategy"] == "compact_notes"
    assert read_report()["account"]["format"]["of"] > 0


def test_answers_that_keep_the_form_of_edits_are_counted(file: Path, server: ModelServer) -> None:
    """Asked for edits of notes, a model that writes anew at every other time keeps the form in half of them."""
    edits = iter(range(100))

    def note(exchange: Exchange) -> None:
        text = told(exchange)
        new = list_stock("\n".join(re.findall(r"AB2040-\d+: \d+ pieces", text)))
        if "one change a line" in json.dumps(exchange.request.body) and next(edits) % 2:
            new = f"add [Stock]: {new}"
        exchange.send(200, json.dumps(completion(new)))

    server.always(note)
    evaluate(file, server, "--strategy", "compact_notes", "--target", 2000)
    kept = read_report()["account"]["format"]
    assert 0 < kept["part"] < kept["of"]
    assert read_report()["figures"]["format"] == pytest.approx(100 * kept["part"] / kept["of"], abs=0.1)


# -- money ---------------------------------------------------------------------------------------------------------------


def test_a_dry_run_asks_nobody_and_says_the_calls(file: Path, server: ModelServer) -> None:
    """As many calls as the run then makes, where no answer is rejected."""
    dry = evaluate(file, server, "--dry-run")
    assert (dry.code, server.requests) == (0, [])
    assert [path.name for path in Path().iterdir()] == [file.name]
    evaluate(file, server)
    assert server.requests
    assert dry.out.startswith(f"{len(server.requests)} calls to {server.base_url}")
    assert "about" in dry.out
    assert "$" in dry.out


def test_a_dry_run_says_how_often_it_may_ask_again(file: Path, server: ModelServer) -> None:
    """Where edits are refused, notes on the new rounds are asked for, and then all notes."""
    words = ("--strategy", "compact_notes", "--target", 2000, "--compactions", 4)
    dry = evaluate(file, server, *words, "--dry-run").out
    most = int(re.findall(r"\d+", dry)[0]) * int(re.findall(r"Up to (\d+) times", dry)[0])
    server.answers(stock_list)
    server.always(ok("Done."))
    evaluate(file, server, *words)
    assert most / 2 < len(server.requests) <= most


def test_a_dry_run_needs_no_key(file: Path) -> None:
    done = run("evaluate", file, "--model", "gpt-5-mini", "--dry-run")
    assert done.code == 0
    assert re.search(
        r"calls to https://api\.openai\.com/v1\nabout [\d,]+ input and [\d,]+ output tokens: \$0\.\d+", done.out
    )


def test_a_dry_run_leaves_out_what_is_paid(file: Path, server: ModelServer) -> None:
    evaluate(file, server)
    done = evaluate(file, server, "--dry-run")
    assert done.out.startswith("0 calls")
    assert f"{len(server.requests)} answers paid for already" in done.out


def test_it_stops_before_it_spends_more(file: Path, server: ModelServer) -> None:
    """And reports what there is, as incomplete."""
    done = evaluate(file, server, "--max-spend", 2.5)
    report = read_report()
    assert done.code == 1
    assert 0 < report["account"]["dollars_now"] <= 2.5
    assert "--max-spend" in report["stop_reason"]
    assert "Not everything was measured" in done.out


@pytest.mark.slow
def test_what_was_stopped_goes_on(file: Path, server: ModelServer) -> None:
    """Two runs pay what one would, and report the same."""
    evaluate(file, server, "--max-spend", 2.5)
    paid = len(server.requests)
    evaluate(file, server)
    account = read_report()["account"]
    assert account["calls_now"] == len(server.requests) - paid
    assert account["answers"] == len(server.requests)
    resumed = without_times(read_report())
    evaluate(file, server, "--answers", "others.jsonl")
    assert without_times(read_report()) == resumed


def test_another_model_is_asked_itself(file: Path, server: ModelServer) -> None:
    """The same requests, the same file: but the paid answers are those of the first."""
    evaluate(file, server)
    asked = len(server.requests)
    evaluate(file, server, "--model", "model-2")
    assert len(server.requests) > asked
    assert server.requests[asked].body["model"] == "model-2"
    assert read_report()["account"]["calls_now"] == read_report()["account"]["answers"]


def test_an_answer_without_text_is_paid_for_too(file: Path, server: ModelServer) -> None:
    evaluate(file, server)
    account = read_report()["account"]
    server.answers(ok("", usage={"prompt_tokens": 777, "completion_tokens": 0}))
    evaluate(file, server, "--answers", "others.jsonl")
    assert read_report()["account"]["input_tokens"] == account["input_tokens"] + 777
    assert read_report()["account"]["failed"] == 1


def test_an_answer_that_was_cut_off_is_paid_for_too(file: Path, server: ModelServer) -> None:
    """A reasoning model may think up to its limit, at the full price: else --max-spend would not hold."""
    cut = ok("The user", finish="length", usage={"prompt_tokens": 1000, "completion_tokens": 100})
    server.answers(stock_list, cut)
    done = evaluate(file, server, "--max-spend", 3.5)
    assert (done.code, len(server.requests)) == (1, 2)
    assert "$2.4000 is spent" in done.out


def test_an_unknown_price_cannot_be_limited(file: Path, server: ModelServer) -> None:
    done = run("evaluate", file, "--model", "nobodys-model", "--base-url", server.base_url, "--max-spend", 1)
    assert "--price" in refusal(done)
    assert server.requests == []


# -- interruptions -------------------------------------------------------------------------------------------------------


def test_an_endpoint_that_fails_ends_it_in_a_line_and_loses_nothing(file: Path, server: ModelServer) -> None:
    server.answers(stock_list, stock_list, status(500), status(500), status(500))
    assert "HTTP 500" in refusal(evaluate(file, server))
    paid = Path("report.json.answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(paid) == 2
    done = evaluate(file, server)
    assert done.code == 0
    assert read_report()["account"]["calls_now"] == read_report()["account"]["answers"] - 2


@pytest.mark.parametrize(("code", "remedy"), [(401, "OPENAI_API_KEY"), (403, "permissions"), (404, "--model")])
@pytest.mark.parametrize("paid", [0, 2])
def test_a_refused_key_or_model_ends_it_at_once_with_the_remedy(
    file: Path, server: ModelServer, waits: list[float], code: int, remedy: str, paid: int
) -> None:
    """No later attempt is answered otherwise, and parts without a summary would look like the model's work."""
    server.answers(*[stock_list] * paid, status(code))
    line = refusal(evaluate(file, server))
    assert all(part in line for part in (f"HTTP {code}", remedy, "run it again"))
    assert "or OPENAI_API_KEY" not in line  # not named twice
    assert (len(server.requests), waits) == (paid + 1, [])
    done = evaluate(file, server)
    assert done.code == 0
    account = read_report()["account"]
    assert (account["calls_now"], account["failed"]) == (account["answers"] - paid, 0)


def test_a_failure_that_passes_is_waited_for(file: Path, server: ModelServer, waits: list[float]) -> None:
    """For as long as the endpoint says, or a little longer each time."""
    server.answers(stock_list, status(429, headers={"Retry-After": "7"}), status(503))
    assert evaluate(file, server).code == 0
    assert waits == [7.0, 2.0]
    assert read_report()["account"]["failed"] == 2


def test_a_torn_line_of_answers_is_asked_for_again(file: Path, server: ModelServer) -> None:
    """A process may die while it writes; the next one writes whole lines behind that."""
    evaluate(file, server)
    asked, path = len(server.requests), Path("report.json.answers.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1][:40]]), encoding="utf-8")
    assert evaluate(file, server).code == 0
    assert len(server.requests) == asked + 1
    assert evaluate(file, server).code == 0
    assert len(server.requests) == asked + 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_nobody_else_reads_what_is_written(file: Path, server: ModelServer) -> None:
    """The answers and the page hold text of the conversations."""
    evaluate(file, server, "--html", "page.html")
    for name in ("report.json.answers.jsonl", "page.html", "report.json"):
        assert os.stat(name).st_mode & 0o077 == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background of a shell that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_a_line_and_loses_nothing(file: Path, server: ModelServer) -> None:
    """Ctrl-C while an answer is waited for."""

    def interrupt(exchange: Exchange) -> None:
        _thread.interrupt_main()
        exchange.pause(30)  # until the server closes

    server.answers(stock_list, stock_list, interrupt)
    done = evaluate(file, server)
    assert (done.code, done.err) == (130, "compactor: interrupted\n")
    assert len(Path("report.json.answers.jsonl").read_text(encoding="utf-8").splitlines()) == 2


# -- in CI ---------------------------------------------------------------------------------------------------------------


def test_a_figure_below_its_limit_fails(file: Path, server: ModelServer) -> None:
    server.answers(ok("Hello! How can I help you today?"))
    good = evaluate(file, server, "--fail-under", "ids@1=90", "--fail-under", "accepted=50")
    assert (good.code, good.err) == (0, "")
    bad = evaluate(file, server, "--fail-under", "ids@1=90", "--fail-under", "accepted=99.9")
    assert bad.code == 1
    assert re.fullmatch(r"compactor: accepted is [\d.]+, below 99\.9\n", bad.err)


def test_a_model_whose_answers_are_all_refused_passes_no_limit(file: Path, server: ModelServer) -> None:
    """There is no figure to compare, which must not look like a good one."""
    server.always(ok("I'm sorry, but I can't help with that request."))
    done = evaluate(file, server, "--fail-under", "retention=80")
    assert done.code == 1
    assert re.fullmatch(r"compactor: nothing was measured: of \d+ answers, none was accepted\n", done.err)
    assert "Nothing was measured: of " in done.out


def test_a_run_that_stopped_passes_no_limit(file: Path, server: ModelServer) -> None:
    done = evaluate(file, server, "--max-spend", 3, "--fail-under", "ids@1=1")
    assert done.code == 1
    assert "not everything was measured" in done.err


def test_a_comparison_does_not_mix_with_json(file: Path) -> None:
    """What another program reads is one JSON document, and no wish is dropped silently."""
    assert "pass --json FILE" in refusal(run("evaluate", file, "--json", "-", "--compare", "old.json"))


def test_two_runs_are_compared(file: Path, server: ModelServer, tmp_path: Path) -> None:
    run("evaluate", file, "--json", "old.json")
    done = evaluate(file, server, "--compare", "old.json")
    assert re.search(r"ids +│ +[\d.]+ │ +[\d.]+ │ +[+-][\d.]+", done.out)
    assert f"model: offline before, {MODEL} now" in done.out
    assert "cannot be compared" not in done.out
    other = write_lines(tmp_path / "other.jsonl", [{"messages": dialogue(ROUNDS, about="part")}])
    assert "cannot be compared" in run("evaluate", other, "--compare", "old.json").out


# -- the page ------------------------------------------------------------------------------------------------------------


def test_the_page_executes_nothing_that_was_said(tmp_path: Path, server: ModelServer) -> None:
    """Every text is escaped: of the conversation, its name, the summary, what is invented."""
    evil = "<script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>"
    messages = [
        message | {"content": f"{message['content']} {evil}"} if message["role"] == "user" else message
        for message in dialogue(ROUNDS, about=ABOUT)
    ]
    path = write_lines(tmp_path / "evil.jsonl", [{"id": evil, "messages": messages}])
    server.always(
        lambda exchange: exchange.send(
            200, json.dumps(completion(f"{list_stock(told(exchange))} Seen: <b>ZQ-99182</b>."))
        )
    )
    evaluate(path, server, "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<mark>ZQ-99182</mark>" in page
    tags = {name.lower() for name in re.findall(r"<(\w+)", page)}
    assert tags.isdisjoint({"script", "img", "b", "a", "iframe", "link", "object"})
    assert "default-src 'none'" in page
    assert not re.search(r"<[^>]*\b(?:src|href|on\w+)=", page)


def test_summaries_stand_beside_their_sources(file: Path) -> None:
    run("evaluate", file, "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    for number in range(1, ROUNDS + 1):
        assert f"Round {number}<" in page
        assert f"How many of {ABOUT}-{number} are in hall" in page
    assert "Compaction 1, rounds 1 to" in page


def test_the_page_has_all_figures_of_the_table(file: Path, server: ModelServer) -> None:
    """Also what was made up, the lengths that make the columns comparable, and checks set off as parts of a sum."""
    server.answers(ok("Hello! How can I help you today?"))
    done = evaluate(file, server, "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert done.out.partition(".\n")[0] in page
    for method in read_report()["methods"]:
        assert f'<td colspan="3">{method["summary_tokens"]:,.0f}</td>' in page
    assert '<tr><td>invented</td><td colspan="3">0.0</td>' in page
    assert "<td>  greeting</td>" in page
    assert re.search(r"td:first-child {[^}]*white-space: pre-wrap", page)


# -- the page of the documentation ---------------------------------------------------------------------------------------


def test_the_commands_of_the_page_run(file: Path, server: ModelServer) -> None:
    """In order, as a reader types them."""
    file.rename("transcript.jsonl")
    commands = [line for block in blocks("docs/evaluate.md", "console") for line in block.text.splitlines()]
    assert len(commands) == 5
    for line in commands:
        sign, name, *words = line.split()
        assert (sign, name) == ("$", "compactor")
        done = run(*words, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url)
        assert (done.code, done.err) == (0, ""), line


def test_the_page_names_every_option_and_figure() -> None:
    page = (ROOT / "docs/evaluate.md").read_text(encoding="utf-8")
    options = re.findall(r"^  (--[a-z-]+) ", run("evaluate", "--help").out, re.MULTILINE)
    assert len(options) > 10
    for name in ({*options} - {"--log-events"}) | {*KINDS} | {"retention", "grounded", "accepted", "format"}:
        assert f"`{name}`" in page or f"{name} " in page, name


# -- it refuses in one line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--base-url", "http://localhost:1/v1"), "--model"),
        (("--max-spend", "1"), "--model"),
        (("--fail-under", "beauty=80"), "retention"),
        (("--fail-under", "retention"), "retention=80"),
        (("--fail-under", "retention=800"), "100"),
        (("--json", "nowhere/report.json"), "folder"),
        (("--json", "chat.jsonl"), "overwritten"),
        (("--html", "."), "folder"),
        (("--html", "both", "--json", "both"), "overwritten"),
        (("--model", "m", "--max-spend", "nan"), "--max-spend"),
        (("--compare", "chat.jsonl"), "no report"),
        (("--compare", "nothing.json"), "no report"),
        (("--prompt", "nothing.yaml"), "nothing.yaml"),
        (("--model", "m", "--price", "cheap"), "--price"),
        (("--model", "m", "--price", "0,1"), "--price"),
        (("--model", "m", "--price", "nan,1"), "--price"),
        (("--model", "m"), "OPENAI_API_KEY"),
        (("--model", "m", "--base-url", "http://localhost:1/v1", "--answers", "nowhere/a"), "folder"),
    ],
)
def test_what_cannot_run_says_so(words: tuple[str, ...], says: str, file: Path) -> None:
    assert says in refusal(run("evaluate", file, *words))
    assert file.read_text(encoding="utf-8").startswith('{"id"')


def test_a_transcript_without_rounds_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "empty.jsonl", [{"messages": []}, {"messages": []}])
    assert "no round" in refusal(run("evaluate", path))
