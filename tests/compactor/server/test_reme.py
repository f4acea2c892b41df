"""ReMe's endpoints, by the calls that its documentation shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from fastapi.testclient import TestClient
from fenced import blocks
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from compactor import InMemoryStore
from compactor.server import ServerSettings, create_app
from compactor.server.reme import EXPIRE_AFTER, MAX_MATCHES, MAX_READ, Folder, ReMeError, expire_chats

PAPERS = "\n".join(f"Paper {n}: how agents manage their context, cited {n * 3} times." for n in range(600))
PAGE = "\n".join(f"Line {n} of the page on compaction, with its details." for n in range(600))
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Search for AI papers"},
    {
        "role": "assistant",
        "content": "I will search for papers",
        "tool_calls": [
            {"id": "call_123", "name": "web_search", "arguments": {"query": "AI papers"}},
            {"id": "call_456", "name": "read_webpage", "arguments": {"url": "https://example.org"}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_123", "content": PAPERS},
    {"role": "tool", "tool_call_id": "call_456", "content": PAGE},
]
ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


class Client:
    """Asks the app, and keeps the status of the last answer."""

    def __init__(self, app: TestClient, token: str = "") -> None:
        self._app, self._headers = app, {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self.status = 0

    def post(self, url: str, /, **fields: Any) -> dict[str, Any]:
        return self.ask("POST", url, content=json.dumps(fields))

    def ask(self, method: str, url: str, /, **more: Any) -> dict[str, Any]:
        response = self._app.request(method, url, headers=self._headers, **more)
        self.status = response.status_code
        answer: dict[str, Any] = response.json()
        return answer

    def offload(self, messages: Any = MESSAGES, **fields: Any) -> dict[str, Any]:
        """Return the answer to the first example of the documentation, with other *fields*."""
        example = {
            "messages": messages,
            "context_manage_mode": "auto",
            "max_total_tokens": 20000,
            "max_tool_message_tokens": 2000,
            "keep_recent_count": 0,
            "store_dir": "context_store",
            "chat_id": "research_session_001",
        }
        return self.post("/context_offload", **(example | fields))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


def open_app(root: Path, **settings: Any) -> TestClient:
    app = create_app(ServerSettings(store="memory://", store_dir=root, **settings), store=InMemoryStore())
    return TestClient(app, base_url="http://127.0.0.1:8765")


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with open_app(root) as app:
        yield Client(app)


def test_the_example_of_context_offload(client: Client, root: Path) -> None:
    """Large results go to files whose names the answer, the messages and ``write_file_dict`` give; calls stay flat."""
    store = f"{root}/context_store"
    made = client.offload(max_total_tokens=10_000, store_dir=store)
    assert made.keys() == {"success", "answer", "messages", "metadata"}
    assert made["success"] is True
    assert made["messages"][:3] == MESSAGES[:3]
    files = made["metadata"]["write_file_dict"]
    assert [*files.values()] == [PAPERS, PAGE]
    lines = made["answer"].split("\n")
    for line, name, message, text in zip(lines, files, made["messages"][3:], (PAPERS, PAGE), strict=True):
        assert name.startswith("context_store/research_session_001/")
        assert line == f"Successfully created and wrote to new file: {root}/{name}"
        assert message["content"] == f"{text[:100].strip()}\n(detailed result is stored in {root}/{name})"
        for path in (name, f"./{name}", f"{root}/{name}"):
            assert client.post("/read_file", absolute_path=path)["answer"] == text


def test_messages_that_fit_come_back(client: Client) -> None:
    """Below ``max_total_tokens`` nothing changes, and unknown fields are let through."""
    made = client.offload(max_total_tokens=100_000, workspace_id="other")
    assert (made["success"], made["messages"], made["metadata"]["write_file_dict"]) == (True, MESSAGES, {})


def test_what_was_offloaded_is_left_alone(client: Client) -> None:
    """The answer's messages are the next request's: nothing is offloaded a second time."""
    made = client.offload(max_total_tokens=10_000, context_manage_mode="compact")
    again = client.offload(
        made["messages"], max_total_tokens=50, max_tool_message_tokens=10, context_manage_mode="compact"
    )
    assert again["messages"] == made["messages"]


def test_older_messages_become_a_snapshot(client: Client) -> None:
    """``compress`` leaves a ``<state_snapshot>`` that names the file of the originals; another call continues it."""
    talk = [
        {"role": ("user", "assistant")[n % 2], "content": f"Sentence {n} says that item {n} costs {n} euros. " * 5}
        for n in range(40)
    ]
    made = client.offload(
        [MESSAGES[0], *talk], context_manage_mode="compress", max_total_tokens=1_000, keep_recent_count=2
    )
    (name,) = made["metadata"]["write_file_dict"]
    snapshot = made["messages"][1]["content"]
    assert snapshot.startswith("<state_snapshot>\n")
    assert f"file {name};" in snapshot
    assert made["messages"][2:] == talk[-2:]
    more = client.offload(
        [*made["messages"], *talk], context_manage_mode="compress", max_total_tokens=1_000, keep_recent_count=2
    )
    assert "[Stands for 78 messages" in more["messages"][1]["content"]


def test_the_example_of_grep(client: Client) -> None:
    """The answer has the pattern, the path and the filter, then each file's lines, numbered from 1."""
    client.offload(
        [{"role": "tool", "tool_call_id": "a", "content": "x\ntool1 tool1\n" + PAPERS}],
        store_dir="./cache_file/",
        chat_id="",
        max_total_tokens=100,
    )
    (name,) = client.post("/grep", pattern="Paper 599")["answer"].split("\n")[2:3]
    file = name.removeprefix("File: cache_file/")
    made = client.post("/grep", pattern="tool", path="./cache_file/", glob="*.txt", limit=100)
    assert made == {
        "success": True,
        "answer": f'Found 1 matches for pattern "tool" in path "./cache_file/" (filter: "*.txt"):\n---\nFile: {file}\nL2: tool1 tool1\n---',
        "messages": [],
        "metadata": {},
    }
    assert client.post("/grep", pattern=r"^Paper [12]:", path="cache_file")["answer"].count("\nL") == 2
    assert (
        client.post("/grep", pattern="tool", glob="*.json")["answer"]
        == 'Found 0 matches for pattern "tool" in path "." (filter: "*.json").'
    )
    assert client.post("/grep", pattern="Paper", limit=3)["answer"].startswith(
        'Found 3 matches for pattern "Paper" in path ".":\n'
    )


