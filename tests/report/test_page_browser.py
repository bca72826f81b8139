"""HTML reports in a real browser: sorting."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ctxextend.report.html import write_report

from tests.helpers.comparisons import METHODS, comparison

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
NO_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000", "--dump-dom"),
)
NAMES = (
    "[...document.querySelectorAll('table.ranking tbody tr')].map((row) => "
    "row.cells[1].innerText.trim())"
)
SORTED = (
    "[...document.querySelectorAll('[aria-sort]')].map((head) => [head.innerText.trim(), "
    "head.ariaSort])"
)
HEADS = "document.querySelectorAll('table.ranking thead button')"


@NO_BROWSER
@pytest.mark.slow
def test_report_sorts_the_ranking_on_click(tmp_path: Path) -> None:
    by_method, by_perplexity = (f"{HEADS}[{column}].click()" for column in (1, 2))
    remove_value = "delete document.querySelector('table.ranking tbody tr').cells[2].dataset.value"
    expressions = (
        NAMES,
        f"({by_method}, {NAMES})",
        SORTED,
        f"({by_perplexity}, {by_perplexity}, {NAMES})",
        SORTED,
        # last without a value
        f"({remove_value}, {by_perplexity}, {by_perplexity}, {NAMES}[{len(METHODS) - 1}])",
    )
    path = tmp_path / "page.html"
    write_report(comparison(), path)
    show = f"document.body.innerText = 'FOUND' + JSON.stringify([{', '.join(expressions)}]);"
    script = f"<script>addEventListener('load', () => {{ {show} }});</script>"
    path.write_text(path.read_text("utf-8").replace("</body>", f"{script}</body>"), "utf-8")

    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, profile, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    (found,) = re.findall(r"<body>FOUND(.*?)</body>", done.stdout, re.DOTALL)

    assert json.loads(html.unescape(found.replace("<br>", "\n"))) == [
        list(METHODS),
        sorted(METHODS),
        [["method", "ascending"]],
        list(METHODS)[::-1],
        [["perplexity ± 95 %", "descending"]],
        list(METHODS)[-1],
    ]
