"""Texts, and the words in them."""

from __future__ import annotations

from collections.abc import Sequence

from ...entries import Entry, RoundFailed, RoundUndone
from ...rounds import copy_with
from ..base import FoundText, StoredText
from ._samples import make_round, make_text
from .logs import StoreContract


class SearchableStoreContract(StoreContract):
    """For a store that finds words in texts."""

    capability = "searchable"

    #: Texts, each with words and parts that a search must find in it alone.
    FOUND = (
        ("the appointment was cancelled", ("appointment", "point", "cancelled", "s c", "e")),
        ("日本語の文章は続く", ("日", "日本", "日本語", "文章は", "語の文")),
        ("한국어 문장", ("한", "국어", "문장")),
        ("ครับผม", ("ค", "ับ", "ครับ")),
        ("100% sure_of 'it' \"so\" \\ (x) [y] * ^ : - + and or not near", ("100%", "e_o", "'it'", '"so"', "\\", "(x)")),
        ("c++ a.b.c ../etc/passwd {name} $1 :p ?", ("c++", "a.b", "../", "{name}", "$1", ":p", "?")),
        ("\U0001f600\U0001f680 straße", ("\U0001f600", "\U0001f680", "ße", "straße")),
    )
    #: Queries without a match: taken as patterns or statements they would match.
    MISSING = ("a%e", "appointment_", "appo*", "\0", "\ud800", "' or '1'='1", '"', "near(", "and)", "x" * 5_000, "\\%")

    def test_what_was_handed_over_is_known(self) -> None:
        """So the next writer adds the missing rounds, also after rounds without texts."""
        self.begin(5)
        store, other = self.store, self.reopen()
        assert (
            store.get_last_indexed_round("s"),
            store.get_last_indexed_round("t"),
            store.get_last_indexed_round("none"),
        ) == (0, 0, 0)
        store.save_texts("s", 1, 2, [make_text(1, "one"), make_text(2, "two")])
        assert other.get_last_indexed_round("s") == 2
        other.save_texts("s", 3, 4, [])
        other.save_texts("s", 2, 3, [make_text(2, "again")])
        assert (store.get_last_indexed_round("s"), store.get_last_indexed_round("t")) == (4, 0)

    def test_a_word_is_found_wherever_it_stands(self) -> None:
        """Also inside a longer word, in scripts without spaces, and with any punctuation."""
        self.begin(len(self.FOUND))
        texts = [make_text(number, text) for number, (text, _) in enumerate(self.FOUND, 1)]
        self.reopen().save_texts("s", 1, len(texts), texts)
        for _, words in self.FOUND:
            for word in words:
                assert self.find(word) == list_found([text for text in texts if word in text.text], word), ascii(word)

    def test_a_word_is_taken_literally(self) -> None:
        """No part of it acts as a pattern, an operator or the end of a statement."""
        self.begin(1)
        self.store.save_texts("s", 1, 1, [make_text(1, "the appointment, and near 日本")])
        for word in self.MISSING:
            assert self.find(word) == [], ascii(word)
        assert len(self.find(*self.MISSING, "日本")) == 1

    def test_any_of_the_words_will_do(self) -> None:
        """A text is found once, however many are in it; without words none is, and all are counted."""
        self.begin(3)
        texts = [make_text(1, "red green"), make_text(2, "green blue"), make_text(3, "white")]
        self.store.save_texts("s", 1, 3, texts)
        assert self.find("green") == list_found(texts[:2], "green")
        assert self.find("red", "blue", "green") == list_found(texts[:2], "red", "blue", "green")
        assert self.find("blue", "hit") == list_found(texts[1:], "blue", "hit")
        found = self.store.find_texts("s", [], "")
        assert (list(found.texts), found.total) == ([], 3)

    def test_it_is_told_how_often_each_word_stands_in_a_text(self) -> None:
        """As Python counts, so that every store ranks alike: without overlaps, and by characters."""
        self.begin(3)
        texts = [
            make_text(1, "banana aaaa banana"),
            make_text(2, "\U0001f600\U0001f600\U0001f600 日本日本 ééé e\u0301é ban"),
            make_text(3, "100%% \\\\ '' ban" + "an" * 2_000),
        ]
        self.store.save_texts("s", 1, 3, texts)
        for words in (
            ("ana",),
            ("aa", "a", "an"),
            ("\U0001f600\U0001f600", "本", "é", "ban"),
            ("%", "\\", "'", "an", "b"),
        ):
            expected = list_found([text for text in texts if any(word in text.text for word in words)], *words)
            assert self.find(*words) == expected, ascii(words)
        assert self.find("ana")[0] == FoundText(1, 1, 18, (2,))

    def test_a_role_finds_what_it_sent_or_received(self) -> None:
        """And texts without sender and receiver; the empty role finds all. Counts are of visible texts."""
        self.begin(2)
        texts = [
            StoredText(1, 0, "", "", "word from the user"),
            StoredText(1, 1, "a", "b", "word of a to b"),
            StoredText(1, 2, "b", "c\0\ud800", "word of b to c \U0001f600"),
            StoredText(2, 1, "A", "%", "word of another a"),
        ]
        self.store.save_texts("s", 1, 2, texts)
        for role, places in (("", (0, 1, 2, 3)), ("a", (0, 1)), ("b", (0, 1, 2)), ("c\0\ud800", (0, 2)), ("d", (0,))):
            found = self.reopen().find_texts("s", ["word"], role)
            seen = [texts[place] for place in places]
            assert sorted(found.texts) == list_found(seen, "word")
            assert (found.total, found.characters) == (len(seen), sum(len(text.text) for text in seen))

    def test_hidden_rounds_are_neither_found_nor_counted(self) -> None:
        """If they fail or are undone before their texts are indexed, or after."""
        self.begin(4)
        texts = [make_text(number, f"word {number}") for number in (1, 2, 3, 4)]
        self.store.append("s", [Entry.of(RoundFailed(round_id="r1"), round=1)], after=4)
        self.store.save_texts("s", 1, 4, texts)
        self.reopen().append("s", [Entry.of(RoundFailed(round_id="r3"), round=3)], after=5)
        self.reopen().append("s", [Entry.of(RoundUndone(round_id="r4"), round=4)], after=6)
        found = self.store.find_texts("s", ["word"], "")
        assert (list(found.texts), found.total, found.characters) == (list_found(texts[1:2], "word"), 1, 6)

    def test_what_is_counted_is_what_is_kept(self) -> None:
        """Also after texts were replaced or indexed twice, and in rounds that fail later, for each role."""
        self.begin(4)
        store = self.store
        from_a, to_a = StoredText(1, 1, "a", "b", "one"), StoredText(2, 1, "b" * 300, "a", "four")
        own, both = StoredText(3, 1, "a", "a", "twelve"), StoredText(3, 2, "", "", "all of us")
        for _ in range(2):
            store.save_texts("s", 1, 3, [from_a, to_a, own, both])
        self.expect_counts(a=(4, 22), b=(2, 12), none=(1, 9), **{"": (4, 22), "b" * 300: (2, 13)})
        store.save_texts("s", 1, 2, [copy_with(from_a, text="[redacted]"), to_a])
        self.reopen().save_texts("s", 4, 4, [StoredText(4, 1, "b", "", "fails")])
        self.expect_counts(a=(4, 29), b=(3, 24), none=(1, 9), **{"": (5, 34)})
        self.store.append("s", [Entry.of(RoundFailed(round_id="r4"), round=4)], after=4)
        store.save_texts("s", 1, 3, [own])
        self.expect_counts(a=(1, 6), b=(0, 0), none=(0, 0), **{"": (1, 6), "b" * 300: (0, 0)})

    def test_texts_are_replaced_by_their_rounds(self) -> None:
        """A redacted round is indexed again without the text, which is found no more; other rounds stay."""
        self.begin(3)
        store = self.store
        store.save_texts("s", 1, 3, [make_text(number, f"swordfish {number}") for number in (1, 2, 3)])
        self.reopen().save_texts("s", 2, 2, [make_text(2, "erased")])
        assert self.find("swordfish") == [FoundText(1, 1, 11, (1,)), FoundText(3, 1, 11, (1,))]
        assert self.find("erased") == [FoundText(2, 1, 6, (1,))]
        store.save_texts("s", 1, 3, [])
        assert self.find("swordfish", "erased") == []
        assert store.find_texts("s", ["e"], "").total == 0

    def test_sessions_are_searched_apart(self) -> None:
        """A purged session leaves nothing to find in a new one of the same name."""
        self.begin(1)
        self.begin(1, "\0\ud800")
        store = self.store
        store.save_texts("s", 1, 1, [make_text(1, "word in s")])
        store.save_texts("\0\ud800", 1, 1, [make_text(1, "word elsewhere")])
        assert self.find("word") == [FoundText(1, 1, 9, (1,))]
        self.reopen().purge("s")
        self.begin(1)
        assert (self.find("word"), store.get_last_indexed_round("s")) == ([], 0)
        assert store.find_texts("s", ["word"], "").total == 0
        assert store.find_texts("\0\ud800", ["word"], "").total == 1

    def test_long_texts_and_many_words_are_no_matter(self) -> None:
        """The last word of a long text is found, by the last of many."""
        self.begin(1)
        text = make_text(1, "filler " * 20_000 + "needle")
        self.store.save_texts("s", 1, 1, [text])
        words = (*(f"missing{number}" for number in range(31)), "needle")
        assert self.find(*words) == list_found([text], *words)

    def begin(self, rounds: int, session: str = "s") -> None:
        """Let the session have that many rounds, an entry each."""
        self.store.append(session, [make_round(f"r{number}", number) for number in range(1, rounds + 1)], after=0)

    def expect_counts(self, **expected: tuple[int, int]) -> None:
        for role, (total, characters) in expected.items():
            found = self.reopen().find_texts("s", ["e"], role)
            assert (found.total, found.characters) == (total, characters), role

    def find(self, *words: str) -> list[FoundText]:
        return sorted(self.store.find_texts("s", words, "").texts)


def list_found(texts: Sequence[StoredText], *words: str) -> list[FoundText]:
    """Return the matches of *words* in *texts* that a store must find."""
    return [FoundText(text.round, text.number, len(text.text), tuple(map(text.text.count, words))) for text in texts]
