"""Lines of what tools did: a call keeps its outcome, errors and changes come first, stored lines read back."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import USER, CompactedMessage, ExtractiveSummarizer, Post, Round, SummaryRequest, ToolCall, count_tokens
from compactor.summarizers.actions import Action, choose_files, choose_lines, merge_actions, parse_action
from compactor.summarizers.actions import find_actions as actions_of
from compactor.summarizers.statements import Section


def calls(*called: tuple[str, str, object]) -> Post:
    made = tuple(
        ToolCall(id=id_, name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for id_, name, given in called
    )
    return Post(send_from="assistant", send_to="tool", tool_calls=made)


def result(id_: str, text: str) -> Post:
    return Post(send_from="tool", send_to="assistant", message=text, tool_call_id=id_)


def done(*posts: Post, query: str = "") -> Round:
    return Round(user_query=query, state="finished", post_list=posts)


def run(name: str, arguments: object, output: str, id_: str = "c") -> Round:
    return done(calls((id_, name, arguments)), result(id_, output))


def lines_of(*rounds: Round) -> list[str]:
    return [action.line for action in find_actions(rounds)]


def line_of(name: str, arguments: object, output: str) -> str:
    return lines_of(run(name, arguments, output))[0]


def find_actions(rounds: Sequence[Round]) -> list[Action]:
    return list(actions_of(rounds))


def summarise(rounds: list[Round], previous: str | None = None, target: int = 1000) -> str:
    earlier = None if previous is None else CompactedMessage(start_index=1, end_index=1, summary=previous)
    return ExtractiveSummarizer()(SummaryRequest(rounds=rounds, previous=earlier, target_tokens=target)).text


def under_done(summary: str) -> list[str]:
    _, _, rest = summary.partition(f"{Section.DONE}\n")
    return [line.removeprefix("- ") for line in rest.partition("\n\n")[0].splitlines()]


# --- which result belongs to which call -------------------------------------------------------------------------------


def test_results_out_of_order_go_to_their_calls() -> None:
    """By id, also in a later round."""
    first = done(calls(("a", "look", {"at": "door"}), ("b", "look", {"at": "gate"})), result("b", "it is shut"))
    assert lines_of(first, done(result("a", "it is open"))) == ["look(door) → it is open", "look(gate) → it is shut"]


def test_an_id_that_is_used_again_means_the_newest_call() -> None:
    """What the older one came to is not known, and nothing is said of it."""
    assert lines_of(done(calls(("c", "stop", "{}"))), run("start", {"what": "job"}, "started")) == [
        "stop() → (no result)",
        "start(job) → started",
    ]


def test_calls_of_one_post_with_one_id_have_their_results_by_place() -> None:
    both = done(calls(("", "get", {"id": 1}), ("", "get", {"id": 2})), result("", "one"), result("", "two"))
    assert lines_of(both) == ["get(1) → one", "get(2) → two"]


def test_a_result_without_its_call_is_nobodys() -> None:
    assert lines_of(done(calls(("a", "get", {"id": 1})), result("z", "stray"))) == ["get(1) → (no result)"]


def test_pieces_of_one_result_are_one_result() -> None:
    """A long round comes in pieces; those of one post carry its id."""
    post = result("c", "started\nstep 1\n")
    rest = post.model_copy(update={"message": "step 2\nstep 3\nTypeError: no step 4"})
    assert lines_of(done(calls(("c", "run", {"what": "job"})), post), done(rest)) == [
        "run(job) → failed: started … TypeError: no step 4"
    ]


def test_a_result_that_comes_after_its_call_was_summarised_goes_to_that_call() -> None:
    summary = summarise([*work(8), done(calls(("open", "run", {"what": "job"})))])
    assert "run(job) → (no result)" in summary
    assert "run(job) → wrote /out/job_7.csv" in summarise(
        [done(result("open", "wrote /out/job_7.csv")), *work(8, 1)], summary
    )


def test_where_two_calls_are_open_a_later_result_is_given_to_neither() -> None:
    """Nothing is better than another call's outcome."""
    both = done(
        calls(("a", "run", {"what": "job"}), ("b", "run", {"what": "test"})), query="Run both for me, please. " * 3
    )
    before = summarise([both])
    assert under_done(before) == ["run(job) → (no result)", "run(test) → (no result)"]
    later = under_done(summarise([done(result("b", "wrote /out/job_7.csv"))], before))
    assert [line for line in later if "(no result)" in line]
    assert not [line for line in later if "job_7" in line]


