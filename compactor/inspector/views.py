"""The inspector's views of one role's session, as plain models. They publish nothing and ask no model."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any, Literal
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from memory import InMemoryStore, Memory
from memory.arguments import ConfigError
from memory.entries import (
    CompactionPublished,
    CompactionReverted,
    Entry,
    EventRecorded,
    ReductionPublished,
    RoundOpened,
    list_kinds,
)
from memory.errors import UnknownReference
from memory.events import Event
from memory.journal import CompactionRecord
from memory.log.redaction import REDACTED
from memory.messages import (
    SPEAK_FOR_NO_AGENT,
    from_post,
    from_round,
    join_text_with_calls,
    make_query_message,
    repeats_query,
)
from memory.overlays import Reductions
from memory.references import make_range_reference, make_reference, parse_reference
from memory.rounds import USER, Post, Record, Round, cached_property, copy_with
from memory.visibility import sees

from ..compose import GRID, show_all
from ..cost import Prices
from ..difference import compare
from ..events import CostEvaluated, Deferred, Evaluated, Published, Rejected, Skipped
from ..prompt.fit import Report, fit, list_published
from ..prompt.layout import Layout, Source
from ..prompt.shorten import measure_reduction
from ..prompt.token_cache import HostParts, TokenCache, get_token_cache
from ..summarizers.sentences import keep_letters
from ..tokens import PROMPT_TOKENS, count_message, get_counter
from ..view import View
from .explanations import SKIPS, describe_check, describe_event

#: Number of newest rounds that are searched for roles.
ROUNDS_SEARCHED = 200
#: Number of rounds whose tokens estimate those of others.
SAMPLE = 16
#: Longer texts are cut before they reach a browser; the reference reloads the whole text.
MAX_TEXT = 100_000
_UNBOUNDED = 10**12
_WORDS = re.compile(r"\w{3,}")
#: Matches the speaker's name at the start of an extract's line.
_SPEAKER = re.compile(r"^(?:\d+[.)] |[-*•] )?(?:[^\s:]{1,40}: )?")
#: Matches a heading, which comes from no post.
_HEADING = re.compile(r"^#+ |^[^:.?!]{1,40}:$|^\*\*[^*]+\*\*$")

#: Letters for the state of a round in the prompt.
STATES = {"c": "covered", "s": "shown", "h": "shortened", "d": "left out", "o": "open", "f": "failed", "u": "undone"}
#: Status of a post. ``hidden``: the role neither sent nor received it.
Status = Literal[
    "covered", "shown", "shortened", "left out", "failed", "undone", "hidden", "erased", "pinned", "pending"
]


class Strip(BaseModel):
    """Every round as the role's next prompt shows it, in columns."""

    #: Tokens of the posts that the role sees: originally, and as the next prompt shows them.
    original: list[int]
    shown: list[int]
    #: One letter of ``STATES`` per round.
    states: str
    #: Numbers of the rounds with a pinned post.
    pinned: list[int]


class PostView(BaseModel):
    """One post, or the user's query, beside its replacement in the prompt."""

    ref: str
    sender: str
    receiver: str
    at: str
    tokens: int
    text: str
    #: Its replacement in the prompt; None: the same text, the summary or nothing, as the status says.
    replacement: str | None
    status: Status
    #: Why it is in the prompt or not, in one sentence.
    reason: str
    pinned: bool


class RoundView(BaseModel):
    number: int
    state: str
    posts: list[PostView]


class MessageView(BaseModel):
    """One message of the prompt."""

    role: str
    text: str
    tokens: int
    ref: str | None
    kind: Literal["original", "shortened", "ours"]


class PromptView(BaseModel):
    """The prompt that ``compose`` would return now, with the system messages and the plan of the last one in this
    process."""

    budget: int | None
    tokens: int
    #: Tokens before cuts to the budget, and tokens of all original messages.
    tokens_before: int
    tokens_original: int
    messages: list[MessageView]
    omitted_rounds: list[int]
    #: Tokens of the tools' schemas: counted, and in no message.
    tool_tokens: int
    #: The provider's count of the last prompt, if known.
    provider_tokens: int | None


class SentenceView(BaseModel):
    text: str
    change: Literal["dropped", "came in", "stayed"]
    #: Reference of its source post; None: unknown.
    ref: str | None = None
    #: Whether that post contains the sentence verbatim; otherwise it is the post that shares the most with it.
    exact: bool = False


