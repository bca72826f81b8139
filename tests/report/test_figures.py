"""Figures of all commands: plots, bytes and output files."""

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ctxextend import inspect, resize
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.lab.evaluation import Evaluation
from ctxextend.report.figures import evaluation_figure, render, save, write_figure
from ctxextend.report.table_plots import tables_figure
from tests.helpers import pico
from tests.helpers.evaluations import (
    BETTER,
    EFFECTIVE,
    METHODS,
    SEARCH,
    WITHOUT_BASE,
    WORSE,
)
from tests.helpers.trainings import invoke

pytestmark = pytest.mark.figures

MakePico = Callable[..., pico.Pico]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Fail on any warning, since the command line would print it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def save_table(name: str, table: Any) -> Inspection:
    Path(name).mkdir()
    config = {"model_type": "gpt2", "n_positions": len(table)}
    Path(name, "config.json").write_text(json.dumps(config))
    save_file({"wpe.weight": table.astype(np.float32)}, Path(name, "model.safetensors"))
    return inspect(name)


def normal(rows: int, width: int) -> Any:
    return np.random.default_rng(0).normal(size=(rows, width))


def plots(figure: Any) -> list[Any]:
    """Return the axes of a figure, without colour bars."""
    return [axes for axes in figure.axes if axes.get_xlabel()]


