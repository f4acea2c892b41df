"""sync: what a host drops from its list stays in the log, and what it edits is undone."""

from __future__ import annotations

import copy

import pytest
from chats import Message, answer, result, user
from synced_history import HISTORY, SYSTEM, TURNS, calls

from compactor import HistoryDiverged, Memory, Synced


@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_the_oldest_messages_that_a_host_drops_stay_in_the_log(system: list[Message]) -> None:
    """Many hosts hold a window of their history, with the system message in front or without."""
    memory = Memory()
    memory.sync(HISTORY)
    window = [*system, *HISTORY[4:], answer("You are welcome.")]
    synced = memory.sync(window)
    assert synced == Synced(appended=1, kept=len(window) - 1, dropped=3)
    assert memory.messages() == [*HISTORY, answer("You are welcome.")]
    assert synced.references[-1] == "r2.p1"
    assert memory.sync(system) == Synced(0, len(system), dropped=7)


def test_a_window_may_begin_with_a_system_message_from_the_middle() -> None:
    """A reminder that the host put into its history is not taken for the system prompt."""
    reminder = {"role": "system", "content": "Remember to be brief."}
    history = [SYSTEM, user("q"), answer("a"), reminder, user("r")]
    memory = Memory()
    memory.sync(history)
    assert memory.sync([reminder, user("r"), answer("b")]) == Synced(1, 2, dropped=2)
    assert memory.sync([SYSTEM, *history[3:], answer("b")]) == Synced(0, 4, dropped=2)
    assert memory.messages() == [*history, answer("b")]


def test_a_window_may_begin_with_an_erased_message() -> None:
    """The host still holds its words there, and they are not written again."""
    memory = Memory()
    memory.sync(HISTORY)
    memory.redact("r1.p4")
    assert memory.sync([*HISTORY[5:], answer("Bye.")]) == Synced(1, 2, dropped=4)
    assert "17 is" not in str(memory.messages())


def test_a_list_with_a_gap_is_known_though_words_were_erased_in_it() -> None:
    """Nothing is undone, and the erased words are not written again."""
    memory = Memory()
    memory.sync(TURNS)
    memory.redact("r5.p1")
    for front in ([], TURNS[:1], [user("a summary")]):
        for begin in range(6, 14, 2):
            for one in (memory, Memory(memory.session_id, store=memory._store)):
                synced = one.sync(copy.deepcopy([*front, *TURNS[begin:]]), on_divergence="raise")
                assert (synced.appended, synced.undone) == (0, 0)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("own", [[], [user("a summary")], [user("Sum up!"), answer("a summary")]])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_host_that_keeps_its_first_messages_or_a_summary_drops_the_others(
    own: list[Message], first: int, restarts: bool
) -> None:
    """What it dropped stays in the log, the summary does not get there, and the host's list grows and slides on."""
    memory = Memory()
    memory.sync([SYSTEM, *TURNS[:13]])
    for end in range(13, 18):
        if restarts:
            memory = Memory(memory.session_id, store=memory._store)
        history = [SYSTEM, *TURNS[:first], *own, *TURNS[9:end]]
        synced = memory.sync(copy.deepcopy(history), on_divergence="raise")
        assert (synced.appended, synced.skipped, synced.dropped) == (end > 13, len(own), 9 - first)
        assert synced.appended + synced.kept + synced.skipped == len(history)
        assert synced.references[1 + first : 1 + first + len(own)] == [None] * len(own)
        assert [synced.find(ref) for ref in synced.references if ref] == [
            place for place, ref in enumerate(synced.references) if ref
        ]
        assert memory.messages() == [SYSTEM, *TURNS[:end]]


def test_a_summary_that_changes_rewinds_nothing() -> None:
    """The framework sums up again, some turns later, and by other words for the same messages."""
    memory = Memory()
    for end in range(1, len(TURNS) + 1):
        begin = max(end - 5, 0) // 3 * 3
        summary = [user(f"summary of {begin}, told at {end}")] if begin else []
        memory.sync([*summary, *TURNS[begin:end]], on_divergence="raise")
    assert memory.messages() == TURNS
    assert Memory(memory.session_id, store=memory._store).sync([user("in short"), *TURNS[12:]]).kept == 6


