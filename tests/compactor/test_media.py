"""Pictures, audio and documents count by the rules that providers publish, with their own examples."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import Memory, compose, count_message, count_tokens, formats, get_counter


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(40)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(60)


def jpeg(width: int, height: int) -> bytes:
    thumbnail = b"\xff\xe1" + struct.pack(">H", 60_002) + b"\xff\xc0" * 30_000
    return b"\xff\xd8" + thumbnail + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(40)


def webp(width: int, height: int) -> bytes:
    size = struct.pack("<HH", width, height)
    return b"RIFF" + bytes(4) + b"WEBPVP8 " + bytes(4) + b"\x00\x00\x00\x9d\x01\x2a" + size + bytes(40)


def webp_lossless(width: int, height: int) -> bytes:
    bits = struct.pack("<I", (width - 1) | (height - 1) << 14)
    return b"RIFF" + bytes(4) + b"WEBPVP8L" + bytes(4) + b"\x2f" + bits + bytes(40)


def webp_extended(width: int, height: int) -> bytes:
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + size + bytes(40)


def count(model: str, part: dict[str, Any]) -> int:
    """Return the tokens of one part of a message."""
    count = get_counter(model)
    return count_message({"role": "user", "content": [part]}, count) - count_message({"role": "user"}, count)


def picture(data: bytes, detail: str = "") -> dict[str, Any]:
    url = f"data:image/any;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "tokens"),
    [
        ("gpt-4o", 1_024, 1_024, "high", 765),
        ("", 2_048, 4_096, "high", 1_105),
        ("no-such-model", 4_096, 8_192, "low", 85),
        ("gpt-4o-mini", 1_024, 1_024, "", 2_833 + 4 * 5_667),
        ("openai/o3", 1_024, 1_024, "auto", 75 + 4 * 150),
        ("gpt-4.1-mini", 1_024, 1_024, "", 1_659),  # 1,024 patches
        ("o4-mini", 1_800, 2_400, "high", 2_498),  # 1,452 patches
        ("gpt-5.4", 1_800, 2_400, "high", 2_942),  # within 2,048 pixels first, then within 2,500 patches: 2,451
        ("gpt-5.4", 1_800, 2_400, "original", 57 * 75 * 12 // 10),
        ("gpt-5.4", 4_000, 4_000, "low", 308),  # 256 patches
        ("gpt-5.4-mini", 1_568, 1_568, "", 3_890),  # 2,401 patches
        ("gpt-5.5", 1_568, 1_568, "", 2_882),
        ("gpt-5-nano", 1_024, 1_024, "low", 2_520),  # 1,024 patches
        ("claude-sonnet-4-20250514", 1_000, 1_000, "", 1_296),
        ("claude-opus-4-1", 8_000, 8_000, "", 1_568),
        ("us.anthropic.claude-opus-4-7-v1:0", 1_920, 1_080, "", 2_691),
        ("anthropic:claude-opus-5", 3_840, 2_160, "", 4_784),
        ("gemini-2.5-flash", 384, 384, "", 258),
        ("google/gemini-2.0-flash", 960, 540, "", 6 * 258),
        ("gemini-3-pro-preview", 960, 540, "", 1_120),
    ],
)
def test_a_picture_counts_by_the_rule_of_the_model(
    model: str, width: int, height: int, detail: str, tokens: int
) -> None:
    """Of its size, which stands in its header."""
    assert count(model, picture(png(width, height), detail)) == tokens


@pytest.mark.parametrize("write", [png, gif, jpeg, webp, webp_lossless, webp_extended])
def test_the_size_of_a_picture_is_read_off_its_header(write: Any) -> None:
    """Also behind a thumbnail that looks like a picture."""
    assert count("claude-opus-4-7", picture(write(700, 1_400))) == 25 * 50


@pytest.mark.parametrize(
    "model", ["", "gpt-4o-mini", "gpt-5.4", "gpt-5-mini", "claude-opus-4-7", "gemini-2.5-pro", "gemini-3-pro"]
)
def test_a_picture_of_unknown_size_counts_no_less_than_one_of_a_screen(model: str) -> None:
    """Behind a link, in a file, in a form that we do not read."""
    least = count(model, picture(png(3_840, 2_160)))
    for part in (
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        picture(b"BM and so on"),
        picture(png(0, 7)),
    ):
        assert least <= count(model, part) <= 100_000


def test_all_spellings_of_a_picture_count_the_same() -> None:
    """OpenAI's two, and Anthropic's."""
    data = base64.b64encode(png(700, 1_400)).decode()
    url = f"data:image/png;base64,{data}"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    for part in (
        {"type": "image", "source": source},
        {"type": "input_image", "image_url": url},
        {"type": "image_url", "image_url": url},
    ):
        assert count("claude-opus-4-7", part) == 25 * 50


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"\xff\xd8\xff" + tail), st.text(max_size=20))
def test_no_data_is_too_damaged_to_be_counted(data: bytes, text: str) -> None:
    """Whatever stands there is input."""
    for head in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF0000WEBPVP8L", b"RIFF0000WEBPVP8X", b"RIFF0000WAVE"):
        encoded = base64.b64encode(head + data).decode()
        for part in (
            picture(head + data),
            {"type": "image", "source": {"data": text}},
            {"type": "input_audio", "input_audio": {"data": encoded}},
            {"type": "document", "source": {"type": "base64", "data": text}},
            {"type": "file", "file": {"file_data": f"data:{text}"}},
        ):
            assert count("", part) >= 0


def test_audio_counts_by_its_length() -> None:
    """Ten seconds of a WAV at 16 kHz; of a compressed sound at most what its bytes allow."""
    header = b"RIFF" + bytes(4) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    wav = base64.b64encode(header + bytes(320_000 - len(header))).decode()
    compressed = base64.b64encode(bytes(40_000)).decode()

    assert count("gemini-2.5-pro", {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}) == 320
    assert count("gemini-2.5-pro", {"type": "input_audio", "input_audio": {"data": compressed, "format": "mp3"}}) == 320


def test_a_document_counts_by_its_pages() -> None:
    """Not by the characters of its base64."""
    paper = b"%PDF-1.4 /Type /Pages /Kids [] " + b"<< /Type /Page >>" * 3 + bytes(500_000)
    data = base64.b64encode(paper).decode()
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    file = {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}"}}

    assert count("claude-sonnet-4-5", document) == count("claude-sonnet-4-5", file) == 3 * (3_000 + 1_568)
    assert count("gemini-2.5-pro", file) == 3 * 258
    words = "A long report. " * 50
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words}}
    assert count_tokens(words) <= count("", text) <= count_tokens(words) + 40


def test_a_prompt_counts_by_its_model() -> None:
    """The same conversation takes more tokens of a model that looks closer."""
    memory = Memory()
    memory.append({"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture(png(1_920, 1_080))]})
    tokens = [compose(memory, budget=50_000, model=model).tokens for model in ("claude-sonnet-4-5", "claude-opus-4-7")]
    assert tokens[1] - tokens[0] == 2_691 - 1_568


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("responses", [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "PICTURE"}]),
        (
            "responses",
            [
                {
                    "type": "code_interpreter_call",
                    "id": "ci_1",
                    "outputs": [{"type": "image", "url": "data:image/png;base64,PICTURE"}],
                }
            ],
        ),
        (
            "gemini",
            [
                {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
                {
                    "role": "user",
                    "parts": [
                        {
                            "functionResponse": {
                                "name": "look",
                                "response": {"result": "See."},
                                "parts": [{"inlineData": {"mimeType": "image/png", "data": "PICTURE"}}],
                            }
                        }
                    ],
                },
            ],
        ),
    ],
    ids=["generated", "plotted", "returned"],
)
def test_a_picture_in_a_providers_own_item_counts_as_a_picture(name: str, items: list[Any]) -> None:
    """Not as the text of its base64, and not as nothing."""
    data = base64.b64encode(png(700, 1_400) + bytes(300_000)).decode()
    messages = formats.to_chat(json.loads(json.dumps(items).replace("PICTURE", data)), name)
    tokens = sum(count_message(message, get_counter("claude-opus-4-7")) for message in messages)
    assert 25 * 50 < tokens < 25 * 50 + 60
