"""Play the demo and draw its pictures: ``python docs/pictures.py`` writes demo.svg, demo-80x24.svg and demo-140x40.svg.

The figures in them are those of this run. The animation needs no script: each frame is shown by a CSS animation.
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

from rich.console import Console

from compactor.cli.demo import draw_screen
from compactor.cli.scenario import SALES_FORECAST, Demo

FOLDER = Path(__file__).parent
SIZES = ((80, 24), (140, 40))
#: Seconds of a round, as on a terminal, and of a frame and of the last frame in the animation.
PACE, FRAME, LAST = 0.3, 0.5, 6.0
#: Rounds between two frames; while the other side waits, there is a frame each time.
EVERY = 4
#: Height above the screen where rich draws the title of a window, which these pictures have not.
TITLE = 30

_PICTURE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>TITLE</title>
<style>text {{ font: 20px Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }} {styles}</style>
<rect width="{width}" height="{height}" fill="#292929"/>
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}{matrix}</g>
</svg>
"""
_FRAME = """\
<svg class="frame" style="animation-delay: 0s" viewBox="0 0 {width} {height}">
<style>{styles}</style><rect width="{width}" height="{height}" fill="#292929"/>
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}{matrix}</g>
</svg>
"""


def draw(demo: Demo, size: tuple[int, int], template: str, name: str) -> str:
    """Return the demo's screen of this *size* as an SVG."""
    options = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False, "markup": False}
    console = Console(record=True, file=io.StringIO(), width=size[0], height=size[1], **options)
    console.print(draw_screen(demo, SALES_FORECAST.length, console, size[1]))
    text = console.export_svg(code_format=template, unique_id=name)
    text = re.sub(
        r'viewBox="0 0 (\S+) (\S+)"', lambda box: f'viewBox="0 {TITLE} {box[1]} {float(box[2]) - TITLE:g}"', text
    )
    return re.sub(r' clip-path="[^"]*"|<text[^>]*>\s*</text>', "", text)  # half of it, and nothing of the picture


def main(folder: Path = FOLDER, pace: float = PACE) -> None:
    """Play the demo with rounds of about *pace* seconds, and write its pictures to *folder*."""
    frames: list[str] = []
    shown = -1.0

    def take_frame() -> None:
        frames.append(draw(demo, SIZES[0], _FRAME, f"f{len(frames)}"))

    def pause() -> None:
        nonlocal shown
        time.sleep(pace / 5)
        if demo.played % EVERY == 0 and demo.played != shown:
            shown = demo.played
            take_frame()

    with Demo(SALES_FORECAST, latency=2.5 * pace, model="gpt-4.1-mini") as demo:
        demo.play(SALES_FORECAST.length, pause, lambda: take_frame() if time.monotonic() % FRAME < 1 / 12 else None)
        demo.settle(10)
        demo.ask()
        take_frame()
        for width, height in SIZES:
            title = f"The last frame of compactor demo at {width} by {height}"
            text = draw(demo, (width, height), _PICTURE.replace("TITLE", title), "last")
            (folder / f"demo-{width}x{height}.svg").write_text(text, encoding="utf-8")
    (folder / "demo.svg").write_text(animate(frames), encoding="utf-8")


def animate(frames: list[str]) -> str:
    """Return one SVG that shows *frames* one after the other, again and again; where nothing moves, the last one."""
    box = frames[0].partition('viewBox="')[2].partition('"')[0]
    whole = FRAME * (len(frames) - 1) + LAST
    until, after = 100 * FRAME / whole, 100 - 100 * LAST / whole
    style = (
        'text { font: 20px Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }\n'
        f".frame {{ visibility: hidden; animation: show {whole:g}s step-end infinite }}\n"
        ".last { visibility: visible; animation-name: show-last }\n"
        f"@keyframes show {{ 0% {{ visibility: visible }} {until:.3f}% {{ visibility: hidden }} }}\n"
        f"@keyframes show-last {{ 0% {{ visibility: hidden }} {after:.3f}% {{ visibility: visible }} }}\n"
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none } }"
    )
    delayed = [frame.replace("delay: 0s", f"delay: {FRAME * number:g}s") for number, frame in enumerate(frames[:-1])]
    last = frames[-1].replace('class="frame"', 'class="frame last"')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">\n<title>compactor demo</title>'
    return f"{head}\n<style>{style}</style>\n{''.join(delayed)}{last}</svg>\n"


if __name__ == "__main__":
    main()
