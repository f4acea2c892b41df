"""Two agents, two compactors: a planner and a code interpreter, each with its own view, prompt and summary.

Runs offline: the agents are scripted, and without a summarizer the summaries are extracted.
"""

from __future__ import annotations

from compactor import Attachment, ContextCompactor, Memory, Settings, compose

SETTINGS = Settings.from_dict(
    {
        "compaction.threshold": 8,
        "compaction.retain_recent": 3,
        "code_interpreter.compaction.target_tokens": 400,
    }
)


def work(memory: Memory, number: int) -> None:
    """Play one round: the user asks, the planner hands a step on, the code interpreter reports, the planner answers."""
    query = f"Clean sales_{number:02}.csv. Never change anything below raw/."
    round_ = memory.create_round(query)
    memory.add_post(round_, send_from="User", send_to="Planner", message=query)

    planner_prompt = compose(memory, "Planner", system="You plan.", budget=4_000)
    # Here a real planner would send planner_prompt.messages to its model.
    plan = Attachment(type="plan", content=f"1. load sales_{number:02}.csv 2. drop duplicates 3. report")
    memory.add_post(
        round_,
        send_from="Planner",
        send_to="CodeInterpreter",
        message=f"Drop the duplicates of sales_{number:02}.csv.",
        attachment_list=[plan],
    )
    coder_prompt = compose(memory, "CodeInterpreter", system="You write and run code.", budget=4_000)
    code = Attachment(type="python", content=f"df_{number:02} = pd.read_csv('sales_{number:02}.csv').drop_duplicates()")
    memory.add_post(
        round_,
        send_from="CodeInterpreter",
        send_to="Planner",
        message=f"df_{number:02} has {1_000 + 7 * number} rows; {number} duplicates were dropped.",
        attachment_list=[code],
    )
    memory.add_post(round_, send_from="Planner", send_to="User", message=f"Done: {number} duplicates dropped.")
    memory.finish_round(round_)
    print(f"round {number:2}: {planner_prompt.tokens:4} tokens for the planner, {coder_prompt.tokens:4} for the coder")


def main() -> None:
    memory = Memory("sales")
    planner = ContextCompactor.for_role(memory, "Planner", SETTINGS.for_role("Planner"))
    coder = ContextCompactor.for_role(memory, "CodeInterpreter", SETTINGS.for_role("CodeInterpreter"))
    with planner, coder:
        for number in range(1, 31):
            work(memory, number)
        # A chat loop never waits; this one is over in no time, so what runs in the background is given a moment.
        for compactor in (planner, coder):
            compactor.wait_idle(timeout=30)
            prompt = compose(memory, compactor.role, budget=4_000)
            beginning = prompt.messages[0].get("content")
            print(f"\n{compactor.role} now reads {prompt.tokens} tokens, which begin:\n{beginning}")


if __name__ == "__main__":
    main()
