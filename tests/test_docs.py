"""The pages say what is so: links lead somewhere, names exist, code runs, tables match the code."""

from __future__ import annotations

import json
import pkgutil
import re
import runpy
import tokenize
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from coming_from import PAGES as COMING_FROM
from coming_from import rows
from command_line import run
from event_loops import closing_event_loop
from fenced import ROOT, Block, blocks, reader

import compactor
import memory
import prompts
from compactor import CompactorConfig, Settings
from compactor.telemetry import METRICS

DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *DOCS]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def text_of(page: str) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_pages_install_extras_as_the_readme_does() -> None:
    """From a clone: no index has the package."""
    found = {
        name
        for page in PAGES
        for name in re.findall(r"pip install\s+(?:-e )?[\"']([^\"']+)", (ROOT / page).read_text(encoding="utf-8"))
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {re.fullmatch(r"\.\[(.+)\]", name) for name in found}
    assert {one for match in named if match for one in match[1].split(",")} <= set(extras)
    assert {"otel", "mcp", "server"} <= {match[1] for match in named if match}
    assert None not in named


# -- links and places ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    """Whoever follows a link between the pages arrives."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("https://", "http://")):
            continue
        file, _, heading = target.partition("#")
        place = (ROOT / page).parent / file if file else ROOT / page
        assert place.exists(), target
        assert not heading or heading in anchors(place), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_has_no_link_that_breaks_elsewhere() -> None:
    """PyPI shows the README without the files beside it, so pages are named, not linked. Pictures have a text instead."""
    links = re.findall(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)", text_of("README.md"))
    assert all(link.startswith("https://") for link in links)


def pages_in(entry: object) -> Iterator[str]:
    """Yield the pages that an entry of the site's navigation holds."""
    if isinstance(entry, str):
        yield f"docs/{entry}"
    elif isinstance(entry, Mapping | list):
        for inner in entry.values() if isinstance(entry, Mapping) else entry:
            yield from pages_in(inner)


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    """A page that nothing links to is not read."""
    assert sorted(pages_in(SITE["nav"])) == DOCS


def test_every_public_name_stands_in_the_reference() -> None:
    """The reference has whatever programs import from ``compactor`` and ``memory``."""
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in DOCS if page.startswith("docs/reference/"))
    listed = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    whole = {name for place in listed if (names := getattr(resolve(place), "__all__", None)) for name in names}
    assert len(listed) == len(set(listed))
    named = {place.rpartition(".")[2] for place in listed} | whole
    assert {*compactor.__all__, *memory.__all__} <= named


def resolve(place: str) -> object:
    """Return the object at a dotted place; raises where there is none."""
    return pkgutil.resolve_name(place)


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_files_named_on_the_pages_exist(page: str) -> None:
    """A page that says where something is kept or tested is right about the place."""
    for span in re.findall(r"`((?:memory|prompts|compactor|tests|docs|examples|\.ci)/[\w./]+)`", text_of(page)):
        assert (ROOT / span).exists(), span


def test_every_module_stands_in_the_table_of_modules() -> None:
    """By its own name or its folder's: who looks for what something does need not open fifty files."""
    named = set(re.findall(r"`([\w./]+?)/?`", text_of("docs/architecture.md")))
    for package in ("memory", "prompts", "compactor"):
        for path in (ROOT / package).rglob("[!_]*.py"):
            place = path.relative_to(ROOT)
            assert named & {place.as_posix(), *(folder.as_posix() for folder in place.parents[:-2])}, place