def curve(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


# Bytes


@pytest.mark.parametrize(
    ("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_write_figure_is_reproducible_in_each_format(suffix: str, head: bytes) -> None:
    files = [Path(f"first{suffix}"), Path(f"second{suffix.upper()}")]
    for path in files:
        write_figure(path, lambda: tables_figure([inspect("tiny-gpt2")]))
    first, second = (path.read_bytes() for path in files)
    assert first.startswith(head)
    assert first == second
    assert b"dc:date" not in first


def test_render_ignores_the_settings_of_the_user() -> None:
    from matplotlib import rc_context

    expected = render(lambda: evaluation_figure(WITHOUT_BASE), ".svg")
    with rc_context({"font.size": 20, "svg.hashsalt": "other"}):
        assert render(lambda: evaluation_figure(WITHOUT_BASE), ".svg") == expected


# Scores


def test_bars_of_scores_have_their_intervals_and_numbers() -> None:
    bars, _, _ = plots(evaluation_figure(WORSE))
    widths = [bar.get_width() for bar in bars.patches]
    assert np.allclose(np.log(widths), [4.1, 3.8, 3.845], atol=0.01)
    ((low, _), (high, _)), *_ = bars.collections[0].get_segments()
    texts = [text.get_text() for text in bars.texts]
    assert texts[:3] == ["long", f"60 ({low:.0f} to {high:.0f})", "short in sliding windows"]
    (shares,) = plots(evaluation_figure(SEARCH))
    assert np.allclose([bar.get_width() for bar in shares.patches], [43, 31, 45, 40], atol=0.5)
    assert shares.get_xlabel() == "nDCG@10 (%)"


@pytest.mark.parametrize(("evaluation", "scale"), [(WORSE, "linear"), (METHODS, "log")])
def test_axis_is_logarithmic_if_perplexities_differ_much(
    evaluation: Evaluation, scale: str
) -> None:
    bars, by_position, by_length = plots(evaluation_figure(evaluation))
    assert {bars.get_xscale(), by_position.get_yscale(), by_length.get_yscale()} == {scale}
    assert bars.get_xlim()[1] > max(bar.get_width() for bar in bars.patches)  # none is cut


def test_curves_by_position_are_steps_and_differ_in_colour_and_dashes() -> None:
    _, axes, _ = plots(evaluation_figure(WORSE))
    names = ("long", "short in sliding windows", "short in separate windows")
    lines = [curve(axes, name) for name in names]
    assert list(lines[0].get_xdata())[:6] == [0, 64, 64, 128, 128, 192]
    assert np.allclose(np.log(lines[0].get_ydata()[:6]), [3.8, 3.8, 3.8, 3.8, 4.2, 4.2], atol=0.01)
    assert len({line.get_color() for line in lines}) == 3
    assert {line.get_linestyle() for line in lines} == {"-", "--"}
    assert not axes.collections  # three bands would hide each other
    assert list(curve(axes, "length of the base: 128").get_xdata()) == [128, 128]


def test_curves_by_length_have_bands_if_they_are_two() -> None:
    figure: Any = evaluation_figure(BETTER)
    *_, axes = plots(figure)
    assert axes.get_xscale() == "log"
    assert list(curve(axes, "long").get_xdata()) == [64, 128, 256, 512]
    assert np.allclose(np.log(curve(axes, "long").get_ydata()), [3.9, 3.8, 3.7, 3.6], atol=0.01)
    assert len(axes.collections) == 2
    names = [text.get_text() for text in figure.subfigs[2].legends[0].get_texts()]
    assert names == ["long", "95 % interval", "short", "length of the base: 128"]


def test_curves_of_effective_context_have_a_threshold() -> None:
    (axes,) = plots(evaluation_figure(EFFECTIVE))
    assert list(curve(axes, "long, needle").get_ydata()) == [100, 100, 100, 25]
    assert list(curve(axes, "threshold: 75 %").get_ydata()) == [75, 75]


# Tables


def test_tables_figure_plots_the_statistics() -> None:
    found = inspect("tiny-gpt2")
    stats = found.tables[0].stats
    norms, cosines, heat = plots(tables_figure([found]))
    assert np.array_equal(curve(norms, "tiny-gpt2").get_ydata(), stats.norms)
    assert np.array_equal(cosines.lines[0].get_ydata(), stats.cosines)
    outliers = curve(norms, "outliers of tiny-gpt2")
    assert list(outliers.get_xdata()) == [0, 1, 2, 125, 126, 127]
    assert outliers.get_marker() == "o"  # which no line has
    assert heat.images


def test_tables_figure_marks_new_and_reserved_rows(make_pico: MakePico) -> None:
    resize(make_pico("roberta").folder, to=40, output="longer")
    found = inspect("longer")
    norms, *_, heat = plots(tables_figure([found]))
    reserved = curve(norms, "reserved rows of longer")
    assert list(reserved.get_xdata()) == [-2, -1]
    assert np.array_equal(reserved.get_ydata(), found.tables[0].norms[:2])
    assert heat.images[0].get_array().shape == (40, 40)
    (band,) = norms.patches
    assert band.get_label() == "new rows of longer"
    assert (band.get_x(), band.get_width()) == (15.5, 24)


def test_tables_figure_marks_broken_rows() -> None:
    table = normal(20, 4)
    table[3] = 0
    table[7, 1] = math.nan
    norms, *_ = plots(tables_figure([save_table("broken", table)]))
    assert list(curve(norms, "zero or non-finite rows of broken").get_xdata()) == [3, 7]


EXTREME_TABLES = {
    "nan": [np.full((20, 4), math.nan)],
    "zero and constant": [np.zeros((20, 4)), np.full((20, 4), 3.0)],
    "small": [np.ones((1, 4)), normal(2, 4), normal(3, 1)],
    "large": [normal(40, 4) * 1e30, normal(40, 4) * np.logspace(0, 12, 40)[:, None]],
}


@pytest.mark.parametrize("name", EXTREME_TABLES)
def test_tables_figure_of_extreme_tables(name: str) -> None:
    tables = enumerate(EXTREME_TABLES[name])
    found = [save_table(f"table{number}", table) for number, table in tables]
    write_figure(Path("figure.png"), lambda: tables_figure(found))
    assert Path("figure.png").stat().st_size > 10_000


# Output files


@pytest.mark.parametrize(
    ("flag", "name", "code", "message"),
    [
        ("--plot", "figure", 2, "a file name that ends in .png or .svg or .pdf, got figure."),
        ("--report", "page.txt", 2, "a file name that ends in .html or .htm, got page.txt."),
        ("--plot", "folder.png", 1, "folder.png is a folder."),
        ("--report", "none/page.html", 1, "none does not exist. Create it first."),
    ],
)
@pytest.mark.parametrize("command", ["evaluate --data none.txt", "inspect"])
def test_commands_reject_output_files_before_reading_a_model(
    command: str, flag: str, name: str, code: int, message: str
) -> None:
    Path("folder.png").mkdir()
    done = invoke(*command.split(), "no/such/model", flag, name)
    words = done.stderr.replace("│", " ").split()
    assert done.exit_code == code
    assert message in " ".join(words)


def test_save_writes_through_a_symlink() -> None:
    link = Path("link.svg")
    link.symlink_to("figure.svg")
    save(link, b"svg")
    assert link.is_symlink()
    assert Path("figure.svg").read_bytes() == b"svg"


def test_check_file_rejects_folders_without_write_permission(public_path: Path) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from ctxextend.report.figures import FIGURE, check_file\n"
        f"os.setuid(65534); check_file(Path({str(public_path / 'figure.png')!r}), FIGURE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Permission denied" in done.stderr