@pytest.mark.parametrize("first", [0, 1])
def test_an_edit_behind_a_summary_rewinds_no_further_than_to_it(first: int) -> None:
    """Also in the first message behind it, in the same process."""
    front = [*TURNS[:first], user("a summary")]
    for edited in range(9, 13):
        memory = Memory()
        memory.sync(TURNS[:13])
        memory.sync([*front, *TURNS[9:13]])
        memory.sync([*front, *TURNS[9:edited], user("no")])
        assert memory.messages()[-1] == user("no")
        if edited > 9:
            assert memory.messages() == [*TURNS[:edited], user("no")]


@pytest.mark.parametrize("length", [4, 6, 9, 18])
@pytest.mark.parametrize("edited", [0, 1, 3])
def test_as_many_other_messages_as_are_missing_are_an_edit(length: int, edited: int) -> None:
    """Though all that follows is as it was; it is written again behind the edit."""
    memory = Memory()
    memory.sync(TURNS[:length])
    history = [*TURNS[:edited], user("other"), *TURNS[edited + 1 : length]]
    with pytest.raises(HistoryDiverged) as caught:
        memory.sync(history, on_divergence="raise")
    assert caught.value.index == edited
    assert memory.sync(history).undone == length - edited
    assert memory.messages() == history


def test_a_window_of_messages_alike_loses_nothing() -> None:
    """Users say "go on", and agents ask a tool again and again; the host keeps the newest, and the first message."""
    for turn in ([user("go on")], [user("go on"), answer("ok")], [calls(("a", "look", "{}")), result("a", "Not yet.")]):
        for first in ([], [user("Look until it is there.")]):
            memory = Memory()
            memory.sync([*first, *turn * 10])
            for _ in range(3):
                synced = memory.sync(copy.deepcopy([*first, *turn * 4]), on_divergence="raise")
                assert (synced.appended, synced.dropped) == (0, 6 * len(turn))
            assert memory.sync([*first, *turn * 4, answer("Done.")], on_divergence="raise").appended == 1
            assert memory.messages() == [*first, *turn * 10, answer("Done.")]


def test_an_edit_between_words_that_repeat_is_an_edit() -> None:
    """What was asked before and after says the same; what was asked otherwise is not to be shown any more."""
    turn = [calls(("a", "look", "{}")), result("a", "Not yet."), answer("Please wait.")]
    memory = Memory()
    memory.sync([user("Is it there?"), *turn, user("And in town?"), *turn])
    history = [user("Is it there?"), *turn, user("And at the port?")]
    assert memory.sync(history).undone == 4
    assert memory.messages() == history


def test_a_call_that_is_asked_for_again_is_a_fork() -> None:
    """The whole log stands at the end of the list, behind what came before: messages of the log stand for no others."""
    turn = [user("q"), calls(("a", "look", "{}")), result("a", "Not yet."), answer("Wait.")]
    memory = Memory()
    memory.sync(turn)
    history = [*turn[:2], *turn]
    for _ in range(2):
        synced = memory.sync(history)
        assert (synced.skipped, synced.dropped) == (0, 0)
        assert memory.messages() == history


def test_a_branch_that_ends_as_the_history_began_is_left_again() -> None:
    """The newest messages of the log are the host's oldest: that is no list with a gap."""
    memory, branch = Memory(), [*TURNS[:-4], *TURNS[:4]]
    memory.sync(TURNS)
    assert (memory.sync(branch).undone, memory.sync(TURNS).undone) == (4, 4)
    assert memory.messages() == TURNS


def test_who_goes_back_to_words_that_were_said_again_later_goes_back() -> None:
    """One message alone behind a hole says too little: an answer is to be made anew here."""
    history = [user("Write!"), answer("One."), user("go on"), answer("Two."), user("go on")]
    memory = Memory()
    memory.sync(history)
    assert memory.sync(history[:3]).undone == 2
    assert memory.messages() == history[:3]


