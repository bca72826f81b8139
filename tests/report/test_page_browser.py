"""HTML reports in a real browser: layout, network access and sorting."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxextend import resize
from ctxextend.inspection.inspect import inspect
from ctxextend.report.html import write_report
from tests.helpers.comparisons import METHODS, comparison, encoders
from tests.helpers.evaluations import EXTENDED

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
NO_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
)
pytestmark = [NO_BROWSER, pytest.mark.slow]

FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
)
OPEN = "document.querySelectorAll('details').forEach((details) => { details.open = true; });"
WIDTH = "document.documentElement.scrollWidth"
# Elements that overflow the window and are not in a container that scrolls or clips.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.right > innerWidth + 1 && !element.closest('.scroll, pre, svg, figcaption');
}).map((element) => element.tagName + '.' + element.className)"""
IMAGE = '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">'
LOADED = "document.images[0].naturalWidth"
PAPER = "getComputedStyle(document.documentElement).backgroundColor"
NAMES = (
    "[...document.querySelectorAll('table.ranking tbody tr')].map((row) => "
    "row.cells[1].innerText.trim())"
)
HEADS = "document.querySelectorAll('table.ranking thead button')"

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that evaluates JavaScript in a page, shown in a frame of a given width."""

    def run(
        page: str, *expressions: str, before: str = "", width: int = 1280, dark: bool = False
    ) -> list[Any]:
        send = f"{before}; parent.postMessage(JSON.stringify([{', '.join(expressions)}]), '*');"
        script = f"<script>addEventListener('load', () => {{ {send} }});</script>"
        (tmp_path / "framed.html").write_text(page.replace("</body>", f"{script}</body>"), "utf-8")
        frame = (
            f'<iframe src="framed.html" width="{width}" height="900" style="border: 0"></iframe>'
        )
        receive = (
            "addEventListener('message', (event) => { document.body.innerText = 'FOUND' + "
            "event.data; });"
        )
        (tmp_path / "frame.html").write_text(f"<script>{receive}</script><body>{frame}</body>")
        scheme = 0 if dark else 1
        profile = tmp_path / "profile"
        flags = (
            f"--user-data-dir={profile}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--virtual-time-budget=5000",
            "--dump-dom",
        )
        command = [str(CHROMIUM), *FLAGS, *flags, (tmp_path / "frame.html").as_uri()]
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        ).stdout
        (found,) = re.findall(r"<body>FOUND(.*?)</body>", output, re.DOTALL)
        return list(json.loads(html.unescape(found.replace("<br>", "\n"))))

    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "a comparison.html"
    write_report(comparison(), path)
    return path.read_text("utf-8")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_comparison_report_fits_the_window_in_light_and_dark_mode(
    page: str, width: int, dark: bool, run: Run
) -> None:
    paper = "rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)"
    found = run(page, WIDTH, TOO_WIDE, PAPER, before=OPEN, width=width, dark=dark)
    assert found == [width, [], paper]


def test_encoder_report_with_long_names_fits_a_narrow_window(run: Run, tmp_path: Path) -> None:
    found = encoders()
    long = replace(found.rows[0], method="m" * 80, recipe=f"source: {'s' * 300}\n")
    path = tmp_path / "page.html"
    write_report(
        replace(found, source="folder/" * 30, rows=(long, *found.rows[1:3]), notes=("n" * 200,)),
        path,
    )
    assert run(path.read_text("utf-8"), WIDTH, before=OPEN, width=360) == [360]


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (360, False)])
def test_reports_of_evaluate_and_inspect_fit_the_window(
    width: int, dark: bool, run: Run, tmp_path: Path
) -> None:
    resize("tiny-gpt2", 512, output="longer")
    found: list[Any] = [EXTENDED, [inspect("tiny-gpt2"), inspect("longer")]]
    for one in found:
        write_report(one, tmp_path / "page.html", f"ctxextend evaluate {'m' * 200}")
        page = (tmp_path / "page.html").read_text("utf-8")
        page = page.replace(
            "style-src", "script-src 'unsafe-inline'; style-src"
        )  # these reports allow no scripts
        assert run(page, WIDTH, TOO_WIDE, before=OPEN, width=width, dark=dark) == [width, []]


def test_report_sorts_the_ranking_on_click(page: str, run: Run) -> None:
    state = (
        "[...document.querySelectorAll('[aria-sort]')].map((head) => [head.innerText.trim(), "
        "head.ariaSort])"
    )
    by_method, by_perplexity = (f"{HEADS}[{column}].click()" for column in (1, 2))
    remove_value = "delete document.querySelector('table.ranking tbody tr').cells[2].dataset.value"
    found = run(
        page,
        NAMES,
        *(f"({by_method}, {NAMES})", state),
        *(f"({by_perplexity}, {by_perplexity}, {NAMES})", state),
        # last without a value
        f"({remove_value}, {by_perplexity}, {by_perplexity}, {NAMES}[{len(METHODS) - 1}])",
    )
    assert found == [
        list(METHODS),
        *(sorted(METHODS), [["method", "ascending"]]),
        *(list(METHODS)[::-1], [["perplexity ± 95 %", "descending"]]),
        list(METHODS)[-1],
    ]


def test_report_shows_a_plain_ranking_without_script(page: str, run: Run) -> None:
    start, stop = page.index("<script>"), page.index("</script>")
    assert run(page[:start] + "<script>" + page[stop:], NAMES, f"{HEADS}.length") == [
        list(METHODS),
        0,
    ]


def test_report_blocks_loading_of_resources(page: str, run: Run) -> None:
    changed = page.replace("<main>", f"<main>{IMAGE}")
    assert run(changed, LOADED) == [0]
    assert run(re.sub("<meta http-equiv[^>]*>", "", changed), LOADED) == [1]