def test_functions_stand_in_the_files_that_the_architecture_names() -> None:
    """A reader who goes by the tables finds the function in the file: first the file's cell, then the functions'."""
    rows = re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \| (`[^|(]+)[^|]*\|", text_of("docs/architecture.md"), re.MULTILINE)
    assert len(rows) >= 15
    for file, functions in rows:
        defined = re.findall(r"^ *def (\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        for function in re.findall(r"`(\w+)`", functions):
            assert function in defined, f"{function} is not in {file}"


@pytest.mark.parametrize("page", DOCS)
def test_functions_stand_in_the_files_that_a_sentence_names(page: str) -> None:
    """Wherever a page says that something is "in" a file, or names the file in parentheses behind it."""
    text = text_of(page)
    places = re.findall(r"`(\w+)` in\s+`((?:memory|prompts|compactor)/[\w/]+\.py)`", text)
    places += re.findall(r"`(\w+)` \(`((?:memory|prompts|compactor)/[\w/]+\.py)`\)", text)
    for name, file in places:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:(?:async )?def|class) {name}\b|^ *{name}\b.* = ", source, re.MULTILINE), (name, file)
    assert places or page != "docs/architecture.md"


# -- code ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [block for page in DOCS for block in blocks(page, "python")], ids=str)
def test_code_blocks_of_the_docs_run(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block runs by itself, and prints what the block titled "prints" behind it says; one titled "before" is other
    people's code, and not run."""
    if block.info == 'title="before"':
        return
    if block.framework:
        pytest.importorskip(block.framework)
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="(?!__main__)")  # not the block's
    with closing_event_loop(), reader(block.page, tmp_path, monkeypatch, said=[]):
        block.run()
    behind = next((other for other in blocks(block.page) if other.line > block.line), None)
    if behind is not None and behind.info == 'title="prints"':
        assert capsys.readouterr().out == behind.text


def test_the_settings_that_cost_least_are_weighed_as_they_are_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block that has it all asks nobody yet, and weighs with the prices of its model: a tenth for a cached token."""
    page = "docs/cost.md"
    with reader(page, tmp_path, monkeypatch, said=[]) as server:
        names = blocks(page, "python")[0].run()
        assert server.requests == []
    evaluations = [event for event in names["compactor"].events if event.name == "compaction.cost_evaluated"]
    assert {event.reason for event in evaluations} == {"nothing_to_cover"}
    assert (evaluations[0].role, round(evaluations[0].cached_price, 9)) == ("assistant", 0.1)
    assert names["compactor"].describe() in capsys.readouterr().out


def test_the_configuration_shown_gives_each_role_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block below ``config.json`` reads what that file says."""
    page = "docs/configuration.md"
    with reader(page, tmp_path, monkeypatch, said=[]):
        settings = blocks(page, "python")[0].run()["settings"]
        planner, coder = settings.for_role("Planner"), settings.for_role("CodeInterpreter")
        assert planner.prompt.content == prompts.load("planner.yaml").content
    assert (planner.threshold, coder.threshold, coder.retain_recent) == (30, 20, 5)


@pytest.mark.parametrize("block", [block for page in DOCS for block in blocks(page, "yaml")], ids=str)
def test_prompts_of_the_docs_can_be_used(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(block.text, encoding="utf-8")
    assert CompactorConfig(prompt_template_path=str(path)).prompt.render("<conversation/>")


@pytest.mark.parametrize("block", [block for page in DOCS for block in blocks(page, "yml")], ids=str)
def test_workers_in_containers_are_given_options_that_they_have(block: Block) -> None:
    """And no less time to end than the jobs in flight get."""
    read = yaml.safe_load(block.text)
    if "services" in read:
        service = read["services"]["worker"]
        words, seconds = service["command"].split(), int(service["stop_grace_period"].removesuffix("s"))
    else:
        pod = read["spec"]["template"]["spec"]
        words, seconds = pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]
    assert words[:2] == ["compactor", "worker"]
    told = run("worker", "--help", COLUMNS="200").out
    assert all(word in told for word in words if word.startswith("--"))
    assert float(words[words.index("--drain") + 1]) < seconds


@pytest.mark.parametrize("page", ["docs/configuration.md"])
def test_variables_on_the_pages_set_what_they_name(page: str) -> None:
    """An environment variable that a page shows is one that the settings know."""
    shown = re.findall(r"\b(COMPACTOR_\w+)=(\w+)", (ROOT / page).read_text(encoding="utf-8"))
    assert shown
    for variable, value in shown:
        name = variable.rpartition("__")[2].lower().replace("compaction_prompt_path", "prompt_template_path")
        role = "planner" if "PLANNER" in variable else ""
        config = Settings.from_dict({}, env={variable: value}).for_role(role)
        assert str(getattr(config, name)).lower() == value


def test_shell_blocks_of_the_docs_only_set_variables() -> None:
    """A command in a block of the docs would be one that nobody runs."""
    lines = [line for page in DOCS for block in blocks(page, "sh") for line in block.text.splitlines()]
    assert all(line.startswith("export COMPACTOR_") for line in lines)


# -- names ---------------------------------------------------------------------------------------------------------------


def names_in_use() -> set[str]:
    """Return the names in the source, those of its modules, and its strings of one word: keys, events and the like."""
    names = {*prompts.list_shipped(), *prompts.PLACEHOLDERS}
    for package in ("memory", "compactor", "prompts"):
        for path in (ROOT / package).rglob("*.py"):
            names |= {path.stem, path.parent.name}
            with tokenize.open(path) as file:
                tokens = list(tokenize.generate_tokens(file.readline))
            words = {token.string for token in tokens if token.type in (tokenize.NAME, tokenize.STRING)}
            names |= {part for word in words if re.fullmatch(r"[\w.\"]+", word) for part in word.strip('"').split(".")}
    return names


#: Names of the libraries that are compared, and of their settings: those that their adapters use and speak of.
COMPARED = {
    name
    for path in [*(ROOT / "benchmarks").glob("peers/*.py"), *(ROOT / "benchmarks").glob("comparison/*.py")]
    for name in re.findall(r"\w+", f"{path.stem} {path.read_text(encoding='utf-8')}")
}

#: Names on the pages that are not ours: other projects', the shell's, and those that examples make up.
FOREIGN = {
    "reme": {"tool_call_"},
    "proxy": {"security"},
    "benchmarks": COMPARED,
    "configuration": {"FIELD", "ROLE", "CodeInterpreter", "llm", "false"},
    "README": {
        "create_agent",
        "middleware",
        "RoundCompressor",
        "key",
        "CodeInterpreter",
        "true",
        "ThreadPoolExecutor",
        "OPENAI_API_KEY",
    },
    "architecture": {"fork"},
    "operate": {  # tests/test_grafana.py checks them
        f"{one.prometheus_name}{'_total' if one.kind == 'counter' else ''}" for one in METRICS
    },
    "evaluate": {"dry", "fail", "spend", "user_id"},
    "formats": {
        *("is_error", "response", "citations", "custom_tool_call", "_output", "computer_call", "local_shell_call"),
        *("shell_call", "apply_patch_call", "item_reference", "executable_code", "code_execution_result"),
        *("container_upload", "server_tool_use", "thought"),
    },
    "frameworks": {
        *re.findall(r"\w+", (ROOT / "benchmarks/own_compaction.py").read_text(encoding="utf-8")),
        *("before_llm_call", "BaseLLM", "OpenAIChatCompletionsModel", "llama", "dynamic_prompt"),
        *("save_state", "load_state", "dump_component", "ChatCompletionContext"),
        *("OpenAICompaction", "AnthropicCompaction", "chat_store"),
    },
    "server": {"Forwarded", "For", "Proto", "GET", "POST", "PUT", "DELETE", "Bearer", "Retry", "After"},
    "serving": {"ThreadPoolExecutor", "gc", "freeze", "unfreeze"},
    "versioning": {"DeprecationWarning"},
    "storage": {
        *("dry", "fork", "on", "pg_trgm", "s3fs", "synchronous_commit", "synchronous_standby_names", "remote_apply"),
        "LISTEN",
    },
    "coming-from": {
        "raises",  # tests/coming_from.py has it
        "RoundCompressor",
        "round_compressor",
        "compress_rounds",
        "rounds_to_retain",
        "rounds_to_compress",
        "rounds_formatter",
        "prompt_compression",
        "compression_prompt_path",
        "code_generator",
        "llm_alias",
        "processed_rounds",
        "PREVIOUS_SUMMARY",
        "SUMMARY",
        "compose_conversation_for_prompt",
        "compose_conversation",
        "taskweaver",
        "compaction",
        "true",
        "false",
        "logger",
        "state_snapshot",
    },
}


def test_names_on_the_pages_exist() -> None:
    """What a page calls by name is called that in the code: a renamed thing is renamed on the pages."""
    ours = names_in_use()
    missing = [
        (page, span)
        for page in ["README.md", *DOCS]
        for span, names in named_on(page)
        if names - ours - FOREIGN.get(Path(page).stem, set()) - FOREIGN.get(Path(page).parent.name, set())
    ]
    assert missing == []


def named_on(page: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each code span of the page with the names in it."""
    text = text_of(page)
    if page in COMING_FROM:
        for row in rows():
            text = text.replace(row.code, "")  # it is run
        text = re.sub(r"^\| .*? \| ", "", text, flags=re.MULTILINE)  # what stands left in a table is not ours
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
        if re.fullmatch(r"r\d+(?:\.p\d+(?:-p\d+)?|-r\d+)?", span):
            continue  # a place in the log
        if re.search(r"[\s/\\]|\.(?:py|md|ya?ml|jsonl?|toml)\b", re.sub(r"\(.*", "", span)):
            continue  # a command, a path, a file
        # Without strings, and without variables, which are tried above.
        yield span, set(re.findall(r"\b[A-Za-z_]\w+", re.sub(r"\".*?\"|'.*?'|COMPACTOR_\w+=\w+", "", span)))


def test_the_costs_on_the_pages_are_those_of_the_newest_comparison() -> None:
    """What the pages say of the newcomer's two lines is what ``benchmarks/run`` has written beside them."""
    played = json.loads(text_of("docs/comparison.json"))["scenarios"]
    rows = {name: row for name, rows in played.items() for row in rows if row.get("label") == "ours:messages"}
    costs = {name: f"{row['relative'][0]:.2f}" for name, row in rows.items() if row.get("relative")}
    page = text_of("docs/benchmarks.md")
    (told,) = re.findall(r"\*\*The two lines cost (.+?)\*\*", page)
    assert re.findall(r"(0\.\d\d) in `(\w+)`", told) == [
        (costs[name], name) for name in ("chat", "tools", "weeks", "task")
    ]
    assert re.findall(r"`other`,\s+the two lines cost (0\.\d\d)", page) == [costs["other"]]
    assert re.findall(r"`airline`, cost (0\.\d\d)", page) == [costs["airline"]]
    one_model = [cost for name, cost in costs.items() if name != "other"]
    assert re.findall(r"the cost is (0\.\d\d) to (0\.\d\d)", text_of("README.md")) == [(min(one_model), max(one_model))]
    assert re.findall(r"this costs (0\.\d\d) of no compaction", text_of("docs/cost.md")) == [costs["task"]]


def test_the_table_of_fields_is_the_configuration() -> None:
    """Every field stands in the table with its default, in the order of the class, and no other does."""
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", text_of("docs/configuration.md"), re.MULTILINE)
    assert rows == [
        (name, repr(field.default).replace("'", '"')) for name, field in CompactorConfig.model_fields.items()
    ]


# -- changelog -------------------------------------------------------------------------------------------------------------


def test_the_changelog_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r"^## \[(.+?)\] - (?:\d{4}-\d\d-\d\d|unreleased)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == project["version"]


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_load_nothing_and_run_nothing(picture: Path) -> None:
    """Whole XML without scripts, and without anything from elsewhere."""
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314  (made here)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"<script|<foreignObject|href=|url\((?!#)|@import|\bon\w+=", text)


@pytest.mark.slow
def test_the_pictures_of_the_demo_are_drawn_by_their_script(tmp_path: Path) -> None:
    """An animation whose frames have their turns one after the other, and the last frame in two sizes."""
    runpy.run_path(str(ROOT / "docs" / "pictures.py"))["main"](tmp_path, 0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-140x40.svg", "demo-80x24.svg", "demo.svg"]
    frames = re.findall(
        r'<svg class="frame( last)?" style="animation-delay: ([\d.]+)s"', (tmp_path / "demo.svg").read_text()
    )
    assert len(frames) > 10
    assert [last for last, _ in frames] == [""] * (len(frames) - 1) + [" last"]
    delays = [float(delay) for _, delay in frames[:-1]]
    assert delays == sorted(set(delays))