def test_the_same_history_twice_changes_nothing_where_it_could_begin_in_two_places() -> None:
    """All messages are alike, one of the log's was erased, and the host has dropped its oldest."""
    memory = Memory("session")
    turns = [
        [user("yes"), answer("go on")],
        [user("yes"), calls(("a", "f", "{}")), result("a", "yes"), answer("go on")],
    ]
    history = turns[0] + turns[1] + turns[0]
    memory.sync(history)
    history = history[2:]
    memory.sync(history)
    memory.redact("r1.p0")
    for _ in range(3):
        history += turns[0]
        memory.sync(history)
        again = memory.sync(copy.deepcopy(history))
        assert (again.appended, again.kept, again.undone) == (0, len(history), 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            [user("Create."), calls(("a", "create", "1")), result("a", "No."), calls(("b", "create", "2"))],
            [user("Delete."), calls(("c", "delete", "1"))],
        ),
        ([calls(("a", "write", "1")), result("a", "No."), calls(("b", "write", "2"))], [calls(("c", "write", "3"))]),
        ([user("Book."), answer("When?"), user("Monday.")], [user("Cancel.")]),
    ],
    ids=["a branch", "an answer made again", "no calls"],
)
def test_a_branch_that_ends_as_the_old_one_did_is_no_summary(old: list[Message], new: list[Message]) -> None:
    """Its words and calls are the newest that the host says: prompts show them, and nothing of the old branch."""
    end = [result(new[-1]["tool_calls"][0]["id"], "ok")] if new[-1]["role"] == "assistant" else [answer("Shall I?")]
    old_end = [result("b", "ok")] if old[-1]["role"] == "assistant" else end
    memory = Memory()
    memory.sync([*TURNS[:2], *old, *old_end, answer("Done.")])
    history = [*TURNS[:2], *new, *end, answer("Done.")]
    with pytest.raises(HistoryDiverged):
        memory.sync(history, on_divergence="raise")
    assert memory.sync(history).skipped == 0
    assert memory.messages() == history


@pytest.mark.parametrize("edited", [0, 1])
def test_an_edit_where_a_window_begins_is_an_edit(edited: int) -> None:
    """The last call knows that the window began there, so one message stands for one."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync(TURNS[6:])
    window = [*TURNS[6 : 6 + edited], {**TURNS[6 + edited], "content": "edited"}, *TURNS[7 + edited :]]
    with pytest.raises(HistoryDiverged):
        memory.sync(window, on_divergence="raise")
    memory.sync(window)
    assert memory.messages() == [*TURNS[:6], *window]


@pytest.mark.parametrize("place", [4, 17])
def test_one_word_of_the_log_does_not_make_a_new_history_a_window(place: int) -> None:
    """All that follows is another history, and nothing of the old one is shown."""
    memory = Memory()
    memory.sync(TURNS)
    history = [{**TURNS[place]}, answer("Something"), user("else.")]
    memory.sync(history)
    assert memory.messages() == history


def test_an_edit_in_front_of_a_summary_is_an_edit() -> None:
    """The summary alone is the host's own: the last call knows that the log has the other message."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync([TURNS[0], user("A summary."), *TURNS[4:]])
    history = [user("edited"), user("A summary."), *TURNS[4:]]
    memory.sync(history)
    assert memory.messages() == history


def test_calls_and_results_that_are_alike_make_no_window_of_another_history() -> None:
    """Two histories in one log each ask for the same row twice, and each query is shown with its own history."""
    memory, histories = Memory(), [[user("A")], [user("B")]]
    for turn in range(3):
        for history in histories:
            for step in range(2):
                history += [calls((f"{turn}{step}", "look", "{}")), result(f"{turn}{step}", "row 1")]
                memory.sync(history)
                assert memory.messages() == history
            history += [answer("ok"), user(f"{history[0]['content']} {turn}")]
            memory.sync(history)
            assert memory.messages() == history


def talk(*texts: str) -> list[Message]:
    return [(user, answer)[place % 2](text) for place, text in enumerate(texts)]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("old", "kept", "new"),
    [
        (["next", "PIN 4711", "next", "done"], 1, ["done"]),
        (["next", "PIN 4711", "next", "done"], 1, ["done", "next", "done"]),
        (["next", "PIN 4711", "next", "done"], 1, ["done", "thanks", "bye"]),
        (["Hi", "Hello", "ok", "ok", "PIN", "4711", "ok", "ok"], 2, ["ok", "ok"]),
        (["ok", "yes", "ok", "4711", "ok", "yes"], 2, ["ok", "no", "ok", "4711", "ok", "yes"]),
        (["ok", "ok", "ok", "ok"], 2, []),
        (["ok", "yes", "PIN", "4711", "ok", "yes"], 2, ["no", "4711", "ok", "yes"]),
    ],
)
def test_short_words_that_repeat_keep_no_word_that_the_host_no_longer_has(
    old: list[str], kept: int, new: list[str], copies: bool
) -> None:
    """An answer made again, a fork or an insertion that says what was said at the end is no window."""
    memory, history = Memory(), talk(*old)
    memory.sync(history)
    history = [*history[:kept], *talk(*[""] * kept, *new)[kept:]]
    memory.sync(copy.deepcopy(history) if copies else history)
    if copies and not new:  # nobody can know
        assert {one["content"] for one in memory.messages()} <= {*old[:kept]}
    else:
        assert memory.messages() == history


