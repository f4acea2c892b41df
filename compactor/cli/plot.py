"""A plot of two series of numbers in the signs of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

#: A series' name, style and values.
Series = tuple[str, str, Sequence[int]]
#: The signs of the first and of the second series, from an eighth of a cell to a full one.
_SIGNS = ("░" * 8, "▁▂▃▄▅▆▇█")
_ASCII_SIGNS = ("." * 8, "#" * 8)
#: Columns of the scale and its line: up to 9,999,999.
_LABEL = 11


def draw_plot(
    what: str, series: tuple[Series, Series], length: int, width: int, height: int, *, ascii_only: bool
) -> Iterator[Text]:
    """Yield a legend, and *height* lines in which *length* values take the whole *width*.

    Each column shows the largest of its values. The series that ends in a lower line stands in front; of two that end
    in the same line, the second.
    """
    signs = _ASCII_SIGNS if ascii_only else _SIGNS
    legend = Text(no_wrap=True, overflow="crop")
    for (name, style, _), own in zip(series, signs, strict=True):
        legend.append_text(Text.assemble((own[-1] * 2, style), f" {name}  "))
    yield legend.append(what)
    top = max((value for _, _, values in series for value in values), default=0) or 1
    columns = [
        sorted(
            (
                (_count_eighths(values, column, length, width, height / top), index)
                for index, (*_, values) in enumerate(series)
            ),
            key=lambda one: (-(-one[0] // 8), -one[1]),
        )
        for column in range(max(1, width - _LABEL))
    ]
    labels = {0: f"{'0':>{_LABEL - 2}} ", height - 1: f"{top:>{_LABEL - 2},} "}
    for row in reversed(range(height)):
        label = labels.get(row, " " * (_LABEL - 1))
        line = Text(label + ("|" if ascii_only else "┤" if label.strip() else "│"), style="default", no_wrap=True)
        for column in columns:
            filled = [(min(8, eighths - 8 * row), index) for eighths, index in column if eighths > 8 * row]
            line.append(*((signs[filled[0][1]][filled[0][0] - 1], series[filled[0][1]][1]) if filled else (" ",)))
        yield line


def _count_eighths(values: Sequence[int], column: int, length: int, width: int, scale: float) -> int:
    """Return how many eighths of a cell the largest value in *column* fills; at least one if there is a value."""
    columns = max(1, width - _LABEL)
    first = column * length // columns
    shown = values[first : max(first + 1, (column + 1) * length // columns)]
    return max(1, round(8 * scale * max(shown))) if shown and max(shown) else 0
