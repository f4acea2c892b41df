"""What commands write on a terminal: safe text, numbers, and the screen of a chat."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from command_line import TERMINAL, Stream
from model_server import Answer, ModelServer, ok, status
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compactor import ConfigError, OpenAISummarizer, Prices, SummarizerError, SummaryRequest
from compactor.cli.terminal import ConversationScreen, make_console, make_one_line, name_options, render_percent
from compactor.events import escape_controls

# -- text and numbers -------------------------------------------------------------------------------------------------


def test_all_that_a_terminal_acts_on_is_made_visible() -> None:
    assert (
        escape_controls("a\x1b[1m\x07\x9b\r\n\tb\x7f\ud800\u202e\u2028c")
        == "a\\x1b[1m\\x07\\x9b\\x0d\n\tb\\x7f\\ud800\\u202e\\u2028c"
    )
    assert escape_controls("für 5 € [bold]") == "für 5 € [bold]"


def test_a_line_is_cut_to_its_limit() -> None:
    assert make_one_line("a\n b\tc") == "a b c"
    assert make_one_line("x" * 50, 10) == "x" * 7 + "..."


def test_errors_name_options_instead_of_parameters() -> None:
    assert name_options("check base_url= and model=, or api_key=") == "check --base-url and --model, or OPENAI_API_KEY"


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize("answer", [status(401), status(404), ok("", usage=None), ok("Bo", finish="length")])
def test_no_error_of_a_model_tells_a_user_of_commands_to_write_python(server: ModelServer, answer: Answer) -> None:
    """Nor the error where there is no key, or no price."""
    server.always(answer)
    with (
        OpenAISummarizer("m", base_url=server.base_url, api_key="k") as model,
        pytest.raises(SummarizerError) as failed,
    ):
        model(SummaryRequest(messages=[{"role": "user", "content": "A transcript."}]))
    with pytest.raises(SummarizerError) as no_key:
        OpenAISummarizer("m")
    with pytest.raises(ConfigError) as no_price:
        Prices.of_model("unheard-of")
    for error in (failed, no_key, no_price):
        assert not re.search(r"\w=|\w\(", name_options(str(error.value)))


def test_what_is_saved_of_nothing_is_nothing() -> None:
    assert (render_percent(25, 100), render_percent(0, 0)) == ("75%", "-")


def test_whatever_is_printed_on_a_screen_is_printed_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tables and panels, too, and styles are still there: no command has to think of it."""
    out = Stream(terminal=True)
    for name, value in TERMINAL.items():
        monkeypatch.setenv(name, value)
    console = make_console(out)
    table = Table("name")
    table.add_row("a\x1b]0;b\x9bc\u202ed")
    console.print("e\x1b[2Jf", table, Text("g\x90h"), style="bold")
    assert "\x1b[1m" in out.text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.text)
    assert not re.search("[\x1b\x90\x9b\u202e]", plain)
    assert "e\\x1b[2Jf" in plain


# -- a chat -----------------------------------------------------------------------------------------------------------


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[ConversationScreen, Stream]:
    out = Stream(terminal=True)
    monkeypatch.setattr(sys, "stdin", Stream(terminal=True))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    return ConversationScreen(make_console(), make_console(Stream())), out


def test_a_note_stands_above_the_line_that_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody has begun to type is there again below it."""
    shown, out = on_terminal(monkeypatch)

    class Editor:
        @staticmethod
        def get_line_buffer() -> str:
            return "half a sent"

    monkeypatch.setitem(sys.modules, "readline", Editor)

    def typing(prompt: str) -> str:
        out.write(prompt + "half a sent")
        other = threading.Thread(target=shown.note, args=("rounds 1-4\x1b now read as a summary",))
        other.start()
        other.join()
        return "half a sentence"

    monkeypatch.setattr("builtins.input", typing)
    assert shown.ask() == "half a sentence"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.text)
    assert plain == "you> half a sent\r\x1b[K  [rounds 1-4\\x1b now read as a summary]\nyou> half a sent"


def test_a_note_is_shown_where_no_line_editor_tells_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: the prompt comes again, and a console that knows no control sequences gets none."""
    shown, out = on_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "readline", None)
    monkeypatch.setattr(shown._console, "legacy_windows", True)

    def typing(prompt: str) -> str:
        out.write(prompt)
        shown._console.no_color = True
        shown.note("something")
        return "x"

    monkeypatch.setattr("builtins.input", typing)
    monkeypatch.setattr(Console, "print", lambda self, text, **options: self.file.write(f"{text}\n"))
    assert shown.ask() == "x"
    assert out.text == "you> \n  [something]\nyou> "


def test_notes_wait_for_the_end_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not torn apart by what goes on behind it."""
    out = Stream()
    monkeypatch.setattr(sys, "stdin", Stream())
    monkeypatch.setattr(sys, "stdout", out)
    shown = ConversationScreen(make_console(), make_console(Stream()))
    with shown.write_answer() as write:
        write("one ")
        shown.note("first")
        write("two")
        shown.note("second")
    shown.note("third")
    assert out.text == "one two\n  [first]\n  [second]\n  [third]\n"
