"""What a command prints, as one HTML page: all text escaped, and nothing that is loaded or executed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from .exchange import name_errors, replace_when_complete
from .terminal import Screen

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>TITLE</title>
<style>
body {{ color: {foreground}; background: {background}; margin: 2rem; }}
pre {{ font: 14px/1.2 Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
</style>
</head>
<body>
<pre>{code}</pre>
</body>
</html>
"""


@contextmanager
def open_page(path: str | None, title: str) -> Iterator[Console | None]:
    """Provide a console whose output becomes the page at *path* when it is complete; None without a path."""
    if path is None:
        yield None
        return
    options = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False, "no_color": False}
    console = Screen(record=True, file=io.StringIO(), width=140, height=40, **options)
    with name_errors(f"{path} cannot be written", "give another path by --html"), replace_when_complete(path) as file:
        yield console
        template = _PAGE.replace("TITLE", escape(title.translate({ord("{"): "{{", ord("}"): "}}"})))
        file.write(console.export_html(theme=SVG_EXPORT_THEME, code_format=template, inline_styles=True))