def test_the_example_of_read_file(client: Client) -> None:
    """The answer is the bare content; ``offset`` and ``limit`` are lines, from 0."""
    (name,) = client.offload(MESSAGES[:4], max_total_tokens=5_000)["metadata"]["write_file_dict"]
    lines = PAPERS.split("\n")
    read = client.post("/read_file", absolute_path=name)
    assert read == {"success": True, "answer": PAPERS, "messages": [], "metadata": {}}
    assert client.post("/read_file", absolute_path=name, offset=2, limit=3)["answer"] == "\n".join(lines[2:5])
    assert client.post("/read_file", absolute_path=name, limit=1)["answer"] == lines[0]
    assert client.post("/read_file", absolute_path=name, offset=599)["answer"] == lines[599]
    beyond = client.post("/read_file", absolute_path=name, offset=600)
    assert (beyond["success"], "600 lines" in beyond["answer"]) == (False, True)


OUTSIDE = [
    "../other",
    "a/../../b",
    "/etc/passwd",
    "/",
    "a\0b",
    "a\nb",
    "a" * 200,
    "..\\up",
    "C:\\secret",
    "C:/secret",
]


def test_paths_outside_are_refused(client: Client, root: Path) -> None:
    """A path that leads out of the folder, or is none, is refused by all endpoints; nothing is written."""
    (root.parent / "other").mkdir()
    requests: list[Callable[[str], dict[str, Any]]] = [
        lambda path: client.post("/grep", pattern="root", path=path),
        lambda path: client.post("/read_file", absolute_path=path),
        lambda path: client.offload(max_total_tokens=10, store_dir=path),
        lambda path: client.ask("DELETE", "/context_offload", params={"store_dir": path}),
    ]
    for path in OUTSIDE:
        for request in requests:
            assert (request(path)["success"], client.status) == (False, 403), path
    assert sorted(os.listdir(root.parent)) == ["other"]


