"""``context_offload``: compact by files, compress to a summary, or both, as users of ReMe's context offload know it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memory import Memory
from memory.messages import text_of
from memory.overlays import Reduction
from memory.references import post_reference
from memory.rounds import Post, Round, freeze_mapping

from ..config import CompactorConfig, ConfigError, whole_number
from ..cycle import Strategy
from ..prompt.groups import PROMPT_TOKENS, count_message
from ..strategies.compress_tool_runs import compress_tool_runs
from ..strategies.incremental import compact_view
from ..strategies.offload_large import offload_large
from ..tokens import TokenCounter, counter_for
from ..triggers import Trigger, Verdict
from ..view import View
from .compat.offload_context import (
    COMPACT_RATIO,
    KEEP_COMPACT,
    KEEP_COMPRESS,
    PREVIEW,
    Mode,
    check_settings,
    make_preview,
)
from .compat.offload_files import OffloadFiles, is_file_answer
from .options import given_config, given_text

#: No summary is asked to be a greater part of what the prompt may have.
LARGEST_SUMMARY = 0.25
#: Under this key of its ``extra``, a reduction of ours says how many tokens it saved.
SAVED = "saved_tokens"
#: The least that a summary is given, in tokens: less would be scraps.
_MIN_TARGET = 64


def context_offload(
    *,
    context_manage_mode: Mode = "auto",
    max_total_tokens: int = 20_000,
    max_tool_message_tokens: int = 2_000,
    group_token_threshold: int | None = None,
    keep_recent_count: int | None = None,
    store_dir: str | os.PathLike[str] | None = None,
    chat_id: str = "",
    summarizer: object | None = None,
    max_token: int | None = None,
    compact_ratio_threshold: float = COMPACT_RATIO,
    preview_char_length: int = PREVIEW,
    config: CompactorConfig | None = None,
) -> Mapping[str, Any]:
    """Return what ``ContextCompactor.for_role(memory, role, **context_offload(...))`` takes beside memory and role.

    Due when the prompt has more than *max_total_tokens* (or *max_token*, its name in all presets). ``compact``: tool
    results of more than *max_tool_message_tokens* read as their first *preview_char_length* characters and a reference.
    ``compress``: rounds become the one summary, and so do the calls of the open round. ``auto``: the first, and the
    second on what that left, where it is more than *compact_ratio_threshold* of the tokens or still too much.

    The newest *keep_recent_count* messages stay: compact counts posts (None: 1), and compress two for a round (None:
    2, which is the newest round). No request holds much more conversation than *group_token_threshold* tokens.

    With *store_dir*, what is offloaded is also written to files in a folder for *chat_id* there, which must be the
    session's own; ``OffloadFiles(store_dir, chat_id)`` reads them. What is redacted in the compactor's memory is erased
    from them too, or ``FilesNotErased`` told there; purging the session removes them. The log has it all, files or
    not.

    What else there is to set comes from *config*; of ``target_tokens``, no more than a quarter of the limit.
    """
    most = max_total_tokens if max_token is None else whole_number("max_token", max_token, 1)
    check_settings(
        context_manage_mode,
        most,
        max_tool_message_tokens,
        group_token_threshold,
        keep_recent_count,
        compact_ratio_threshold,
        preview_char_length,
    )
    if store_dir is not None and not given_text("chat_id", chat_id):
        raise ConfigError(
            ("chat_id", "store_dir needs one, so that no session reads another's files; memory.session_id will do")
        )
    given = given_config(config).merged(max_tokens=most)
    largest = max(int(most * LARGEST_SUMMARY), _MIN_TARGET)
    target = largest if given.target_tokens is None else min(given.target_tokens, largest)
    kept = KEEP_COMPRESS if keep_recent_count is None else keep_recent_count
    changes: dict[str, Any] = {"target_tokens": target}
    if keep_recent_count is not None or "retain_recent" not in given.model_fields_set:
        changes["retain_recent"] = max(-(-kept // 2), 1)
    if group_token_threshold:
        beside = _beside(given, target, counter_for(given.model))
        changes["summarizer_input_tokens"] = group_token_threshold + beside
    offload = offload_large(
        max_tool_message_tokens,
        KEEP_COMPACT if keep_recent_count is None else keep_recent_count,
        preview=0,  # which text stands instead is decided below, in characters
        tokens=True,
        kinds="tool_result",
    )
    files = None if store_dir is None else OffloadFiles(store_dir, chat_id)
    compact: tuple[Strategy, ...] = (_Previews(offload, preview_char_length, files),)
    compress: tuple[Strategy, ...] = (compact_view, compress_tool_runs(keep_last=kept, scope="current", reread=False))
    chosen = {"compact": compact, "compress": compress, "auto": compact + compress}
    return {
        "config": given.merged(**changes),
        "trigger": _not_enough(most, compact_ratio_threshold if context_manage_mode == "auto" else 1),
        "strategies": chosen[context_manage_mode],
        **({} if summarizer is None else {"summarizer": summarizer}),
    }


def _beside(config: CompactorConfig, target: int, count: TokenCounter) -> int:
    """Return the tokens of a request to the summarizer without conversation: instructions, and the summary before."""
    empty = config.prompt.render("", previous_summary="-", role="-", target_tokens=target)
    return PROMPT_TOKENS + target + sum(count_message(message, count) for message in empty)


def _not_enough(most: int, ratio: float) -> Trigger:
    """Hold when the prompt is over *most* tokens, and when it would be without compaction, which left more than *ratio*
    of it."""

    def judge(view: View) -> Verdict:
        # Without a mark: that would have a compaction reach further, into the messages that are to stay.
        if view.corrected_tokens > most:
            return Verdict(True)
        before = view.tokens + _saved(view)
        return Verdict(before > most and view.tokens > ratio * before)

    return Trigger(judge, f"context_offload({most}, {ratio:g})")


def _saved(view: View) -> int:
    """Return the tokens that compaction has saved in the tail."""
    total = 0
    for round_id, reductions in view.reductions.by_round.items():
        end = view.rounds.end_of(round_id)
        if end is not None and end > view.end:
            total += sum(saved for one in reductions if isinstance(saved := one.extra.get(SAVED), int))
    return total


@dataclass(frozen=True)
class _Previews:
    """``offload_large`` with previews of so many characters, and with files that the texts name, where there are any:
    each is written before the text that names it is given, and goes when its post is redacted."""

    offload: Callable[[View], Iterator[Reduction]]
    length: int
    files: OffloadFiles | None
    memory: Memory | None = None

    @property
    def __name__(self) -> str:
        return "offload_large"

    def for_memory(self, memory: Memory) -> Strategy:
        """Return the same for the rounds of *memory*, whose redactions reach the files from now on."""
        if self.files is None:
            return self
        self.files.watch(memory)
        return replace(self, memory=memory)

    def __call__(self, view: View) -> Iterator[Reduction]:
        count = view.ledger.count
        for reduction in self.offload(view):
            place = (view.rounds.end_of(reduction.round_id) or 1) - 1
            round_ = view.rounds[place]
            post = next(post for post in round_.post_list if post.number == reduction.first_number)
            text, reference = text_of(post), post_reference(round_, post)
            if place == view.total - 1 and is_file_answer(text):
                continue  # the agent has just read it, and would have to read it again
            where = f"; reload {reference}"
            if self.files is not None:
                named = f" in the file {self.files.path_of(reference, text)}{where}"
                if count(make_preview(text, self.length, named, count)) < count(text):
                    if self.memory is not None:
                        self.files.belong_to(self.memory)  # before there are any: a purge finds them by that
                    where = f" in the file {self.files.write(reference, text)}{where}"
                    if self._is_redacted(round_, post):
                        self.files.erase(reference)
                        continue
            shorter = make_preview(text, self.length, where, count)
            if (saved := count(text) - count(shorter)) > 0:
                yield reduction.model_copy(update={"text": shorter, "extra": freeze_mapping({SAVED: saved})})

    def _is_redacted(self, round_: Round, post: Post) -> bool:
        """Return whether *post* was redacted since it was read: whoever did that may have found no file yet."""
        now = None if self.memory is None else self.memory.snapshot.round(round_.id)
        return now is not None and any(one.number == post.number and one != post for one in now.post_list)
