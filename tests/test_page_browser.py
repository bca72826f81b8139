"""The page of a comparison in a real browser."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ctxextend.report.html import write_report
from tests.browser import Browser, Page, found_chromium
from tests.comparisons import METHODS, comparison, encoders

pytestmark = pytest.mark.skipif(found_chromium() is None, reason="no Chromium here: apt-get install chromium")

NAMES = "[...document.querySelectorAll('table.ranking tbody tr')].map((row) => row.cells[1].innerText.trim())"
# Where a page that is wider than its window begins, in words.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((mark) => {
  const box = mark.getBoundingClientRect();
  return box.right > innerWidth + 1 && !mark.closest('.scroll, pre, svg, figcaption');
}).map((mark) => mark.tagName + '.' + mark.className)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(str(found_chromium()), tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "a comparison.html"
    write_report(comparison(steps=200), path)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400, 360])
def test_page_fits_every_window_and_asks_nobody(browser: Browser, file: Path, width: int, scheme: str) -> None:
    page = Page(browser, file, scheme, width)
    page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.run("document.documentElement.scrollWidth") == width
    assert page.run(TOO_WIDE) == []
    assert page.complaints() == []
    assert page.requests() == [file.as_uri()]
    paper = page.run("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}[scheme]
    assert page.picture(whole=False).startswith(b"\x89PNG")
    page.close()


def test_page_of_an_encoder_and_long_names_fits_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    found = encoders()
    long = replace(found.rows[0], method="m" * 80, recipe=f"source: {'s' * 300}\n")
    path = tmp_path / "page.html"
    write_report(replace(found, source="folder/" * 30, rows=(long, *found.rows[1:]), notes=("n" * 200,)), path)
    page = Page(browser, path, width=360)
    page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.run("document.documentElement.scrollWidth") == 360
    assert page.complaints() == []
    page.close()


def test_page_sorts_its_ranking_by_a_click_and_by_the_keyboard(browser: Browser, file: Path) -> None:
    page = Page(browser, file)
    ranked = page.run(NAMES)
    assert ranked == list(METHODS)
    head = "[...document.querySelectorAll('thead button')].find((head) => head.innerText.startsWith('{}'))"
    state = "[...document.querySelectorAll('thead [aria-sort]')].map((head) => [head.innerText.trim(), head.ariaSort])"
    page.click(head.format("method"))
    assert page.run(NAMES) == sorted(METHODS)
    assert page.run(state) == [["method", "ascending"]]
    page.click(head.format("perplexity"))
    assert page.run(NAMES) == ranked
    page.press_enter()
    assert page.run(NAMES) == ranked[::-1]
    assert page.run(state) == [["perplexity", "descending"]]
    page.close()


def test_page_sorts_what_has_no_number_last(browser: Browser, file: Path) -> None:
    page = Page(browser, file)
    page.run("delete document.querySelector('table.ranking tbody tr').cells[2].dataset.value")
    for _ in range(2):
        page.run("document.querySelectorAll('table.ranking thead button')[2].click()")
        assert page.run(NAMES)[-1] == "bands"
    page.close()


def test_page_reads_as_a_plain_table_without_its_script(browser: Browser, file: Path, tmp_path: Path) -> None:
    text = file.read_text("utf-8")
    start, stop = text.index("<script>"), text.index("</script>")
    (tmp_path / "plain.html").write_text(text[:start] + "<script>" + text[stop:], "utf-8")
    page = Page(browser, tmp_path / "plain.html")
    assert page.run(NAMES) == list(METHODS)
    assert page.run("document.querySelectorAll('button').length") == 0
    page.close()


def test_page_prints_in_light_colours(browser: Browser, file: Path) -> None:
    page = Page(browser, file, "dark", 718)
    assert page.printed().startswith(b"%PDF")
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("document.documentElement.scrollWidth") == 718
    assert page.run("document.querySelector('.numbers').offsetHeight") == 0
    assert page.run("document.querySelector('.recipes pre').offsetHeight") > 0
    page.close()


def test_a_page_that_loads_something_is_caught(browser: Browser, file: Path, tmp_path: Path) -> None:
    """What the tests above say is worth no more than this."""
    added = '<img src="https://example.org/a.png">'
    (tmp_path / "page.html").write_text(file.read_text("utf-8").replace("<main>", f"<main>{added}"), "utf-8")
    page = Page(browser, tmp_path / "page.html")
    assert any("img-src" in said or "example.org" in said for said in page.complaints())
    page.close()
