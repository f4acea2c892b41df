"""One HTML page: nothing in it is loaded or executed. And what a command prints, as such a page."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from string import Template

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME as THEME

from .exchange import write_atomically
from .terminal import Screen

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
$style</style>
</head>
<body>
$body
</body>
</html>
""")
_STYLE = f"""\
body {{ color: {THEME.foreground_color.hex}; background: {THEME.background_color.hex}; margin: 2rem; }}
pre {{ font: 14px/1.2 Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
"""


def make_page(title: str, style: str, body: str) -> str:
    """Return a page with this *style* sheet and *body*, whose texts must be escaped already."""
    return _PAGE.substitute(title=escape(title), style=style, body=body)


@contextmanager
def open_page(path: str | None, title: str) -> Iterator[Console | None]:
    """Provide a console whose output becomes the page at *path* when it is complete; None without a path."""
    if path is None:
        yield None
        return
    options = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False, "no_color": False}
    console = Screen(record=True, file=io.StringIO(), width=140, height=40, **options)
    with write_atomically(path, "give another path by --html") as file:
        yield console
        text = console.export_html(theme=THEME, code_format="<pre>{code}</pre>", inline_styles=True)
        file.write(make_page(title, _STYLE, text))
