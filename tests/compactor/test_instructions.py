"""Which sentences are meant to stay in force."""

from __future__ import annotations

import pytest

from compactor.summarizers.instructions import instruction_strength


@pytest.mark.parametrize(
    "sentence",
    [
        "Never delete anything under /srv.",
        "Always run the tests first.",
        "do not push to main",
        "Don't email the client.",
        "Please don't touch prod.",
        "You must not share this with anyone.",
        "The total must stay under 500.",
        "From now on answer in French.",
        "Remember that I am vegetarian.",
        "Please remember my seat: 14C.",
        "I don't want you to call them.",
        "Ask me before you pay.",
        "Only use the internal mirror.",
        "Make sure the backups run.",
        "Could you please never book before 9am?",
        "Under no circumstances share the key.",
    ],
)
def test_rules_and_prohibitions_are_instructions(sentence: str) -> None:
    assert instruction_strength(sentence) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "I prefer aisle seats.",
        "The deadline is Friday.",
        "Our budget is 500 euros.",
        "At most three stops.",
        "Please use EUR.",
    ],
)
def test_wishes_and_limits_count_for_less(sentence: str) -> None:
    assert 0 < instruction_strength(sentence) < 1


@pytest.mark.parametrize(
    "sentence",
    [
        "永远不要删除这个文件。",
        "请务必使用欧元",
        "絶対に削除しないでください。",
        "Bitte niemals ohne Rückfrage buchen.",
        "Ne réserve jamais avant midi.",
        "Nunca borres los datos.",
        "Никогда не удаляй файлы.",
        "절대 삭제하지 마세요.",
    ],
)
def test_other_languages_give_instructions_too(sentence: str) -> None:
    assert instruction_strength(sentence) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't know the reservation number.",
        "I don't have it with me.",
        "If you don't mind, go on.",
        "I can't remember my password.",
        "Never mind.",
        "I've always liked it here.",
        "I must have left it at home.",
        "Do I always need a passport?",
        "Must it be red?",
        "I missed an important meeting.",
        "Book the flight to Oslo.",
        "",
    ],
)
def test_telling_and_asking_are_no_instructions(sentence: str) -> None:
    """False alarms take the space of true ones."""
    assert instruction_strength(sentence) == 0