def test_an_empty_result_is_no_missing_one() -> None:
    assert line_of("think", {"thought": "go on"}, "") == "think(go on) → (empty)"


# --- what an outcome says ---------------------------------------------------------------------------------------------

TRACE = """Traceback (most recent call last):
  File "/srv/app/load.py", line 5, in <module>
    rows = load(path)
KeyError: 'amount'"""
LISTING = (
    "[File: src/app.py (4 lines total)]\n1:try:\n2:    load()\n3:except ValueError:\n4:    raise TypeError('failed')"
)


@pytest.mark.parametrize(
    ("name", "arguments", "output", "expected"),
    [
        (
            "bash",
            {"command": "python load.py"},
            TRACE,
            "failed: Traceback (most recent call last): … KeyError: 'amount'",
        ),
        ("book", {"id": 7}, "Error: gift card balance is not enough", "failed: Error: gift card balance is not enough"),
        ("book", {"id": 7}, '{"error": "no such user", "code": 3}', "failed: error: no such user, code: 3"),
        ("bash", {"command": "make"}, '{"exit_code": 2, "output": ""}', "failed: exit_code: 2"),
        (
            "bash",
            {"command": "./x"},
            "sh: ./x: No such file or directory",
            "failed: sh: ./x: No such file or directory",
        ),
        ("suche", {"q": "Konto"}, "Fehler: Konto 12 wurde gesperrt", "failed: Fehler: Konto 12 wurde gesperrt"),
        ("查询", {"id": 5}, "订单不存在", "failed: 订单不存在"),
        (
            "run_tests",
            {},
            "collected 9\nF.\n1 failed, 8 passed in 0.2s",
            "failed: collected 9 … 1 failed, 8 passed in 0.2s",
        ),
    ],
)
def test_what_failed_is_said_with_its_reason(name: str, arguments: object, output: str, expected: str) -> None:
    assert line_of(name, arguments, output).partition(" → ")[2] == expected


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("open", {"path": "src/app.py"}, LISTING),
        ("grep", {"pattern": "error"}, "src/app.py:12: log.info('error: %s', error)\nsrc/b.py:3: error = None"),
        ("bash", {"command": "make test"}, "Build finished, 0 errors, 0 failed"),
        ("get_order", {"id": 5}, '{"error": null, "status": "shipped", "ok": true}'),
        ("cat", {"path": "notes.md"}, "# Handling\nText on failure handling\nmore\nlines\nof text\nand text"),
    ],
)
def test_what_went_well_is_not_called_failed(name: str, arguments: object, output: str) -> None:
    """Code that deals with errors, what was searched for, and none of them: nothing failed."""
    assert "failed:" not in line_of(name, arguments, output)


def test_a_result_in_json_comes_to_what_is_new_in_it() -> None:
    """Its error or state, values that later calls take, new ids; not what was asked for or known before."""
    look = run(
        "get_booking", {"id": "XEHM4B"}, '{"id": "XEHM4B", "from": "LAS", "paid": [{"card": "card_24", "sum": 296}]}'
    )
    change = run(
        "cancel",
        {"id": "XEHM4B"},
        '{"id": "XEHM4B", "from": "LAS", "paid": [{"card": "card_24", "sum": 296}], "status": "cancelled"}',
    )
    pay = run("refund", {"to": "card_24"}, '"ok"')
    lines = lines_of(look, change, pay)
    assert "card: card_24" in lines[0]
    assert lines[1] == "cancel(XEHM4B) → status: cancelled"


def test_a_value_that_a_later_call_takes_is_in_the_outcome_of_the_call_that_gave_it() -> None:
    noise = "\n".join(f"row {i} of the table" for i in range(40))
    found = run("bash", {"command": "./scan"}, f"scan\n{noise}\ntoken is tk_93f1\n{noise}")
    assert "tk_93f1" in lines_of(found, run("send", {"token": "tk_93f1"}, "sent"))[0]


def test_the_beginning_of_a_long_name_is_marked_as_such() -> None:
    """Else an agent would take it for a path that there is."""
    path = "/" + "__".join(f"folder{number}" for number in range(20))
    assert line_of("bash", {"command": "pwd"}, path).endswith("…")


def test_long_outputs_tell_by_their_beginning_and_their_end() -> None:
    middle = "\n".join(f"compiling unit {i}" for i in range(500))
    assert line_of("bash", {"command": "make"}, f"make: entering\n{middle}\nbuilt target app in 31 s") == (
        "bash(make) → make: entering … built target app in 31 s"
    )