def test_links_are_not_followed(client: Client, root: Path) -> None:
    """No link leads to a file or a folder outside, whether it is the path or lies in it."""
    secret = root.parent / "secret"
    secret.mkdir()
    (secret / "key.txt").write_text("my key")
    client.offload(max_total_tokens=5_000)
    folder = root / "_"
    (folder / "folder").symlink_to(secret)
    (folder / "context_store" / "key.txt").symlink_to(secret / "key.txt")
    assert "Found 0" in client.post("/grep", pattern="my key")["answer"]
    for path in ("folder", "folder/key.txt", "context_store/key.txt"):
        assert client.post("/grep", pattern="key", path=path)["success"] is False
        assert client.post("/read_file", absolute_path=path)["success"] is False
    assert client.offload(max_total_tokens=5_000, store_dir="folder")["success"] is False


@given(st.text(max_size=60))
def test_no_path_leads_out(path: str) -> None:
    """Whatever text a path is, it means a place in the tenant's folder, or is refused."""
    folder = Folder("/srv/files", "alice")
    try:
        relative, real = folder.find(path)
    except ReMeError:
        return
    assert os.path.normpath(real) == os.path.normpath(f"/srv/files/alice/{relative}")
    assert os.path.commonpath([os.path.normpath(real), "/srv/files/alice"]) == "/srv/files/alice"


def test_no_tenant_reaches_anothers_files(root: Path) -> None:
    """Each tenant has a folder of its own; no path, pattern or chat reaches another's."""
    with open_app(root, tokens={"alice": SecretStr(ALICE), "bob": SecretStr(BOB)}) as app:
        alice, bob, nobody = Client(app, ALICE), Client(app, BOB), Client(app)
        (name,) = alice.offload(MESSAGES[:4], max_total_tokens=5_000)["metadata"]["write_file_dict"]
        for path in (name, f"{root}/{name}", f"{root}/alice/{name}", f"alice/{name}", f"../alice/{name}"):
            assert bob.post("/read_file", absolute_path=path)["success"] is False
            assert "cited" not in bob.post("/grep", pattern="cited", path=path)["answer"].replace('"cited"', "")
        bob.ask("DELETE", "/context_offload", params={"store_dir": "context_store", "chat_id": "research_session_001"})
        assert alice.post("/read_file", absolute_path=name)["answer"] == PAPERS
        nobody.post("/read_file", absolute_path=name)
        assert nobody.status == 401