def test_the_same_first_object_begins_the_list_where_it_did() -> None:
    """Though the newest messages of the log say what those behind it say, too: the host dropped nothing."""
    for begin in ([], ["Where?", "Here."]):
        history = talk(*begin, *["continue", "ok"] * 2, "4711", "noted", *["go on", "yes"] * 10)
        memory = Memory()
        memory.sync(history)
        edited = [*history[:2], *talk(*["go on", "yes"] * 10)]
        memory.sync(edited)
        assert memory.messages() == edited


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["q0", "a0", "q1", "a1", *["next", "done"] * 4], ["q0", "a0", "ok", "done", *["next", "done"] * 3]),
        (["ok", "a0", *"qrstuvwx"], ["ok", "a0", "ok", "r", *"uvwx"]),
        (["ok", "a0", *"qrstuvwx"], ["ok", "a0", "ok", *"vwx"]),
    ],
)
def test_a_word_that_the_user_says_again_is_no_summary(old: list[str], new: list[str], copies: bool) -> None:
    """Nor is a new one before words that repeat: it is the user's, and prompts show it."""
    memory, history = Memory(), talk(*old)
    memory.sync(history)
    edited = [*history[:2], *talk(*new)[2:]]
    assert memory.sync(copy.deepcopy(edited) if copies else edited).skipped == 0
    assert memory.messages() == edited


@pytest.mark.parametrize("kept", [["ok", "yes"], ["ok", "yes", "ok"], ["ok"], []])
@pytest.mark.parametrize("appended", [0, 1, 2])
def test_objects_of_the_last_call_are_known_behind_a_hole_though_their_words_repeat(
    kept: list[str], appended: int
) -> None:
    """The host dropped what was between them: nothing later is undone."""
    memory = Memory()
    history = talk("Hi", "Hello", "ok", "yes", "PIN", "4711", *(kept or ["bye"]))
    memory.sync(history)
    new = talk(*[""] * len(history), "new", "newer")[len(history) : len(history) + appended]
    synced = memory.sync([*history[:2], *history[6:], *new], on_divergence="raise")
    assert (synced.appended, synced.dropped, synced.undone) == (appended, 4, 0)
    assert memory.messages() == [*history, *new]


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("words", ["abcdef", "abacde"])
def test_a_message_that_moved_in_the_list_is_not_taken_for_dropped(words: str, first: int, made_anew: bool) -> None:
    """It would be shown twice."""
    memory, history = Memory(), talk(*words)
    memory.sync(history)
    history = [*history[:first], *history[first + 2 :], *history[first : first + 2]]
    memory.sync(copy.deepcopy(history) if made_anew else history)
    assert memory.messages() == history


@pytest.mark.parametrize("is_erased", [False, True])
def test_a_message_that_moved_beside_a_dropped_or_an_erased_one_is_not_taken_for_dropped(is_erased: bool) -> None:
    memory, history = Memory(), talk(*"abcdef")
    references = memory.sync(history).references
    if is_erased:
        memory.redact(str(references[2]))
        history = [*history[:1], *history[3:], *history[1:3]]
    else:
        memory.sync(history[1:])
        history = [*history[2:4], history[1], *history[4:]]
    memory.sync(copy.deepcopy(history))
    assert memory.messages()[-len(history) :] == history
    assert [one["content"] for one in memory.messages()].count("b") == 1


