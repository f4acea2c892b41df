"""The inspector's page: its files, and a session as one self-contained file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from html import escape
from importlib import resources
from string import Template
from typing import Any

from pydantic import BaseModel

from memory import Memory
from memory.rounds import run_dump

from .views import VIEWS, Inspection, describe_session

_MODULES = ("dom.js", "strip.js", "inspector.js")
#: The files that a browser loads, and their types.
FILES = dict.fromkeys(("inspector.css", "uplot.css", "login.css"), "text/css")
FILES |= dict.fromkeys(("uplot.js", *_MODULES), "text/javascript")
#: Browsers load nothing from elsewhere, and neither run nor apply anything inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Maximum characters of the rounds in a file, newest first, and maximum newest summaries.
MAX_CHARACTERS, MAX_SUMMARIES = 20_000_000, 20

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
$policy<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="icon" href="data:,">
$head</head>
<body>
<header class="top"><a href="#/">compactor inspector</a><span id="crumbs"></span><span class="spring"></span>\
<span id="connection" class="quiet" role="status"></span><button type="button" id="theme">Theme</button></header>
<main tabindex="-1"><p class="quiet">Loading …</p><noscript>This page needs JavaScript.</noscript></main>
$body</body>
</html>
""")
_LINKS = """\
<link rel="stylesheet" href="static/uplot.css">
<link rel="stylesheet" href="static/inspector.css">
<script defer src="static/uplot.js"></script>
<script type="module" src="static/inspector.js"></script>
"""


def read_file(name: str) -> str:
    """Return one of ``FILES``. Raises ``KeyError`` for another name."""
    FILES[name]
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def make_page() -> str:
    """Return the page of a server, which loads its files and requests its data."""
    return _PAGE.substitute(policy="", title="compactor inspector", head=_LINKS, body="")


def make_offline_page(memory: Memory, *, budget: int | None = None, model: str = "") -> str:
    """Return a session's page as one file, which needs no server and loads nothing."""
    styles = [read_file("uplot.css"), read_file("inspector.css")]
    # One module: a page without a server cannot import others.
    module = "\n".join(re.sub(r"(?m)^import .*;$|^export ", "", read_file(name)) for name in _MODULES)
    scripts = [("", read_file("uplot.js")), (' type="module"', module)]
    hashes = (" ".join(map(_hash_source, texts)) for texts in ([text for _, text in scripts], styles))
    policy = "default-src 'none'; img-src data:; script-src {}; style-src {}".format(*hashes)
    data = dict(_list_parts(memory, budget, model))
    # Escaped: no data can close the element, or be parsed as markup.
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    body = f'<script type="application/json" id="data">{text}</script>\n'
    body += "".join(f"<script{kind}>{script}</script>\n" for kind, script in scripts)
    return _PAGE.substitute(
        policy=f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n',
        title=escape(f"{memory.session_id} in compactor").encode("utf-8", "replace").decode(),
        head="".join(f"<style>{style}</style>\n" for style in styles),
        body=body,
    )


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _list_parts(memory: Memory, budget: int | None, model: str) -> Iterator[tuple[str, Any]]:
    """Yield each response that the page may request, with its name."""
    about = describe_session(memory)
    yield "name", about.session.encode("utf-8", "replace").decode()
    yield "saved", datetime.now(UTC).isoformat()
    yield "session", _dump(about)
    room = MAX_CHARACTERS
    for role in about.roles:
        inspection = Inspection(memory, role, budget=budget, model=model)
        yield f"role/{role}", _dump(inspection.describe_role())
        yield f"prompt/{role}", _dump(inspection.describe_prompt())
        for name, make_view in VIEWS.items():
            yield f"{name}/{role}", _dump(make_view(inspection))
        for one in inspection.list_generations()[-MAX_SUMMARIES:]:
            yield f"summary/{role}/{one.index}", _dump(inspection.describe_summary(one.index))
        for number in range(about.rounds, 0, -1):
            round_ = inspection.describe_round(number)
            room -= sum(len(one.text) + len(one.replacement or "") for one in round_.posts)
            if room < 0:
                break
            yield f"round/{role}/{number}", _dump(round_)


def _dump(value: BaseModel | list[Any]) -> Any:
    if isinstance(value, list):
        return [_dump(one) for one in value]
    return run_dump(partial(value.model_dump, mode="json"))