def test_a_slow_pattern_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that would take for ever is stopped, and one that would fill memory is refused."""
    monkeypatch.setattr("compactor.server.reme.SEARCH_SECONDS", 0.25)
    client.offload([{"role": "tool", "tool_call_id": "a", "content": "a" * 40 + "!" + PAPERS}], max_total_tokens=100)
    assert "more than 0.25 seconds" in client.post("/grep", pattern=r"^(a|a|aa)+$(?<!b)")["answer"]
    for pattern in ("((a{1000}){1000}){9}", "(?x)a{ 99999 }", "(", "(" * 900, r"\L<x>", "a{9,99999999999999999999}"):
        assert client.post("/grep", pattern=pattern)["success"] is False


def test_answers_are_bounded(client: Client, root: Path) -> None:
    """No search returns more than its limits, and says so; a long line is shown around its match, a huge file is not
    read at once."""
    folder = root / "_" / "big"
    folder.mkdir(parents=True)
    (folder / "lines.txt").write_text("match\n" * (MAX_MATCHES + 5))
    (folder / "long.txt").write_text("x" * 50_000 + "needle" + "y" * 50_000)
    (folder / "huge.txt").write_text("z" * (MAX_READ + 1))
    (folder / "bytes.txt").write_bytes(b"\xff\xfe")
    many = client.post("/grep", pattern="match", path="big")["answer"]
    assert many.count("\nL") == MAX_MATCHES
    assert "there are more matches" in many
    shown = client.post("/grep", pattern="needle", path="big/long.txt")["answer"]
    assert "xneedley" in shown
    assert len(shown) < 1_000
    client.post("/read_file", absolute_path="big/huge.txt")
    assert client.status == 413
    assert client.post("/read_file", absolute_path="big/bytes.txt")["answer"] == "\ufffd\ufffd"
    client.post("/read_file", absolute_path="big")
    assert client.status == 404


def test_a_chat_is_deleted_by_its_id(client: Client) -> None:
    """DELETE removes the files of one chat, and of no other; a second time there is nothing to remove."""
    first = client.offload(max_total_tokens=5_000, chat_id="one")["metadata"]["write_file_dict"]
    other = client.offload(max_total_tokens=5_000, chat_id="two")["metadata"]["write_file_dict"]
    chat = {"params": {"store_dir": "context_store", "chat_id": "one"}}
    assert client.ask("DELETE", "/context_offload", **chat)["answer"] == f'Deleted {len(first)} files of chat "one".'
    assert [client.post("/read_file", absolute_path=name)["success"] for name in (*first, *other)] == [False] * len(
        first
    ) + [True] * len(other)
    assert client.ask("DELETE", "/context_offload", **chat)["answer"] == 'Deleted 0 files of chat "one".'


def test_old_files_are_deleted(client: Client, root: Path) -> None:
    """Files that nobody has written to for 30 days go at the next request; somebody else's file stays."""
    (name,) = client.offload(MESSAGES[:4], max_total_tokens=5_000)["metadata"]["write_file_dict"]
    file, other = root / "_" / name, root / "_" / "other.txt"
    other.write_text("mine")
    past = file.stat().st_mtime - EXPIRE_AFTER.total_seconds() - 60
    for one in (file, other):
        os.utime(one, (past, past))
    assert expire_chats(str(root), timedelta(days=31)) == 0
    with open_app(root) as app:
        Client(app).offload(max_total_tokens=100_000)
    assert (file.exists(), other.exists()) == (False, True)


WRONG: list[dict[str, Any]] = [
    {"messages": [{"role": "robot"}]},
    {"messages": "none"},
    {"context_manage_mode": "fast"},
    {"max_total_tokens": 0},
    {"group_token_threshold": -1},
    {"store_dir": ""},
]


def test_wrong_requests_are_refused(client: Client) -> None:
    """Nonsense gets an answer that says what is wrong, and writes nothing."""
    for fields in WRONG:
        client.offload(**{"messages": MESSAGES} | fields)
        assert client.status == 422, fields


def test_text_comes_back_as_it_was(client: Client) -> None:
    """NUL, line ends and unusual characters survive the file and the answers."""
    text = "\0\r\n\u2028\ufeff" + PAPERS
    app = client.offload([{"role": "tool", "tool_call_id": "a", "content": "short \0"}], max_total_tokens=9_000)
    assert app["messages"][0]["content"] == "short \0"
    (name,) = client.offload([{"role": "tool", "tool_call_id": "a", "content": text}], max_total_tokens=500)[
        "metadata"
    ]["write_file_dict"]
    assert client.post("/read_file", absolute_path=name)["answer"] == text