class GenerationView(BaseModel):
    """One event in the history of the role's summaries."""

    index: int
    happened: str
    at: str
    generation: int
    current: bool
    rounds: tuple[int, int] | None
    tokens_before: int | None
    tokens_after: int | None
    model: str | None
    strategy: str
    checks: list[str]
    usage: dict[str, int] | None


class SummaryView(GenerationView):
    text: str
    sentences: list[SentenceView]
    #: Names and numbers of the previous summary that this one lacks.
    missing: list[str]


class SeriesView(BaseModel):
    """Prompt tokens at the end of each round, within the present budget, and the cost so far, with and without
    compaction."""

    rounds: list[int]
    tokens_with: list[int]
    tokens_without: list[int]
    #: Dollars if the model's price is known, else uncached input tokens.
    cost_with: list[float]
    cost_without: list[float]
    unit: str
    #: Number of the newest round at each publication, and the generation.
    marks: list[tuple[int, int]]
    #: In this process: round numbers, seconds that the agent waited for their prompts, and seconds that it would have
    #: waited if it had stopped for the compactions published in the round.
    timed_rounds: list[int]
    wait_with: list[float]
    wait_without: list[float]


class DecisionView(BaseModel):
    """One decision of the compactor, or one entry of its history."""

    at: str
    name: str
    level: str
    text: str


class RoleView(BaseModel):
    """A role's figures, the state of its compactor, and all rounds."""

    role: str
    generation: int
    rounds: int
    covered: int
    prompt_tokens: int
    original_tokens: int
    budget: int | None
    summary: str
    summary_tokens: int
    model: str | None
    prepared: int
    #: State of the compactor; None: none runs here.
    state: str | None
    skip_reason: str | None
    last_error: str | None
    circuit_open: bool
    description: str
    #: Whether ``original_tokens``, and those of the covered rounds in the strip, are an estimate.
    estimated: bool
    strip: Strip


class SessionView(BaseModel):
    session: str
    entries: int
    rounds: int
    open: list[int]
    failed: list[int]
    undone: list[int]
    pins: list[str]
    roles: list[str]
    states: dict[str, str] = STATES


def find_roles(memory: Memory, preferred: Sequence[str] = ()) -> list[str]:
    """Return the roles with publications, and the roles in the newest rounds: the *preferred* ones first, then those
    with publications."""
    now, rounds = memory.snapshot, memory.conversation.rounds
    published = {*now.journals, *now.reductions, *now.usages, *now.prepared}
    roles = set(published)
    for round_ in rounds[-ROUNDS_SEARCHED:]:
        for post in round_.post_list:
            roles |= {post.send_from, post.send_to}.difference(SPEAK_FOR_NO_AGENT)
    return sorted(roles, key=lambda role: (role not in preferred, role not in published, role))


def describe_session(memory: Memory, preferred: Sequence[str] = ()) -> SessionView:
    now = memory.snapshot
    return SessionView(
        session=memory.session_id,
        entries=now.number,
        rounds=now.total,
        open=[one.number for one in memory.open_rounds],
        failed=sorted(now.failed),
        undone=[one for one in now.hidden if one not in now.failed],
        pins=list(memory.pins()),
        roles=find_roles(memory, preferred),
    )


_OPENINGS = list_kinds(RoundOpened)
#: By memory, role and model: a token cache of original rounds, and one of reduced rounds. Separate from ``compose``'s
#: caches: counting covered rounds would displace their entries.
_token_caches: WeakKeyDictionary[Memory, dict[tuple[str, str], tuple[TokenCache, TokenCache]]] = WeakKeyDictionary()


