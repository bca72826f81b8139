"""The page of a comparison: one file that needs nothing but a browser."""

import base64
import hashlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from ctxextend.comparison.reports import Comparison
from ctxextend.report.charts import line_class, swatch
from ctxextend.report.losses import context_panel, position_panel
from ctxextend.report.markup import Markup, element, joined
from ctxextend.report.multiples import norm_panel, passkey_panel
from ctxextend.report.page_panels import Panel
from ctxextend.report.ranking import ranking
from ctxextend.report.saving import check_place, check_suffix, save
from ctxextend.report.standings import cost_panel, retrieval_panel
from ctxextend.report.words import run_facts, verdict
from ctxextend.version import __version__

__all__ = ["FORMATS", "check_page", "check_page_suffix", "write_page"]

FORMATS = (".html", ".htm")

STAGE = "Methods stand by what they are worth after the training, and pictures show that too."
PANELS = (cost_panel, position_panel, context_panel, retrieval_panel, norm_panel, passkey_panel)


def check_page_suffix(path: Path) -> None:
    """Refuse a name whose ending is not that of a page.

    Raises:
        OutputError: Which endings there are.
    """
    check_suffix(path, FORMATS, "pages")


def check_page(path: Path) -> None:
    """Refuse a page that has no place to go, before there is any work in it.

    Raises:
        OutputError: What is in the way, and what to do.
    """
    check_page_suffix(path)
    check_place(path)


def write_page(comparison: Comparison, path: Path) -> None:
    """Write a comparison as one HTML page; the same one gives the same bytes.

    The page needs no other file and asks no network: style, script and pictures are in it. It holds the ranking, losses
    by position and by context, norms and passkeys of each method, as far as they were measured, and the recipes.

    Args:
        comparison: What was found.
        path: The file, .html or .htm. What stands there is replaced once the page is made.

    Raises:
        OutputError: The ending is not that of a page, or the file cannot be written.
    """
    check_page_suffix(path)
    save(path, _page(comparison).encode())


def _page(comparison: Comparison) -> Markup:
    script, style = _part("page.js"), _part("page.css")
    title = f"{comparison.source}: methods compared at {comparison.max_len_after:,} tokens"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    body = element("body", element("main", *_content(comparison)), element("script", script))
    return joined(Markup("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), Markup("\n"))


def _part(name: str) -> Markup:
    # Browsers read every line's end as \n before they take the script's hash; so does this.
    return Markup(resources.files("ctxextend.report").joinpath(name).read_text(encoding="utf-8"))


def _policy(script: str) -> str:
    """Return what the page may load: nothing, and run: its own script alone."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _content(comparison: Comparison) -> Iterator[Markup]:
    yield element("header", *_header(comparison))
    stage = [element("p", STAGE, class_="caption")] * bool(comparison.steps)
    yield element("section", element("h2", "Ranking"), *stage, ranking(comparison), class_="wide")
    for make in PANELS:
        panel = make(comparison)
        if panel is not None:
            yield _section(panel)
    if comparison.rows:
        yield element("section", element("h2", "Recipes"), *_recipes(comparison), class_="wide recipes")
    notes = list(_notes(comparison))
    if notes:
        yield element("section", element("h2", "Notes"), element("ul", *notes), class_="wide notes")
    yield element("footer", f"ctxextend {__version__}. Every ± is two standard errors.")


def _header(comparison: Comparison) -> Iterator[Markup]:
    before, after = comparison.max_len_before, comparison.max_len_after
    yield element("p", "Methods compared", class_="kind")
    yield element("h1", f"{comparison.source}, {before:,} → {after:,} tokens")
    yield element("p", *_marked(verdict(comparison)), class_="verdict")
    unfinished = ["Incomplete: not all that was asked for was measured."] * (not comparison.complete)
    for warning in (*unfinished, *comparison.warnings):
        yield element("p", warning, class_="warning")
    facts = (element("div", element("dt", label), element("dd", text)) for label, text in run_facts(comparison))
    yield element("dl", *facts, class_="facts")


def _marked(text: str) -> Iterator[str]:
    """Yield text with what stands in backticks set apart."""
    for number, part in enumerate(text.split("`")):
        yield element("b", part) if number % 2 else part


def _section(panel: Panel) -> Markup:
    heading = element("h2", panel.title, id=f"{panel.key}-heading")
    parts = (heading, panel.pictures, element("p", panel.caption, class_="caption"), panel.numbers)
    classes = "panel wide" if panel.is_wide else "panel"
    return element("section", *parts, class_=classes, aria_labelledby=f"{panel.key}-heading")


def _recipes(comparison: Comparison) -> Iterator[Markup]:
    yield element("p", "What makes each row again: save it and type ctxextend run FILE.", class_="caption")
    for number, row in enumerate(comparison.rows):
        summary = element("summary", swatch(line_class(number)), " ", row.method)
        yield element("details", summary, element("pre", element("code", row.recipe)))


def _notes(comparison: Comparison) -> Iterator[Markup]:
    for note in comparison.notes:
        yield element("li", note)
    for method, reason in comparison.left_out.items():
        yield element("li", element("b", method), f" was left out: {reason}")
