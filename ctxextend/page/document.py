"""The page of a comparison: one file that needs nothing but a browser."""

from pathlib import Path

from ctxextend.comparison.reports import Comparison
from ctxextend.page.markup import Markup, element, joined
from ctxextend.report.saving import check_place, check_suffix, save

__all__ = ["FORMATS", "check_page", "check_page_suffix", "write_page"]

FORMATS = (".html", ".htm")


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

    The page needs no other file and asks no network: style, script and pictures are in it.

    Args:
        comparison: What was found.
        path: The file, .html or .htm. What stands there is replaced once the page is made.

    Raises:
        OutputError: The ending is not that of a page, or the file cannot be written.
    """
    check_page_suffix(path)
    save(path, _page(comparison).encode())


def _page(comparison: Comparison) -> Markup:
    title = f"{comparison.source} at {comparison.max_len_after} tokens"
    rows = [element("tr", element("td", row.method)) for row in comparison.rows]
    body = element("main", element("h1", title), element("table", *rows))
    html = element("html", element("head", element("title", title)), element("body", body), lang="en")
    return joined(Markup("<!DOCTYPE html>\n"), html)