class Inspection:
    """One role of a session at one moment. Views are computed on request.

    The budget is that of the last prompt in this process, else *budget*; None: nothing is cut. *model* counts the
    tokens and sets the prices. With *estimate*, the tokens of covered rounds are estimated, so that none is read.
    *host* and *tool_tokens* are what only the host knows: None means as in the last prompt in this process.
    """

    def __init__(
        self,
        memory: Memory,
        role: str,
        *,
        budget: int | None = None,
        model: str = "",
        estimate: bool = False,
        host: HostParts | None = None,
        tool_tokens: int | None = None,
    ) -> None:
        self.memory, self.role, self.model, self.estimate = memory, role, model, estimate
        self.now = memory.snapshot
        self.rounds = self.now.get_rounds(role)
        self.compaction = self.rounds.anchor(self.now.get_journal(role).current)
        count = get_counter(model)
        self.original, token_cache = _token_caches.setdefault(memory, {}).setdefault(
            (role, model), (TokenCache(role, count), TokenCache(role, count))
        )
        composed = get_token_cache(memory, role, count)
        self.budget = next(iter(composed.prompt_limits.budgets[-1:]), budget)
        self._seconds = composed.prompt_limits.seconds
        self.host = composed.prompt_limits.host if host is None else host
        self.tool_tokens = composed.tool_tokens if tool_tokens is None else tool_tokens
        header = [from_post(post, role, only_known=True) for post in memory.header if sees(role, post)]
        self.front = [*self.host.system, *header]
        self.header_tokens = sum(count_message(message, count) for message in self.front) + self.tool_tokens
        self.view = View(self.rounds, self.compaction, token_cache, self.header_tokens, model)
        self.count = count

    def go_back_to(self, number: int) -> Inspection:
        """Return the role's inspection as of the end of round *number*: the log up to the next round.

        Raises ``UnknownReference`` if there is no such round.
        """
        self._require_round(number)
        store, entries, opened = InMemoryStore(), list[Entry](), 0
        for entry in self.memory._store.read(self.memory.session_id, 0, self.now.number):
            opened += entry.kind in _OPENINGS
            if opened > number:
                break
            entries.append(entry.with_number(0))
        store.append(self.memory.session_id, entries, 0)
        then = Memory(self.memory.session_id, store=store)
        host = self.host._replace(plan=None)  # nobody knows the plan of that time
        return Inspection(
            then, self.role, budget=self.budget, model=self.model, host=host, tool_tokens=self.tool_tokens
        )

    def _require_round(self, number: int) -> None:
        if not 1 <= number <= self.now.total:
            raise UnknownReference(f"there is no round {number}; this session has {self.now.total}, from 1")

    @cached_property
    def _totals(self) -> list[int]:
        """Prefix sums of the rounds' original tokens: one before each index, and the total."""
        if self.estimate:
            return self._estimate_totals()
        prefix_sums = self.original.compute_prefix_sums(self.rounds, self.view.closed, _NO_REDUCTIONS)
        totals = [one.tokens for one in prefix_sums.totals[: self.view.closed + 1]]
        for index in range(self.view.closed, self.rounds.total):
            totals.append(totals[-1] + self._count_original(self.rounds[index]))
        return totals

    def _estimate_totals(self) -> list[int]:
        """Return totals with the prompt's tokens of each round in it, and the mean of some rounds for each other."""
        end, shown = self.view.end, self._shown
        first = max(end - SAMPLE, 0)
        sample = [self._count_original(self.rounds[at]) for at in range(first, min(first + SAMPLE, self.rounds.total))]
        mean = sum(sample) // max(len(sample), 1)
        tail = (shown[self.rounds.get_number(index)] or mean for index in range(end, self.rounds.total))
        return [*accumulate((*[mean] * end, *tail), initial=0)]

    def _count_original(self, round_: Round) -> int:
        return sum(count_message(message, self.count) for message in from_round(round_, self.role))

    @property
    def _limit(self) -> int:
        """The budget in our own token count."""
        return math.floor((self.budget or _UNBOUNDED) / self.rounds.usage.correction)

    @cached_property
    def _prompt(self) -> tuple[list[dict[str, Any]], Report, Layout]:
        limit = self._limit
        _, plan, summary_as = self.host
        uncut = show_all(self.view, self.front, limit, summary_as) if plan is None else None
        step = max(1, int((self.budget or _UNBOUNDED) * GRID))
        messages, report, layout = uncut or fit(self.view, self.front, plan, limit, step, summary_as)
        if self.view.reductions.by_round:
            published = list_published(self.view, messages, report)
            report = copy_with(report, reductions=(*published, *report.reductions))
        return messages, report, layout

    @cached_property
    def _locations(self) -> dict[str, list[int]]:
        """Indexes of the prompt's messages for each reference."""
        found = defaultdict[str, list[int]](list)
        for at, source in enumerate(self._prompt[2].sources):
            if source.ref is not None:
                found[source.ref].append(at)
        return found

    @cached_property
    def _shown(self) -> Counter[int]:
        """Tokens of the tail's rounds in the prompt, by round number."""
        prefix_sums, shown = self.view.prefix_sums, Counter[int]()
        counted = {one.number: one.totals.tokens for one in prefix_sums.round_tokens}
        for run in self._prompt[2].part_runs:
            for part in run:
                number = part.round_.number
                if part.costs:
                    shown[number] += part.tokens
                else:  # a round that was not counted again
                    shown[number] = counted[number]
        return shown

    def make_strip(self) -> Strip:
        """Return every round of the log, hidden ones included."""
        now, view, omitted = self.now, self.view, set(self._prompt[1].omitted_rounds)
        totals, shown = self._totals, self._shown
        shortened = {parse_reference(one.ref).first for one in self._prompt[1].reductions}
        original, in_prompt, states = [0] * now.total, [0] * now.total, ["u"] * now.total
        for number in now.hidden:
            original[number - 1] = self._count_original(now.get_round_at(number))
            states[number - 1] = "f" if number in now.failed else "u"
        for index in range(self.rounds.total):
            at = self.rounds.get_number(index) - 1
            original[at], in_prompt[at] = totals[index + 1] - totals[index], shown[at + 1]
            if index < view.end:
                states[at] = "c"
            elif at + 1 in omitted or (not shown[at + 1] and original[at]):
                states[at] = "h" if shown[at + 1] else "d"
            elif at + 1 in shortened:
                states[at] = "h"
            else:
                states[at] = "o" if index >= view.closed else "s"
        pinned = sorted({one.round for one in now.pinned})
        return Strip(original=original, shown=in_prompt, states="".join(states), pinned=pinned)

    def describe_round(self, number: int) -> RoundView:
        """Return one round of the log. Raises ``UnknownReference`` if there is no round of that number."""
        self._require_round(number)
        round_ = self.now.get_round_at(number)
        posts: list[Post | None] = [*round_.post_list]
        if make_query_message(round_) is not None and not (posts and repeats_query(round_.post_list[0], round_)):
            posts.insert(0, None)
        return RoundView(number=number, state=round_.state, posts=[self._describe_post(round_, one) for one in posts])

    def _describe_post(self, round_: Round, post: Post | None) -> PostView:
        number = post.number if post is not None else 0
        text = join_text_with_calls(post) if post is not None else round_.user_query
        ref = make_reference(round_.number, number)
        status, reason, replacement = self._explain(round_, post, ref)
        return PostView(
            ref=ref,
            sender=post.send_from if post is not None else USER,
            receiver=post.send_to if post is not None else "",
            at=(post or round_).created_at.isoformat(),
            tokens=self.count(text),
            text=_cut(text),
            replacement=None if replacement is None else _cut(replacement),
            status=status,
            reason=reason,
            pinned=(round_.id, number) in self.now.pins,
        )

    def _explain(self, round_: Round, post: Post | None, ref: str) -> tuple[Status, str, str | None]:
        """Return the post's status, the reason in one sentence, and its replacement in the prompt."""
        number, who = (post.number if post is not None else 0), self.role or "the role"
        pinned = (round_.id, number) in self.now.pins
        if round_.is_hidden:
            if round_.state == "failed":
                return "failed", "Its round failed, so no prompt, summary or search shows it.", None
            return "undone", "The conversation was rewound to an earlier place, so this round is hidden.", None
        if (post.message if post is not None else round_.user_query) == REDACTED:
            return "erased", "Its text was erased from the log and from everything derived from it.", None
        if post is not None and not sees(self.role, post):
            return "hidden", f"It is between other agents: {who} neither sent nor received it.", None
        at = self._locations.get(ref) or (
            self._locations.get(make_reference(round_.number, 0), []) if number == 1 else []
        )
        messages, report, layout = self._prompt
        compaction = self.compaction
        if at:
            return self._explain_shown([layout.sources[one] for one in at], [messages[one] for one in at], ref, pinned)
        if compaction is not None and round_.number <= compaction.last_round:
            by = f" by {compaction.model}" if compaction.model else ""
            covered = make_range_reference(compaction.start_index, compaction.last_round)
            reason = f"The summary of generation {compaction.generation}{by} covers rounds {covered}, this one included"
            if pinned:
                return "pinned", f"{reason}; it is pinned, so the prompt has it verbatim above the summary.", None
            return "covered", f"{reason}; {ref} reloads it.", None
        for one in self.view.reductions.of(round_.id):
            if one.covers(number):
                if one.kind == "dropped":
                    return "left out", f"A strategy dropped it from prompts; {ref} reloads it.", None
                return "shortened", f"A strategy replaced it with a shorter text; {ref} reloads it.", one.text
        if round_.number in report.omitted_rounds:
            budget = f"{self.budget:,} tokens" if self.budget else "its limit"
            reason = f"The prompt would not fit its budget of {budget}, so its oldest rounds were left out"
            return "left out", f"{reason}; {ref} reloads it.", None
        if number == 1 and post is not None and post.send_from == USER:
            return "shown", "It repeats the user's query, which the prompt shows once.", None
        return "pending", "It waits for tool results, or belongs to a part that leaves the prompt after one call.", None

    def _explain_shown(
        self, sources: Sequence[Source], messages: Sequence[Mapping[str, Any]], ref: str, pinned: bool
    ) -> tuple[Status, str, str | None]:
        if any(one.kind == "original" for one in sources):
            pin = " It is pinned: no summary replaces it." if pinned else ""
            return "shown", f"It is in the prompt as it was said.{pin}", None
        replacement = "\n".join(map(_render_text, messages))
        cut = next((one for one in self._prompt[1].reductions if one.ref == ref), None)
        if cut is None:
            return "shown", "It is in the prompt; the wording around it is adapted for the model.", replacement
        how = {
            "offloaded": "A preview replaces it",
            "cleared": "One line replaces it",
            "clipped": "Only its beginning and end are shown",
        }.get(cut.by, "A shorter text replaces it")
        cause = "by a published strategy" if cut.published else "so that this prompt fits its budget"
        saved = f"{cut.tokens_before:,} to {cut.tokens_after:,} tokens"
        return "shortened", f"{how}, {cause}: {saved}. {ref} reloads it.", replacement

    def describe_prompt(self) -> PromptView:
        """Return the exact prompt, message by message."""
        messages, report, layout = self._prompt
        count = self.view.token_cache.count_again
        return PromptView(
            budget=self.budget,
            tokens=report.tokens_after,
            tokens_before=report.tokens_before,
            tokens_original=PROMPT_TOKENS + self.header_tokens + self._totals[-1],
            omitted_rounds=list(report.omitted_rounds),
            tool_tokens=self.tool_tokens,
            provider_tokens=self.rounds.usage.input_tokens,
            messages=[
                MessageView(
                    role=str(message.get("role", "")),
                    text=_cut(_render_text(message)),
                    tokens=count_message(message, count),
                    ref=source.ref,
                    kind=source.kind,
                )
                for message, source in zip(messages, layout.sources, strict=True)
            ],
        )

    @cached_property
    def _history(self) -> tuple[CompactionRecord, ...]:
        return self.memory.journal(self.role).history()

    def list_generations(self) -> list[GenerationView]:
        """Return the history of the role's summaries, oldest first, without their texts."""
        return [GenerationView(**_list_facts(index, one)) for index, one in enumerate(self._history)]

    def describe_summary(self, index: int) -> SummaryView:
        """Return the summary at that index of the history: its sentences, their source posts, and the changes since the
        summary published before it.

        Raises ``UnknownReference`` if there is none.
        """
        if not 0 <= index < len(self._history):
            raise UnknownReference(f"there is no summary {index}; there are {len(self._history)}, from 0")
        record, shown = self._history[index], [one for one in self._history if one.happened == "published"]
        compaction = record.compaction
        earlier = [one for one in shown if one.compaction and one.generation < record.generation]
        before = max(earlier, key=lambda one: one.generation).compaction if earlier else None
        if compaction is None:
            return SummaryView(**_list_facts(index, record), text="", sentences=[], missing=[])
        changes = compare(before, compaction)
        published = [one.compaction for one in earlier if one.compaction is not None]
        sources = self._find_sources(
            [text for change, text in changes.sentences if change != "dropped"], [*published, compaction]
        )
        sentences = [
            SentenceView(text=text, change=change, ref=ref, exact=exact)
            for change, text in changes.sentences
            for ref, exact in [(None, False) if change == "dropped" else sources.get(text, (None, False))]
        ]
        return SummaryView(
            **_list_facts(index, record), text=_cut(compaction.summary), sentences=sentences, missing=list(changes.gone)
        )

    def _find_sources(self, wanted: Sequence[str], published: Sequence[Any]) -> dict[str, tuple[str | None, bool]]:
        """Return the post of each sentence, and whether it contains the sentence verbatim.

        A sentence is looked up in the rounds that were newly covered when it first appeared in a summary.
        """
        spans: dict[tuple[int, int], list[str]] = defaultdict(list)
        missing, end = dict.fromkeys(wanted), 0
        for compaction in published:
            letters = keep_letters(compaction.summary)
            found = [text for text in missing if keep_letters(text) in letters]
            spans[end + 1, compaction.last_round] += found
            end = max(end, compaction.last_round)
            for text in found:
                del missing[text]
        return {
            text: source
            for (first, last), texts in spans.items()
            if texts
            for text, source in zip(texts, self._search(texts, first, last), strict=True)
        }

    def _search(self, texts: Sequence[str], first: int, last: int) -> Iterator[tuple[str | None, bool]]:
        posts: list[tuple[str, str, set[str]]] = []
        for number in range(max(first, 1), min(last, self.now.total) + 1):
            round_ = self.now.get_round_at(number)
            if round_.is_hidden:
                continue
            originals = [(0, round_.user_query)] if make_query_message(round_) is not None else []
            originals += [(one.number, join_text_with_calls(one)) for one in round_.post_list if sees(self.role, one)]
            for post, text in originals:
                words = set(map(str.casefold, _WORDS.findall(text[:MAX_TEXT])))
                posts.append((make_reference(number, post), keep_letters(text[:MAX_TEXT]), words))
        rarity = Counter(word for _, _, words in posts for word in words)
        for text in texts:
            if _HEADING.search(text):
                yield None, False
                continue
            letters = keep_letters(_SPEAKER.sub("", text, count=1))
            exact = next((ref for ref, text_, _ in posts if letters and letters in text_), None)
            if exact is not None:
                yield exact, True
                continue
            words = set(map(str.casefold, _WORDS.findall(text)))
            scores = [(sum(1 / rarity[word] for word in words & known), -at) for at, (_, _, known) in enumerate(posts)]
            best = max(scores, default=(0, 0))
            yield (posts[-best[1]][0] if best[0] else None), False

    def compute_series(self) -> SeriesView:
        """Return the series over all visible rounds.

        Cost is an estimate: a call reads the prefix that it shares with the previous prompt from the provider's cache.
        Prices are the model's, if known.
        """
        prices = _find_prices(self.model)
        header, totals = PROMPT_TOKENS + self.header_tokens, self._totals
        numbers = [self.rounds.get_number(index) for index in range(self.rounds.total)]
        line = _Timeline(self, numbers, prices)
        changes = sorted(self._read_changes(), key=lambda one: one[0])
        with_, changed, spent, at = list[int](), list[bool](), list[float](), 0
        for index, number in enumerate(numbers):
            before, line.price = at, 0.0
            while at < len(changes) and changes[at][0] <= number:
                line.apply(*changes[at])
                at += 1
            if at != before:
                line.measure(index)
            covered = totals[min(line.end, index + 1)]
            total = header + line.tokens + max(totals[index + 1] - covered - line.shorter, 0)
            with_.append(min(total, self._limit))  # compose left out the rest
            changed.append(at != before)
            spent.append(line.price)
        without = [header + one for one in totals[1:]]
        unit = prices.per_token or 1.0
        durations = {one.generation: one.seconds for one in self._events if isinstance(one, Published)}
        stops = defaultdict[int, float](float)
        for number, generation in line.marks:
            stops[number] += durations.get(generation, 0.0)
        composed = self._seconds.copy()
        timed = sorted({*composed, *(number for number, seconds in stops.items() if seconds)})
        waited = [composed.get(number, 0.0) for number in timed]
        return SeriesView(
            rounds=numbers,
            tokens_with=with_,
            tokens_without=without,
            cost_with=_add_costs(with_, changed, spent, header, prices, unit),
            cost_without=_add_costs(without, [False] * len(without), [0.0] * len(without), header, prices, unit),
            unit="dollars" if prices.per_token else "input tokens",
            marks=line.marks,
            timed_rounds=timed,
            wait_with=waited,
            wait_without=[before + stops[number] for number, before in zip(timed, waited, strict=True)],
        )

    def _read_changes(self) -> Iterator[tuple[int, Record]]:
        """Yield the role's publications and reverts, each with the number of the newest round at that time."""
        kinds = list_kinds(RoundOpened, CompactionPublished, CompactionReverted, ReductionPublished)
        newest = 0
        for entry in self.memory._store.read_kinds(self.memory.session_id, kinds):
            if entry.number > self.now.number:
                return
            if entry.kind in _OPENINGS:
                newest += 1
            elif (record := entry.record) is not None and getattr(record, "role", None) == self.role:
                yield newest, record

    @cached_property
    def _failures(self) -> list[tuple[datetime, EventRecorded]]:
        """The role's failures in the log, without those of which an event of this process tells."""
        entries = self.memory._store.read_kinds(self.memory.session_id, list_kinds(EventRecorded))
        events, found = [*self._events], list[tuple[datetime, EventRecorded]]()
        for at, record in ((entry.created_at, entry.record) for entry in entries):
            if not isinstance(record, EventRecorded) or record.role != self.role:
                continue
            if (event := _find_event(events, at, record)) is None:
                found.append((at, record))
            else:
                events.remove(event)  # an equal record is another process's
        return found

    @cached_property
    def _events(self) -> Sequence[Event]:
        """The newest events of the role's compactor in this process."""
        return tuple(getattr(self.memory.provider(self.role), "events", ()))

    def list_decisions(self) -> list[DecisionView]:
        """Return the decisions of the role's compactor in this process, and the recorded failures, oldest first."""
        found = [
            _make_decision(at, record.name, "warning", describe_event(record.name, record.facts))
            for at, record in self._failures
        ]
        for event in self._events:
            level = "debug" if isinstance(event, Evaluated | Skipped | CostEvaluated | Deferred) else event.level
            found.append(_make_decision(event.at, event.name, level, describe_event(event.name, event.facts())))
        return sorted(found, key=lambda one: one.at)

    def list_rejected(self) -> list[DecisionView]:
        """Return the summaries that failed a check, with the reason, oldest first."""
        found = []
        for at, record in self._failures:
            check = str(record.facts.get("error", ""))
            if reason := describe_check(check):
                found.append(_make_decision(at, check, "warning", reason))
        tries = [one for one in self._events if isinstance(one, Rejected)]
        found += [_make_decision(one.at, one.check, "warning", describe_event(one.name, one.facts())) for one in tries]
        return sorted(found, key=lambda one: one.at)

    def describe_role(self) -> RoleView:
        """Return the role's figures, and the state of its compactor."""
        compactor: Any = self.memory.provider(self.role)
        status = compactor.status() if hasattr(compactor, "status") else None
        compaction = self.compaction
        return RoleView(
            role=self.role,
            generation=self.now.get_journal(self.role).generation,
            rounds=self.rounds.total,
            covered=self.view.end,
            prompt_tokens=self._prompt[1].tokens_after,
            original_tokens=PROMPT_TOKENS + self.header_tokens + self._totals[-1],
            budget=self.budget,
            summary=_cut(compaction.summary) if compaction is not None else "",
            summary_tokens=self.view.compaction_tokens,
            model=compaction.model if compaction is not None else None,
            prepared=len(self.now.prepared.get(self.role, ())),
            state=str(status.state) if status else None,
            skip_reason=SKIPS[status.skip_reason] if status and status.skip_reason else None,
            last_error=status.last_error if status else None,
            circuit_open=bool(status and status.circuit_open),
            description=compactor.describe() if status else "",
            estimated=self.estimate,
            strip=self.make_strip(),
        )


