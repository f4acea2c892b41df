"""``context_offload``: compact by files, compress to a summary, or both, as users of ReMe's context offload know it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memory import Memory, Reduction
from memory.arguments import ConfigError, check_whole_number, require
from memory.messages import join_text
from memory.references import make_post_reference
from memory.rounds import copy_with, freeze_mapping

from ..config import CompactorConfig, check_config
from ..cycle import Strategy
from ..strategies.compress_tool_runs import compress_tool_runs
from ..strategies.incremental import compact_view
from ..strategies.offload_large import offload_large
from ..tokens import count_prompt, get_counter
from ..triggers import Trigger, Verdict
from ..view import View
from .compat.offload_context import (
    COMPACT_RATIO,
    KEEP_COMPACT,
    KEEP_COMPRESS,
    MIN_TARGET,
    PREVIEW,
    Mode,
    check_settings,
    make_preview,
)
from .compat.offload_files import OffloadFiles, is_file_answer

#: Maximum share of the prompt's limit that a summary is asked to have.
MAX_SUMMARY_SHARE = 0.25
#: The key in a reduction's ``extra`` for the tokens that it saved.
SAVED = "saved_tokens"


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
    """Return options for ``ContextCompactor.for_role(memory, role, **context_offload(...))``.

    Due when the prompt has more than *max_total_tokens* (or *max_token*, its name in all presets). ``compact`` replaces
    tool results of more than *max_tool_message_tokens* by their first *preview_char_length* characters and a reference.
    ``compress`` compacts rounds into the one summary, and the calls of the open round into another. ``auto`` does the
    first, then the second if more than *compact_ratio_threshold* of the tokens are left or still too much.

    The newest *keep_recent_count* messages stay: compact counts posts (None: 1), and compress two for a round (None:
    2, the newest round). A request has hardly more than *group_token_threshold* tokens of conversation.

    With *store_dir*, offloaded texts are also written to files there, in a folder for *chat_id*, which must be the
    session's own; ``OffloadFiles(store_dir, chat_id)`` reads them. A redaction or a rewind in the compactor's memory
    erases them there, or emits ``FilesNotErased``; a purge of the session removes them. The log keeps all texts.

    All other settings come from *config*; its ``target_tokens`` up to a quarter of the limit.
    """
    most = max_total_tokens if max_token is None else check_whole_number("max_token", max_token, 1)
    mode, ratio = context_manage_mode, compact_ratio_threshold
    check_settings(
        mode, most, max_tool_message_tokens, group_token_threshold, keep_recent_count, ratio, preview_char_length
    )
    require("chat_id", chat_id, str, "a text")
    if store_dir is not None and not chat_id:
        raise ConfigError(("chat_id", "store_dir needs one for each session; memory.session_id will do"))
    given = check_config(config).copy_with(max_tokens=most)
    target = max(int(most * MAX_SUMMARY_SHARE), MIN_TARGET)
    if given.target_tokens is not None:
        target = min(given.target_tokens, target)
    keep = KEEP_COMPRESS if keep_recent_count is None else keep_recent_count
    changes: dict[str, Any] = {"target_tokens": target}
    if keep_recent_count is not None or "retain_recent" not in given.model_fields_set:
        changes["retain_recent"] = max(-(-keep // 2), 1)
    if group_token_threshold:
        # The limit of a request counts the instructions and the previous summary as well.
        count = get_counter(given.model)
        instructions = given.prompt.render("", previous_summary="-", role="-", target_tokens=target)
        other = target + count_prompt(instructions, count)
        changes["summarizer_input_tokens"] = group_token_threshold + other
    offload = offload_large(
        max_tool_message_tokens,
        KEEP_COMPACT if keep_recent_count is None else keep_recent_count,
        preview=0,  # _OffloadWithPreview makes the text, in characters
        tokens=True,
        kinds="tool_result",
    )
    files = None if store_dir is None else OffloadFiles(store_dir, chat_id)
    compact: tuple[Strategy, ...] = (_OffloadWithPreview(offload, preview_char_length, files),)
    compress: tuple[Strategy, ...] = (compact_view, compress_tool_runs(keep_last=keep, scope="current", reread=False))
    strategies = {"compact": compact, "compress": compress, "auto": compact + compress}
    return {
        "config": given.copy_with(**changes),
        "trigger": _make_trigger(most, ratio if mode == "auto" else 1),
        "strategies": strategies[mode],
        **({} if summarizer is None else {"summarizer": summarizer}),
    }


def _make_trigger(max_tokens: int, ratio: float) -> Trigger:
    """Due when the prompt is over *max_tokens*; also when it would be without compaction, and more than *ratio* of
    those tokens are left."""

    def judge(view: View) -> Verdict:
        # Without a token threshold: with one, a compaction would reach into the messages that are to stay.
        if view.corrected_tokens > max_tokens:
            return Verdict(True)
        saved = 0
        for round_id, reductions in view.reductions.by_round.items():
            if view.rounds.find_place(round_id) in view.places:
                saved += sum(tokens for one in reductions if isinstance(tokens := one.extra.get(SAVED), int))
        before = view.tokens + saved
        return Verdict(before > max_tokens and view.tokens > ratio * before)

    return Trigger(judge, f"context_offload({max_tokens}, {ratio:g})")


@dataclass(frozen=True)
class _OffloadWithPreview:
    """``offload_large`` with previews of *length* characters. With *files*, a preview names its file, which is written
    first; a redaction or a rewind of the post erases it."""

    offload: Callable[[View], Iterator[Reduction]]
    length: int
    files: OffloadFiles | None
    memory: Memory | None = None

    @property
    def __name__(self) -> str:
        return "offload_large"

    def for_memory(self, memory: Memory) -> Strategy:
        """Return the strategy for *memory*, and erase files by its redactions and rewinds from now on."""
        if self.files is None:
            return self
        self.files.watch(memory)
        return copy_with(self, memory=memory)

    def __call__(self, view: View) -> Iterator[Reduction]:
        count = view.token_cache.count
        for reduction in self.offload(view):
            place = (view.rounds.find_end(reduction.round_id) or 1) - 1
            round_ = view.rounds[place]
            post = next(post for post in round_.post_list if post.number == reduction.first_number)
            text, reference = join_text(post), make_post_reference(round_, post)
            if place == view.total - 1 and is_file_answer(text):
                continue  # the agent has just read it, and would have to read it again
            where = f"; reload {reference}"
            if self.files is not None:
                path = self.files.make_path(reference, text)
                if count(make_preview(text, self.length, f" in the file {path}{where}", count)) < count(text):
                    if self.memory is not None:
                        self.files.belong_to(self.memory)  # before the first write: a purge finds the files by it
                    where = f" in the file {self.files.write(reference, text)}{where}"
                    # A redaction or a rewind since the view was read may have found no file to erase.
                    now = None if self.memory is None else self.memory.snapshot.find_round(round_.id)
                    if now is not None and (
                        now.state == "undone" or any(one.number == post.number and one != post for one in now.post_list)
                    ):
                        self.files.erase(reference)
                        continue
            shorter = make_preview(text, self.length, where, count)
            if (saved := count(text) - count(shorter)) > 0:
                yield copy_with(reduction, text=shorter, extra=freeze_mapping({SAVED: saved}))
