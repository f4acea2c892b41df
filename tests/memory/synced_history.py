"""A history that a host holds, and its messages."""

from __future__ import annotations

from chats import Message, answer, result, user


def calls(*calls: tuple[str, str, str]) -> Message:
    asked = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": args}} for id_, name, args in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": asked}


SYSTEM: Message = {"role": "system", "content": "Be brief."}
HISTORY: list[Message] = [
    SYSTEM,
    user("Where are orders 17 and 18?"),
    calls(("a", "look", '{"order": 17, "deep": true}'), ("b", "look", '{"order": 18}')),
    result("a", "On its way."),
    result("b", "Delivered."),
    answer("17 is on its way, 18 is there."),
    user("Thank you."),
]
TURNS = [one for n in range(9) for one in (user(f"q{n}"), answer(f"a{n}"))]