#: Views without parameters, by the names under which a page requests them.
VIEWS: Mapping[str, Callable[[Inspection], Any]] = {
    "series": Inspection.compute_series,
    "generations": Inspection.list_generations,
    "decisions": Inspection.list_decisions,
    "rejected": Inspection.list_rejected,
}


class _Timeline:
    """Replays a role's overlays round by round."""

    def __init__(self, inspection: Inspection, numbers: Sequence[int], prices: Prices) -> None:
        self._inspection, self._prices = inspection, prices
        self._locations = {number: index for index, number in enumerate(numbers)}
        self._in_force: list[tuple[int, int]] = []  # the covered indexes and the tokens of each summary
        self._saved = Counter[int]()  # tokens saved by reductions, by index
        self.marks: list[tuple[int, int]] = []
        self.shorter = 0
        #: Price of the summaries since this was last set to 0.
        self.price = 0.0

    @property
    def end(self) -> int:
        return self._in_force[-1][0] if self._in_force else 0

    @property
    def tokens(self) -> int:
        return self._in_force[-1][1] if self._in_force else 0

    def apply(self, number: int, record: Record) -> None:
        """Apply one change; *number* is the newest round at that time."""
        match record:
            case CompactionPublished(compaction=compaction):
                end = (
                    self._locations.get(compaction.last_round, min(compaction.end_index, len(self._locations)) - 1) + 1
                )
                tokens = record.tokens_after or self._inspection.count(compaction.to_prompt())
                self._in_force.append((end, tokens))
                self.marks.append((number, compaction.generation))
                before = record.tokens_before or 0
                self.price += _compute_price(
                    compaction.usage, before, tokens, self._prices, paid=bool(compaction.model)
                )
            case CompactionReverted():
                self._in_force = self._in_force[:-1]
            case ReductionPublished(reduction=reduction):
                index = self._locations.get(self._inspection.now.find_number(reduction.round_id))
                if index is not None:
                    measured = measure_reduction(self._inspection.rounds[index], reduction, self._inspection.count)
                    self._saved[index] += max(measured.tokens_before - measured.tokens_after, 0)

    def measure(self, last: int) -> None:
        """Add up the tokens that reductions save in the tail up to index *last*."""
        self.shorter = sum(saved for index, saved in self._saved.items() if self.end <= index <= last)