def test_the_functions_of_the_page(root: Path) -> None:
    """The client that the page shows shortens messages, and finds and reads what was moved."""
    (block,) = blocks("docs/reme.md", "python")
    page = block.run()
    page["client"].close()
    with open_app(root) as app:
        page["client"] = app
        made = page["shorten"]([*MESSAGES, {"role": "tool", "tool_call_id": "call_789", "content": PAGE}])
        name = next(iter(made["metadata"]["write_file_dict"]))
        assert f"File: {name.removeprefix('context_store/')}\nL8: Paper 7:" in page["find"]("^Paper 7:")
        assert page["read"](name) == "\n".join(PAPERS.split("\n")[:100])


def test_a_full_disk_says_so_without_the_path(client: Client, root: Path) -> None:
    """Where files cannot be written, the answer has status 507 and no path of the server."""
    root.mkdir()
    (root / "_").write_text("in the way")
    answer = client.offload(max_total_tokens=5_000)
    assert (client.status, answer["success"], str(root) in answer["answer"]) == (507, False, False)


def test_patterns_that_call_themselves_and_no_others_are_refused(client: Client) -> None:
    """They ran over the time limit, and took hundreds of MB."""
    client.offload(max_total_tokens=10_000)
    for pattern in ("(?R)", "(a?)(?1)x", "(?P<x>a(?&x)?)+z", "(?P<x>a(?P>x)?)", r"\\(?R)", "(?x)(?+ 1)(a)"):
        answer = client.post("/grep", pattern=pattern)
        assert (client.status, answer["success"]) == (200, False), pattern
        assert "without recursion" in answer["answer"], pattern
    for pattern in (r"\(?R\)?", "(?P<x>Paper)(?P=x)?", "(?-i:Paper)", "(?:Paper)", "(?=Paper)", "(?i)paper"):
        assert client.post("/grep", pattern=pattern)["success"], pattern


def test_a_pattern_that_takes_too_much_memory_gets_an_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy:
        def search(self, *_arguments: Any, **_more: Any) -> None:
            raise MemoryError

    monkeypatch.setattr("compactor.server.reme._compile", lambda _pattern: Greedy())
    client.offload(max_total_tokens=10_000)
    answer = client.post("/grep", pattern="x")
    assert (client.status, answer["success"], "memory" in answer["answer"]) == (200, False, True)


@pytest.mark.parametrize("below", ["", "/", "/context_store"])
def test_the_documents_absolute_store_dir_is_the_servers_folder_or_below(
    client: Client, root: Path, below: str
) -> None:
    """As with ``--files /workspace`` or ``--files /workspace/context_store``."""
    store = f"{root}{below}"
    made = client.offload(max_total_tokens=10_000, store_dir=store)
    assert made["success"], made["answer"]
    named = made["answer"].splitlines()[0].rpartition(": ")[2]
    assert named.startswith(store.rstrip("/"))
    assert client.post("/read_file", absolute_path=named)["answer"] == PAPERS
    assert "Found 600 matches" in client.post("/grep", pattern="Paper", path=store, glob="*.txt", limit=1_000)["answer"]


def test_the_documents_globs_find_what_they_mean(client: Client) -> None:
    """Names have a hash instead of a number, and the chat is the folder; archives are texts."""
    client.offload(max_total_tokens=10_000)
    said = [{"role": "user" if n % 2 else "assistant", "content": f"Message {n}. {'word ' * 300}"} for n in range(30)]
    client.offload(said, context_manage_mode="compress", max_total_tokens=1_000, keep_recent_count=2)
    globs = ["compressed_*.json", "*.json", "compressed_*", "tool_call_*.txt", "tool_call_123*"]
    found = {
        word: [
            glob
            for glob in globs
            if "Found 0" not in client.post("/grep", pattern=word, path="context_store", glob=glob)["answer"]
        ]
        for word in ("Message", "Paper")
    }
    assert found == {"Message": globs[:3], "Paper": globs[3:]}
