"""Counts are tiktoken's own, out of an installed package, and nothing ever asks the network."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import splintr
import tiktoken
import tiktoken_ext.openai_public
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from splintr import Tokenizer
from threads import at_once

from compactor import TokenCounter, count_tokens, get_counter, tokens, window_of
from compactor.tokens import DEFAULT_ENCODING, clip_to_tokens, find_encoding

ROOT = Path(__file__).resolve().parents[2]

surrogates = st.characters(codec=None, categories=("Cs",))

#: Number of ranks, and the SHA-256 of the file in which OpenAI publishes them: a line each, "base64 rank".
PUBLISHED = {
    "o200k_base": (199_998, "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "cl100k_base": (100_256, "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
}


def ranks_of(encoding: str) -> dict[bytes, int]:
    """Return the ranks that the installed package counts with."""
    decode = Tokenizer.from_pretrained(encoding).decode_bytes
    return {bytes(decode([rank])): rank for rank in range(PUBLISHED[encoding][0])}


@pytest.fixture(scope="module")
def ranks() -> dict[str, dict[bytes, int]]:
    return {encoding: ranks_of(encoding) for encoding in PUBLISHED}


@pytest.fixture(scope="module")
def real(ranks: dict[str, dict[bytes, int]]) -> Iterator[dict[str, tiktoken.Encoding]]:
    """tiktoken's encodings, with its own patterns, made of those ranks instead of a download."""
    with pytest.MonkeyPatch.context() as patch:
        by_hash = {checksum: ranks[encoding] for encoding, (_, checksum) in PUBLISHED.items()}
        patch.setattr(
            tiktoken_ext.openai_public, "load_tiktoken_bpe", lambda _url, expected_hash: by_hash[expected_hash]
        )
        yield {name: tiktoken.Encoding(**getattr(tiktoken_ext.openai_public, name)()) for name in PUBLISHED}


def real_count(encoding: tiktoken.Encoding, text: str) -> int:
    return len(encoding.encode(text, disallowed_special=()))


# -- the same as tiktoken ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", PUBLISHED)
def test_the_ranks_are_those_that_openai_publishes(ranks: dict[str, dict[bytes, int]], encoding: str) -> None:
    """The file that they make is OpenAI's to the byte."""
    made = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks[encoding].items())

    assert hashlib.sha256(made.encode()).hexdigest() == PUBLISHED[encoding][1]


TEXTS = (
    "",
    "hello world",
    "Don't we'll THEY'RE it's I'D",
    "12345678901234567890 3.14159 0x1F 1e-9",
    "    indented\n\n\n\tcode()  # comment\r\n\r\n",
    "漢字かな交じり文。 한국어 텍스트입니다. ไทย العربية עברית",
    "🎉👩‍👩‍👧‍👦🇪🇺 é e\u0301 \u200b\ufeff",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\x85\u2028",
    "<|endoftext|> <|fim_prefix|> <|im_start|>user",
    '{"name": "look_up", "arguments": {"ids": [1, 2, 3], "q": "a\\"b"}}',
    "https://example.org/a?b=c&d=e#f user@example.org C:\\path\\to\\file.py",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbb      cccc\t\t\t\tdddd",
    "ſ K ﬁ ß İ ı Ω",
)


@pytest.mark.parametrize("encoding", PUBLISHED)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_of_all_kinds_count_as_in_tiktoken(real: dict[str, tiktoken.Encoding], encoding: str, text: str) -> None:
    """Words, numbers, code, scripts, emoji, control characters, special tokens, JSON, paths."""
    assert count_tokens(text, encoding) == real_count(real[encoding], text)


@pytest.mark.parametrize("encoding", PUBLISHED)
def test_this_very_code_counts_as_in_tiktoken(real: dict[str, tiktoken.Encoding], encoding: str) -> None:
    """Source code with all its indentation."""
    for path in sorted((ROOT / "compactor").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert count_tokens(text, encoding) == real_count(real[encoding], text)


def test_the_real_dialogues_count_as_in_tiktoken(
    real: dict[str, tiktoken.Encoding], data: list[dict[str, Any]]
) -> None:
    """Every fifth dialogue, tool results and all, in both encodings."""
    for dialogue in data[::5]:
        for message in dialogue["messages"]:
            for encoding, counts in real.items():
                text = str(message)
                assert count_tokens(text, encoding) == real_count(counts, text)


@given(st.text(st.one_of(st.characters(), surrogates)))
def test_any_text_counts_as_in_tiktoken(real: dict[str, tiktoken.Encoding], text: str) -> None:
    """Lone surrogates do not raise; they count as what tiktoken puts in their place."""
    for encoding, counts in real.items():
        assert count_tokens(text, encoding) == real_count(counts, text)


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "a", " ", "漢"]), max_size=8).map("".join))
def test_halves_of_characters_count_as_in_tiktoken(real: dict[str, tiktoken.Encoding], text: str) -> None:
    """What was cut between the halves of an emoji and joined again is that emoji."""
    assert count_tokens(text) == real_count(real["o200k_base"], text)