_NO_REDUCTIONS = Reductions()


def _find_event(events: Sequence[Event], at: datetime, record: EventRecorded) -> Event | None:
    """Return the event that *record*, written *at* that time, tells of: the newest earlier one with all its facts but
    what was paid for; None: it is not among *events*."""
    facts = {key: value for key, value in record.facts.items() if key not in ("usage", "model")}
    earlier = (one for one in reversed(events) if one.name == record.name and one.at <= at)
    return next((one for one in earlier if facts.items() <= one.facts().items()), None)


def _make_decision(at: datetime, name: str, level: str, text: str) -> DecisionView:
    return DecisionView(at=at.isoformat(), name=name, level=level, text=text)


def _list_facts(index: int, record: CompactionRecord) -> dict[str, Any]:
    names = GenerationView.model_fields.keys() - {"index"}
    return {"index": index, **{name: getattr(record, name) for name in names}, "at": record.at.isoformat()}


def _find_prices(model: str) -> Prices:
    with suppress(ConfigError):
        return Prices.of_model(model) if model else Prices()
    return Prices()


def _compute_price(usage: Mapping[str, int] | None, before: int, after: int, prices: Prices, *, paid: bool) -> float:
    """Return the price of one summary in uncached input tokens; 0 if no model was asked."""
    if usage:
        read, written = usage.get("input_tokens", before), usage.get("output_tokens", after)
        return read * prices.summarizer_input + written * prices.summarizer_output
    return before * prices.summarizer_input + after * prices.summarizer_output if paid else 0.0


def _add_costs(
    tokens: Sequence[int],
    restarts: Sequence[bool],
    spent: Sequence[float],
    header: int,
    prices: Prices,
    spend_unit: float,
) -> list[float]:
    """Return the cost up to each round, one prompt per round; the prefix shared with the previous prompt is cached."""
    costs = []
    for (before, now), is_new, price in zip(pairwise((0, *tokens)), restarts, spent, strict=True):
        shared = min(header if is_new else before, before, now)
        cost = shared * prices.cached_input + (now - shared) * prices.cache_write + price
        costs.append(cost * spend_unit)
    return [round(one, 6) for one in accumulate(costs)]


def _render_text(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message, its calls and the kinds of its other parts."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else list(content)
    texts = [
        one if isinstance(one, str) else str(one.get("text", f"[{one.get('type', 'part')}]"))
        for one in parts
        if isinstance(one, str | Mapping)
    ]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        texts.append(f"calls {function.get('name', '')}({function.get('arguments', '')})")
    return "\n".join(text for text in texts if text)


def _cut(text: str) -> str:
    """Return *text* for a browser: without lone surrogates, and cut if it is very long."""
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}\n[{len(shown) - MAX_TEXT:,} more characters]"