HOSTILE = [
    "a",
    "error",
    "[",
    '{"a":',
    " \n",
    "→ · ",
    "1:",
    "\ud800",
    "e\u0301",
    "no ",
    "_/@.",
    "> ",
    "HTTP/",
    "1 exit ",
]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_a_hostile_megabyte_costs_little(piece: str) -> None:
    """As a result or as arguments, in linear time: more than a hundred times what it takes is allowed."""
    hostile = piece * (1_000_000 // len(piece))
    began = time.thread_time()
    found = find_actions([run("bash", hostile, hostile)])
    choose_lines(found, 50, count_tokens)
    assert all(len(action.line) < 1000 for action in found)
    assert time.thread_time() - began < 5


# --- which lines ------------------------------------------------------------------------------------------------------


def work(count: int, seed: int = 0) -> list[Round]:
    """Rounds of an agent that looks at things, changes some, and fails now and then."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        path = f"src/part_{rng.randrange(10**6)}.py"
        kind = rng.randrange(5)
        if kind == 0:
            made.append(
                run("edit_file", {"path": path, "text": f"x = {number}"}, f"{path} updated, {rng.randrange(900)} lines")
            )
        elif kind == 1:
            made.append(
                run(
                    "bash",
                    {"command": f"python {path}"},
                    f"Traceback (most recent call last):\nValueError: bad row {rng.randrange(10**6)}",
                )
            )
        else:
            made.append(run("read_file", {"path": path}, f"{path}: {rng.randrange(900)} lines\nimport os\nprint(1)"))
    return made


def test_errors_and_changes_stand_before_what_was_looked_at() -> None:
    found = choose_lines(find_actions(work(30)), 10_000, count_tokens)
    kinds = [line.startswith("read_file") for line in found]
    assert kinds == sorted(kinds)
    assert len(found) == 30


def test_errors_and_changes_are_kept_where_not_all_fit() -> None:
    found = choose_lines(find_actions(work(60)), 700, count_tokens)
    kept = [line for line in found if "failed:" in line or line.startswith("edit_file")]
    assert len(kept) > 0.7 * len(found)


def test_the_same_call_is_one_line_with_its_last_outcome() -> None:
    rounds = [run("bash", {"command": "make"}, f"built {n}") for n in (3, 5, 8)]
    assert [a.line for a in merge_actions(find_actions(rounds))] == ["bash(make) ×3 → last: built 8"]


def test_what_all_like_calls_came_to_is_said_of_all() -> None:
    rounds = [run("bash", {"command": "make"}, "nothing to do") for _ in range(3)]
    assert [a.line for a in merge_actions(find_actions(rounds))] == ["bash(make) ×3 → nothing to do"]


def test_what_failed_is_not_hidden_by_the_same_call_that_went_well_later() -> None:
    rounds = [run("bash", {"command": "make"}, "fatal: no rule"), run("bash", {"command": "make"}, "built 8")]
    assert [a.line for a in merge_actions(find_actions(rounds))] == [
        "bash(make) → failed: fatal: no rule",
        "bash(make) → built 8",
    ]


OUTCOMES = st.sampled_from(
    ["ok", "Error: no", "a → b", "failed: x", "last: y", "(no result)", "(empty)", "{}", "×3", "1 · 2", "👨‍👩‍👧 née"]
)
TEXTS = st.one_of(OUTCOMES, st.text(max_size=60))
NAMES = st.sampled_from(["bash", "edit", "get_order", "a b", "f(x)", "", "名前", "x ×2", "→"])


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, TEXTS, TEXTS), max_size=12), st.integers(0, 120))
def test_a_stored_line_reads_back_as_the_action_it_was_printed_from(
    called: list[tuple[str, str, str]], budget: int
) -> None:
    """Also shortened and grouped ones, which are then printed as they stand: what is stored does not drift."""
    found = find_actions([run(name, arguments, output) for name, arguments, output in called])
    assert [parse_action(action.line) for action in found] == found
    chosen = choose_lines(found, budget, count_tokens)
    assert sum(count_tokens(f"- {line}\n") for line in chosen) <= budget
    stored = [action for line in chosen if (action := parse_action(line)) is not None]
    assert [action.line for action in stored] == chosen
    assert sorted(choose_lines(stored, budget, count_tokens)) == sorted(chosen)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, TEXTS, TEXTS), max_size=6))
def test_no_word_stands_in_a_line_that_was_not_said(called: list[tuple[str, str, str]]) -> None:
    """Apart from the marks."""
    rounds = [run(name, arguments, output) for name, arguments, output in called]
    said = "\n".join(f"{name} {arguments} {output}" for name, arguments, output in called).replace(" ", "_")
    said += "call last failed no result empty"
    for line in choose_lines(find_actions(rounds), 10_000, count_tokens):
        for word in re.findall(r"[^\W\d_]+", line):
            assert word in said


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["get", "edit", "bash"]), st.integers(0, 4), st.booleans()), max_size=24),
    st.integers(0, 260),
    st.randoms(use_true_random=False),
)
def test_no_outcome_is_said_of_a_call_that_had_another(
    called: list[tuple[str, int, bool]], budget: int, rng: random.Random
) -> None:
    """Whatever is grouped and shortened: a line for one call has its result, one for several what all of them had, or
    says that it is the last's."""
    posts, results = [], []
    for number, (name, of, alike) in enumerate(called):
        posts.append(calls((f"c{number}", name, f"item-{of}")))
        results.append(result(f"c{number}", "nothing new" if alike else f"item-{of} gave mark{number:04}"))
    rng.shuffle(results)
    marks = {f"mark{number:04}": (name, f"item-{of}") for number, (name, of, _) in enumerate(called)}
    for line in choose_lines(find_actions([done(*posts), done(*results)]), budget, count_tokens):
        action = parse_action(line)
        assert action is not None
        for mark in re.findall("mark[0-9]+", line):
            name, argument = marks[mark]
            assert action.name == name
            assert argument in action.arguments
            assert action.count == 1 or not action.shared


def test_files_and_ids_stand_by_what_took_them() -> None:
    """Those first that matter most; what a line shows is not said again, nor what has no use: names of functions."""
    found = find_actions(
        [
            run("create", {"path": "src/load.py"}, "created"),
            run("edit", {"path": "src/load.py", "text": "df = load(path)"}, "done"),
            run("send", {"to": "card_24"}, "sent"),
        ]
    )
    assert choose_files(found, ["open: notes.md; card_24"], [], "send(card_24)", 99, count_tokens) == [
        "create, edit: src/load.py",
        "open: notes.md",
    ]
    assert choose_files(found, [], ["Use notes.md"], "", 99, count_tokens) == [
        "create, edit: src/load.py",
        "User: notes.md",
        "send: card_24",
    ]
    assert choose_files(found, [], [], "", 5, count_tokens) == []


def test_text_that_is_no_line_of_an_action_is_none() -> None:
    for text in ("python → df = load()", "It rained (a lot) → wet", "get(1)", "", "→", "(x) → y", "a b(c) → d"):
        assert parse_action(text) is None


# --- in a summary -----------------------------------------------------------------------------------------------------


def test_a_chat_without_calls_spends_nothing_on_them() -> None:
    rounds = [
        done(Post(send_from="assistant", send_to=USER, message="Noted."), query=f"The key is K-{n}.") for n in range(9)
    ]
    assert Section.DONE not in summarise(rounds)


def test_files_and_ids_outlive_the_lines_that_named_them() -> None:
    """A summary names what is left of its space; the next one reads it back."""
    summary = summarise([*work(40), run("open", {"path": "notes_of_may.md"}, "see below")], target=600)
    assert Section.FILES in summary
    later = summarise(work(40, 1), summary, target=600)
    assert later.count(Section.FILES) == 1
    assert count_tokens(later) <= 600


def test_a_summary_says_what_was_done_and_what_came_of_it() -> None:
    summary = summarise([done(query="Never push to main. Fix the load."), *work(12)], target=400)
    assert "Never push to main." in summary
    assert len([line for line in under_done(summary) if parse_action(line)]) >= 4
    assert count_tokens(summary) <= 400


@pytest.mark.slow
def test_fifty_compactions_leave_lines_as_they_were_stored() -> None:
    """Each line under the heading is one that was there before or comes from the new rounds, and outcomes stay true."""
    said = "\n".join(
        f"{post.message} {post.tool_calls}" for seed in range(50) for r in work(6, seed) for post in r.post_list
    )
    summary = ""
    for seed in range(50):
        summary = summarise(work(6, seed), summary or None, target=500)
        assert count_tokens(summary) <= 500
        actions = [parse_action(line) for line in under_done(summary)]
        assert None not in actions
        assert any(action is not None and action.failed for action in actions)
        for action in actions:
            assert isinstance(action, Action)
            for word in re.findall(r"\d{4,}", action.line):
                assert word in said
