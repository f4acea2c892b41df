"""Summaries by whatever you have: a plain function, or an object with ``chat_completion`` such as TaskWeaver's LLM API.

Runs offline. For a model of your own use ``OpenAISummarizer(model, base_url=...)``, which speaks to any
OpenAI-compatible endpoint.
"""

from __future__ import annotations

from typing import Any

from compactor import CompactorConfig, ContextCompactor, Memory, Summary, SummaryRequest, compose


def headlines(request: SummaryRequest) -> Summary:
    """Keep the first words of each query, beneath what was kept before. Slow things are fine here: nobody waits."""
    before = [request.previous.summary] if request.previous else []
    new = [f"- {round_.user_query.split(':')[0]}" for round_ in request.rounds]
    return Summary("\n".join([*before, *new]), usage={"input_tokens": 0, "output_tokens": 0}, model="headlines")


class LLMApi:
    """Shaped as TaskWeaver's: what comes back is a message."""

    def chat_completion(self, messages: list[dict[str, Any]], **_options: Any) -> dict[str, str]:
        # messages hold the rendered prompt: quoted conversation first, instruction last.
        size = sum(len(message["content"]) for message in messages)
        return {"role": "assistant", "content": f"The user had chapters read aloud; that took {size:,} characters."}


def chat(summarizer: object) -> str:
    """Return what heads the prompt after twelve rounds with that summarizer."""
    memory = Memory()
    config = CompactorConfig(threshold=5, retain_recent=2)
    with ContextCompactor.for_role(memory, "Reader", config, summarizer) as compactor:
        for number in range(1, 13):
            round_ = memory.create_round(f"Chapter {number}: please read it aloud, slowly, and with all the voices")
            memory.add_post(round_, send_from="Reader", send_to="User", message="It was a dark and stormy night. " * 9)
            memory.finish_round(round_)
        compactor.compact_now(timeout=30)  # now rather than when it is due, to have something to show
    return str(compose(memory, "Reader", budget=4_000).messages[0].get("content"))


def main() -> None:
    print(chat(headlines), chat(LLMApi()), sep="\n\n")


if __name__ == "__main__":
    main()