@pytest.mark.parametrize("encoding", PUBLISHED)
def test_special_tokens_are_text(real: dict[str, tiktoken.Encoding], encoding: str) -> None:
    """A user who writes one gets no control over the count: neither OpenAI's nor those that the tokenizer adds."""
    special = Tokenizer.from_pretrained(encoding).special_tokens()

    assert {"<|endoftext|>", "<|user|>"} <= special.keys()
    for token in special:
        assert count_tokens(token, encoding) == real_count(real[encoding], token) > 1


# -- clipping ---------------------------------------------------------------------------------------------------------


clippable = st.text(st.one_of(st.sampled_from(" \n'abc019.😀漢"), st.characters(), surrogates))


@given(clippable, st.integers(-1, 20))
def test_a_clipped_text_is_a_beginning_that_fits(text: str, limit: int) -> None:
    """Every character is as it was, lone surrogates included, and the limit holds when what is kept is counted again."""
    kept = clip_to_tokens(text, limit)

    assert text.startswith(kept)
    assert count_tokens(kept) <= max(limit, 0)


@pytest.mark.parametrize("text", ["one two three four five six", "漢字かな" * 9, "a\ud800b\ud83d\ude00" * 9])
def test_clipping_takes_no_more_than_it_must(text: str) -> None:
    """With as many tokens as the text has, all of it stays; with one less, nearly all."""
    tokens = count_tokens(text.replace("\ud83d\ude00", "\ud83d \ude00"))

    assert clip_to_tokens(text, tokens + 9) == text
    for limit in range(1, 9):
        assert count_tokens(clip_to_tokens(text, limit)) >= limit - 2


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4", "cl100k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("GPT-4", "cl100k_base"),
        ("openai/gpt-4-turbo", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("ft:gpt-4o:org:name:id", "o200k_base"),
        ("openrouter/openai/gpt-4.1", "o200k_base"),
        ("openai:gpt-4", "cl100k_base"),
        ("openai:gpt-4o", "o200k_base"),
        ("azure:ft:gpt-4:org:name:id", "cl100k_base"),
        ("gpt-5", "o200k_base"),
        ("o3", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt2", DEFAULT_ENCODING),
    ],
)
def test_a_model_maps_to_its_encoding(model: str, encoding: str) -> None:
    """Names of versions, fine-tunes and providers in front included; very old ones to the default."""
    assert find_encoding(model) == encoding
    assert get_counter(model)("ünïcödé 漢字") == count_tokens("ünïcödé 漢字", encoding)


@pytest.mark.parametrize(
    "model", ["", "no-such-model", "claude-sonnet", "qwen3", "gpt", "openai:", "anthropic:claude", "llama3:8b"]
)
def test_nobody_knows_an_unknown_model(model: str) -> None:
    """It has no encoding, which the compactor tells of, and its texts are counted in the default one."""
    assert find_encoding(model) is None
    assert get_counter(model)("ünïcödé 漢字") == count_tokens("ünïcödé 漢字")


def test_models_of_one_encoding_share_their_counter() -> None:
    """So that what was counted for one is counted for all."""
    assert get_counter("gpt-4") is get_counter("gpt-3.5-turbo")
    assert get_counter("gpt-4o") is get_counter("gpt-5") is get_counter()
    assert get_counter("claude-opus-4-7") is get_counter("anthropic/claude-opus-5") is not get_counter("gemini-2.5-pro")
    assert isinstance(get_counter("gpt-4"), TokenCounter)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4", 8_192),
        ("gpt-4-turbo-2024-04-09", 128_000),
        ("gpt-4o-mini", 128_000),
        ("openai/gpt-4o", 128_000),
        ("claude-sonnet-4", 200_000),
        ("gpt-4o-of-our-own", None),
        ("", None),
    ],
)
def test_a_window_goes_by_the_whole_name(model: str, window: int | None) -> None:
    """gpt-4-turbo is no gpt-4."""
    assert window_of(model) == window


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("My-Model-Large-2", 70_000),
        ("local/my-model-small", 50_000),
        ("local/other", 9_000),
        ("gpt-4o-mini", 64_000),
        ("gpt-4", 8_192),
        ("nobody-knows", None),
        ("", None),
    ],
)
def test_a_hosts_own_windows_come_first(model: str, window: int | None) -> None:
    """The longest that fits, with the provider's name or without, in capitals or not; then those that are known."""
    own = {"my-model": 50_000, "my-model-large": 70_000, "gpt-4o-mini": 64_000, "Local/other": 9_000, "": 1}
    assert window_of(model, own) == window


