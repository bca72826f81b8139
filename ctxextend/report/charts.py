"""What pictures are drawn of, as SVG: axes, curves, bands, points, bars and cells.

Colours are classes and variables of the page's style, so that one picture serves light and dark.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ctxextend.report.axes import Frame
from ctxextend.report.markup import Markup, element, joined, short

__all__ = ["Said", "band", "bar", "cells", "curve", "line_class", "picture", "points", "rule", "series", "swatch"]

# Colours and ways to dash a line that the style has; together they tell more methods apart than there are.
COLOURS, DASHES = 6, 3
# Half the width of the end of an error bar.
CAP = 3

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Said:
    """A picture in words.

    Attributes:
        key: A name of its own on the page.
        title: What it shows.
        description: What is to be seen in it, with its main figures.
    """

    key: str
    title: str
    description: str


def picture(frame: Frame, said: Said, *marks: Markup) -> Markup:
    """Return marks between axes as a picture that scales, and that is read out in words."""
    left, up, width, height = frame.inner
    # A picture in the picture cuts off what reaches beyond the axes.
    inside = element("svg", *marks, x=left, y=up, width=width, height=height, viewBox=f"{left} {up} {width} {height}")
    return element(
        "svg",
        element("title", said.title, id=f"{said.key}-title"),
        element("desc", said.description, id=f"{said.key}-text"),
        *_axes(frame),
        inside,
        role="img",
        aria_labelledby=f"{said.key}-title {said.key}-text",
        viewBox=f"0 0 {frame.width} {frame.height}",
    )


def _axes(frame: Frame) -> Iterator[Markup]:
    left, up, width, height = frame.inner
    bottom, right = up + height, left + width
    for value, text in zip(frame.y.ticks, frame.y.written, strict=True):
        at = frame.down(value)
        if not frame.y.names:
            yield element("line", x1=left, x2=right, y1=at, y2=at, class_="grid")
        yield element("text", text, x=left - 7, y=at, dy="0.35em", class_="tick end")
    for value, text in zip(frame.x.ticks, frame.x.written, strict=True):
        at = frame.across(value)
        if frame.y.names and not frame.x.names:
            yield element("line", x1=at, x2=at, y1=up, y2=bottom, class_="grid")
        yield element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis")
        yield element("text", text, x=at, y=bottom + 7, dy="0.8em", class_="tick middle")
    yield element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    if frame.x.label:
        yield element("text", frame.x.label, x=left + width / 2, y=frame.height - 5, class_="label middle")
    if frame.y.label:
        place = f"translate(13 {short(up + height / 2)}) rotate(-90)"
        yield element("text", frame.y.label, transform=place, class_="label middle")


def line_class(number: int) -> str:
    """Return the classes that give a method its colour and its dashes, the same in every picture."""
    return f"c{number % COLOURS} d{(number + number // COLOURS) % DASHES}"


def swatch(classes: str) -> Markup:
    """Return a piece of a line, to stand beside the name of what is drawn so."""
    line = element("line", x1=0, x2=26, y1=5, y2=5, class_="line")
    return element("svg", line, class_=f"swatch {classes}", viewBox="0 0 26 10", aria_hidden="true")


def series(number: int, *marks: Markup, leads: bool) -> Markup:
    """Return all marks of one method, by its place in the ranking from 0; those that do not lead stand back."""
    look = "best" if number == 0 else "" if leads else "quiet"
    return element("g", *marks, class_=f"series {line_class(number)} {look}".rstrip(), data_series=number)


def curve(frame: Frame, places: Points, class_: str = "line") -> Markup:
    """Return a line through places, broken where one is no finite number."""
    return joined(
        *(element("polyline", points=_written(frame, part), class_=class_) for part in _unbroken(places) if part)
    )


def band(frame: Frame, places: Sequence[tuple[float, float, float]]) -> Markup:
    """Return the area between a low and a high value, both behind where they stand along x."""
    known = [place for place in places if all(map(math.isfinite, place))]
    low, high = [(x, below) for x, below, _ in known], [(x, above) for x, _, above in known]
    return element("polygon", points=_written(frame, [*low, *reversed(high)]), class_="band")


def points(frame: Frame, places: Points, errors: Sequence[float]) -> Markup:
    """Return dots with error bars, each so long to either side as its error says."""
    found = [(x, y, error) for (x, y), error in zip(places, errors, strict=True) if math.isfinite(y)]
    bars = [_upright(frame.across(x), frame.down(y - error), frame.down(y + error)) for x, y, error in found if error]
    return joined(
        *bars, *(element("circle", cx=frame.across(x), cy=frame.down(y), r=3, class_="dot") for x, y, _ in found)
    )


def _upright(at: float, start: float, stop: float) -> Markup:
    ends = "".join(f"M{short(at - CAP)} {short(end)}h{2 * CAP}" for end in (start, stop))
    return element("path", d=f"M{short(at)} {short(start)}V{short(stop)}{ends}", class_="error")


def bar(frame: Frame, at: float, value: float, error: float | None) -> Markup:
    """Return a bar from 0, or from where x begins, at a place of y, with its error; nothing for what is no number."""
    if not math.isfinite(value):
        return Markup()
    start, stop = sorted((frame.across(max(0.0, frame.x.low)), frame.across(value)))
    middle, high = frame.down(at), frame.inner[3] / frame.y.high * 0.55
    box = element("rect", x=start, y=middle - high / 2, width=stop - start, height=high, class_="bar")
    reach = error if error is not None and math.isfinite(error) else 0.0
    low, top = frame.across(value - reach), frame.across(value + reach)
    ends = "".join(f"M{short(end)} {short(middle - CAP)}v{2 * CAP}" for end in (low, top))
    path = f"M{short(low)} {short(middle)}H{short(top)}{ends}"
    return joined(box, *[element("path", d=path, class_="error")] * bool(reach))


def rule(frame: Frame, at: float, text: str = "") -> Markup:
    """Return an upright line through the whole frame, with what it is beside it."""
    _, up, _, height = frame.inner
    x = frame.across(at)
    line = element("line", x1=x, x2=x, y1=up, y2=up + height, class_="rule")
    is_right = frame.x.share(at) > 0.6
    side = {"x": x - 5 if is_right else x + 5, "class_": "note end" if is_right else "note"}
    return joined(line, *[element("text", text, y=up + 3, dy="0.8em", **side)] * bool(text))


def cells(frame: Frame, shares: Sequence[Sequence[float | None]]) -> Markup:
    """Return a heat map of shares from 0 to 1 with their percents in it, by column and then by row from the top."""
    left, up, width, height = frame.inner
    wide, high = width / max(len(shares), 1), height / max(map(len, shares), default=1)
    return joined(
        *(
            _cell(share, (left + wide * x, up + high * y, wide, high))
            for x, column in enumerate(shares)
            for y, share in enumerate(column)
        )
    )


def _cell(share: float | None, place: tuple[float, float, float, float]) -> Markup:
    x, y, wide, high = place
    known = share is not None and math.isfinite(share)
    look = {"class_": "cell", "fill_opacity": share} if known else {"class_": "empty"}
    box = element("rect", x=x + 0.5, y=y + 0.5, width=wide - 1, height=high - 1, **look)
    text = f"{100 * share:.0f}" if known and share is not None else "-"
    return joined(box, element("text", text, x=x + wide / 2, y=y + high / 2, dy="0.35em", class_="tick middle"))


def _written(frame: Frame, places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{short(frame.across(x))},{short(frame.down(y))}" for x, y in places)


def _unbroken(places: Points) -> list[Points]:
    """Return the stretches of places that are finite numbers."""
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in places:
        if math.isfinite(y):
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return list(parts)