@pytest.mark.parametrize("words", ["abcdefagh", "abcdefghijelm"])
def test_a_host_that_keeps_its_newest_messages_may_say_again_what_it_drops(words: str) -> None:
    """Each call drops one message and adds one: the same words are new, not moved, and nothing is undone."""
    memory, history = Memory(), talk(*words)
    for end in range(1, len(history) + 1):
        memory.sync(copy.deepcopy(history[max(0, end - 6) : end]))
        assert memory.messages() == history[:end]


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("first", [0, 2, 4])
def test_a_host_may_drop_what_was_erased(first: int, made_anew: bool) -> None:
    """The messages after it are not taken for it."""
    memory, history = Memory(), talk(*"abcdef")
    for reference in memory.sync(history).references[first : first + 2]:
        memory.redact(str(reference))
    del history[first : first + 2]
    for text in ("", "g"):
        history = [*history, *talk(*[""] * len(history), text)[len(history) :]] if text else history
        synced = memory.sync(copy.deepcopy(history) if made_anew else history, on_divergence="raise")
        assert (synced.appended, synced.dropped) == (len(text), 2)
    assert [one for one in memory.messages() if one["content"] != "[Redacted]"] == history


def test_a_host_may_drop_what_was_erased_and_edit_what_follows() -> None:
    memory, history = Memory(), talk(*"abcdefgh")
    for reference in memory.sync(history).references[2:4]:
        memory.redact(str(reference))
    history = [*history[:2], *history[4:6], user("edited")]
    memory.sync(history)
    assert [one for one in memory.messages() if one["content"] != "[Redacted]"] == history


def test_a_host_that_removes_all_calls_of_its_older_turns_undoes_nothing() -> None:
    """Many holes at once, each with little behind it."""
    turns = [
        [user(f"q{n}"), calls((f"c{n}", "look", f'{{"n": {n}}}')), result(f"c{n}", f"r{n}"), answer(f"a{n}")]
        for n in range(6)
    ]
    history = [one for turn in turns for one in turn]
    for other in (None, 5):
        memory = Memory()
        memory.sync(history)
        if other:
            memory = Memory(memory.session_id, store=memory._store)
        plain = [one for turn in turns[:-1] for one in (turn[0], turn[-1])]
        synced = memory.sync([*copy.deepcopy([*plain, *turns[-1]]), user("new")], on_divergence="raise")
        assert (synced.appended, synced.dropped) == (1, 10)
        assert memory.messages() == [*history, user("new")]


def test_a_window_that_begins_with_a_call_that_repeats_keeps_the_call_with_its_results() -> None:
    """The log's first message is the same call, with another result."""
    turns = [
        [calls((f"c{n}", "look", "{}")), result(f"c{n}", f"{n} left"), answer(f"a{n}"), user(f"q{n}")] for n in range(4)
    ]
    memory = Memory()
    memory.sync([one for turn in turns for one in turn])
    window = copy.deepcopy([one for turn in turns[2:] for one in turn])
    assert memory.sync(window, on_divergence="raise") == Synced(0, 8, dropped=8)


def test_the_last_message_is_in_the_log_even_if_it_is_the_hosts_summary() -> None:
    """The host went back to it, and a prompt ends with it; what it stands for stays."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync([user("A summary."), *TURNS[8:]])
    synced = memory.sync([user("A summary.")])
    assert (synced.appended, synced.skipped) == (1, 0)
    assert synced.references[-1] is not None
    assert memory.messages() == [*TURNS[:8], user("A summary.")]
    assert memory.sync([user("A summary."), answer("Go on.")]) == Synced(1, 1, dropped=8)


def test_a_turn_that_the_agent_does_again_after_a_fork_does_not_keep_what_the_host_left_out() -> None:
    """The host gives its objects again, and new ones with the words of the turn that follows in the log."""
    memory = Memory()
    first, left_out = user("Which rows?"), user("Only those of May.")
    turn = [user("Show them."), calls(("c1", "look", "{}")), result("c1", "row 1"), answer("One row.")]
    memory.sync([first, left_out, *turn])
    history = [first, *copy.deepcopy(turn)]
    assert memory.sync(history) == Synced(4, 1, undone=5)
    assert memory.messages() == history


def test_what_the_agent_keeps_for_itself_does_not_hide_what_the_host_dropped() -> None:
    """A note stands in the log between the host's messages."""
    memory = Memory()
    memory.sync(TURNS[:2])
    memory.append(answer("a note"), kind="note")
    memory.sync(TURNS[:6])
    memory.sync(TURNS[1:6])
    assert memory.sync(TURNS[2:6], on_divergence="raise") == Synced(0, 4, dropped=2)