# -- speed, threads, network ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", [" ", "a", "\n", "漢", "0", "é", "🎉"])
def test_a_million_equal_characters_are_quick(character: str) -> None:
    """tiktoken panics or takes forever on some of these; here the cost is linear."""
    count_tokens("loaded")
    began = time.thread_time()
    tokens = count_tokens(character * 1_000_000)

    assert tokens > 1_000
    assert time.thread_time() - began < 5  # what is quadratic takes minutes


# -- runs without white space -----------------------------------------------------------------------------------------


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eleven characters be too many to be counted exactly."""
    monkeypatch.setattr(tokens, "MAX_EXACT_RUN", 10)


runs = st.lists(
    st.one_of(
        st.text(st.sampled_from("aQ9é漢🎉\u0e01\u0301.!/'-_\ud800"), min_size=1, max_size=30),
        st.text(st.sampled_from(" \n\r\t\u2028\x1c\xa0"), max_size=4) | st.text(st.sampled_from(" \n\t"), max_size=40),
        st.sampled_from(["'s", "word", "\n\n", "  ", "//", "!!\n"]),
    )
).map("".join)


@pytest.mark.usefixtures("short_runs")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs)
def test_what_is_too_long_to_be_counted_never_counts_too_little(real: dict[str, tiktoken.Encoding], text: str) -> None:
    """Budgets are hard."""
    assert count_tokens(text) >= real_count(real[DEFAULT_ENCODING], text)


@pytest.mark.usefixtures("short_runs")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs, st.integers(0, 60))
def test_what_is_too_long_to_be_counted_is_clipped_to_what_fits(text: str, limit: int) -> None:
    kept = clip_to_tokens(text, limit)
    assert text.startswith(kept)
    assert count_tokens(kept) <= limit


def test_a_million_characters_without_a_space_are_not_counted_one_by_one() -> None:
    """Nobody waits for text that no budget holds; what stands beside it is counted exactly."""
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=1_000_000))
    assert count_tokens(f"Before {noise}\nand after.") == 1 + 1_000_002 + count_tokens("and after.")
    assert len(clip_to_tokens(noise, 100)) < 1_000
    assert count_tokens("with spaces " * 100_000) == 200_001


def test_a_million_spaces_are_not_counted_one_by_one() -> None:
    """Neither are line ends; what stands beside them is counted exactly."""
    for blank in (" ", "\n", "\r\n", "\t ", "\xa0"):
        assert len(blank) * 900_000 < count_tokens("Before" + blank * 1_000_000 + "and after.") < 2_100_000
    assert count_tokens(" " * 100_000) < 1_000  # as long as it is quick


def test_an_encoding_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads need it first: the others wait for the one that loads it."""
    real_load, loaded, counted = Tokenizer.from_pretrained, [], []
    second_load = threading.Event()

    def load(name: str) -> object:
        if loaded:
            second_load.set()
        loaded.append(name)
        second_load.wait(0.2)  # time enough for another thread to begin, if it could
        return real_load(name)

    def count() -> None:
        counted.append(count_tokens("hello world"))

    monkeypatch.setattr(tokens, "_encodings", tokens._Encodings())
    monkeypatch.setattr(splintr, "Tokenizer", SimpleNamespace(from_pretrained=load))
    at_once(*[count] * 8)
    assert (loaded, counted) == ([DEFAULT_ENCODING], [2] * 8)


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(KeyError, match=r"p50k_base.*o200k_base, cl100k_base"):
        count_tokens("text", "p50k_base")


def test_threads_count_alike() -> None:
    """Any number of threads count at once, each what one alone counts."""
    texts = [f"{number} {'word ' * number} 漢字" for number in range(50)]
    expected = [count_tokens(text) for text in texts]
    counted: list[list[int]] = []

    def work() -> None:
        counted.append([count_tokens(text) for text in texts * 5])

    at_once(*[work] * 8)
    assert counted == [expected * 5] * 8


@pytest.mark.slow
def test_the_first_count_asks_no_network_and_writes_no_file(tmp_path: Path) -> None:
    """In a process of its own, without a socket and with an empty home: the ranks come out of the package."""
    code = """
import socket
def refuse(*_args, **_more):
    raise AssertionError("asked the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from compactor.tokens import count_tokens, get_counter
print(count_tokens("hello world"), get_counter("gpt-4")("hello world"), get_counter("gpt-5")("hello world"))
"""
    home = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"), str(tmp_path))
    environment = os.environ | home | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.split()) == (0, ["2", "2", "2"]), done.stderr
    assert list(tmp_path.iterdir()) == []
