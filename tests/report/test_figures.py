"""Figures of all commands: panels, bytes and output files."""

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from ctxextend.lab.evaluation_result import Evaluation
from ctxextend.report.html import comparison_panels
from ctxextend.report.table_panels import tables_figure
from safetensors.torch import save_file

from ctxextend import inspect, resize
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.report.figures import (
    evaluation_figure,
    panel_figure,
    save,
    write_figure,
)
from tests.helpers import pico
from tests.helpers.comparisons import METHODS, comparison
from tests.helpers.evaluations import (
    EFFECTIVE,
    ENCODER,
    EXTENDED,
    EXTREMES,
    MASKED,
    WITHOUT_BASE,
    extreme_evaluation,
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


def save_table(folder: Path, table: Any) -> Inspection:
    folder.mkdir(exist_ok=True)
    values = torch.as_tensor(table, dtype=torch.float32)
    config = {"model_type": "gpt2", "n_positions": len(values)}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"wpe.weight": values}, folder / "model.safetensors")
    return inspect(folder)


def normal(rows: int, width: int) -> Any:
    return np.random.default_rng(0).normal(size=(rows, width))


def panels(figure: Any) -> list[Any]:
    """Return the labelled axes of a figure."""
    return [axes for axes in figure.axes if axes.get_xlabel()]


def ticks(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def curve(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


# Bytes


@pytest.mark.parametrize(
    ("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_write_figure_is_reproducible_in_each_format(
    suffix: str, head: bytes, tmp_path: Path
) -> None:
    first = tmp_path / f"first{suffix}"
    second = tmp_path / f"second{suffix.upper()}"
    for path in (first, second):
        write_figure(path, lambda: tables_figure([inspect("tiny-gpt2")]))
    data = first.read_bytes()
    assert data.startswith(head)
    assert data == second.read_bytes()
    assert b"dc:date" not in data


# Figure of inspect


def test_tables_figure_plots_the_statistics() -> None:
    found = inspect("tiny-gpt2")
    stats = found.tables[0].stats
    norms, cosines, spectrum, heat = panels(tables_figure([found]))
    norm_curve = curve(norms, "tiny-gpt2")
    cosine_curve = curve(cosines, "tiny-gpt2")
    outliers = curve(norms, "outliers")
    assert np.array_equal(norm_curve.get_ydata(), stats.norms)
    assert np.array_equal(cosine_curve.get_ydata(), stats.cosines)
    assert list(outliers.get_xdata()) == [0, 1, 2, 125, 126, 127]
    shares = spectrum.lines[0].get_ydata()
    percentages = 100 * stats.eigenvalues / stats.eigenvalues.sum()
    assert shares[:3] == pytest.approx(percentages[:3])
    assert len(heat.images[0].get_array()) == 128


def test_tables_figure_marks_new_and_reserved_rows(make_pico: MakePico) -> None:
    resize(make_pico("roberta").folder, to=40, output="longer")
    found = inspect("longer")
    norms, cosines, _, heat = panels(tables_figure([found]))

    reserved = curve(norms, "reserved rows of longer")
    assert list(reserved.get_xdata()) == [-2, -1]
    assert list(reserved.get_ydata()) == list(found.tables[0].norms[:2])
    usable = curve(norms, "longer")
    assert len(usable.get_ydata()) == 40
    assert len(cosines.lines[0].get_ydata()) == 39
    assert heat.images[0].get_array().shape == (40, 40)
    (band,) = norms.patches
    assert band.get_label() == "new rows of longer"
    assert band.get_x() == 15.5
    assert band.get_x() + band.get_width() == 39.5


EXTREME_TABLES = {
    "nan": [np.full((20, 4), math.nan)],
    "zero and constant": [np.zeros((20, 4)), np.full((20, 4), 3.0)],
    "small": [np.ones((1, 4)), normal(2, 4), normal(3, 1)],
    "large": [normal(40, 4) * 1e30, normal(40, 4) * np.logspace(0, 12, 40)[:, None]],
}


@pytest.mark.parametrize("name", EXTREME_TABLES)
def test_tables_figure_of_extreme_tables(name: str, tmp_path: Path) -> None:
    found: list[Inspection] = []
    for number, table in enumerate(EXTREME_TABLES[name]):
        found.append(save_table(tmp_path / f"table{number}", table))
    figure = tmp_path / "figure.png"
    write_figure(figure, lambda: tables_figure(found))
    assert figure.stat().st_size > 10_000


# Figures of evaluate, train and compare

BY_POSITION, BY_CONTEXT = "Loss by position", "Loss by context length"
MAP, RETRIEVAL = "Answers found (%)", "Retrieval"


@pytest.mark.parametrize(
    ("evaluation", "titles"),
    [
        (EXTENDED, [MAP, MAP, BY_POSITION, BY_CONTEXT, RETRIEVAL, RETRIEVAL]),
        (WITHOUT_BASE, [MAP, MAP, BY_POSITION, BY_CONTEXT]),
        (EFFECTIVE, [MAP, MAP]),
        (MASKED, [""]),
        (ENCODER, [MAP, RETRIEVAL, RETRIEVAL]),
    ],
)
def test_evaluation_figure_has_a_panel_per_measurement(
    evaluation: Evaluation, titles: list[str]
) -> None:
    figure = evaluation_figure(evaluation)
    found: list[str] = []
    for axes in figure.axes:
        assert axes.get_xlabel()
        title, _, _ = axes.get_title("left").partition(":")
        found.append(title)
    assert found == titles  # a single panel has no title
    label = str(figure.get_label())
    assert label.startswith(f"{evaluation.source}, {evaluation.max_len} tokens")


@pytest.mark.parametrize(("mean", "error"), EXTREMES)
def test_evaluation_figure_of_extreme_numbers_and_a_hostile_name(
    mean: float, error: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "figure.svg"
    write_figure(path, lambda: evaluation_figure(extreme_evaluation(mean, error)))
    text = path.read_text()
    ElementTree.fromstring(text)
    assert "<script" not in text


def test_comparison_panels_show_deltas_and_losses() -> None:
    deltas, by_position, by_context, *maps = comparison_panels(comparison())
    assert not deltas.is_small
    assert not by_position.is_small
    assert not by_context.is_small
    assert [panel.key for panel in maps] == ["effective-needle", "effective-key"]
    for panel in maps:
        assert panel.is_small
        assert [plot.title for plot in panel.plots] == list(METHODS)
    axes: list[Any] = panel_figure([deltas, by_position, by_context], "").axes
    assert ticks(axes[0].get_yticklabels()) == list(METHODS)
    assert axes[0].patches[1].get_width() == pytest.approx(0.05175)


# Output files


@pytest.mark.parametrize(
    ("flag", "name", "code", "message"),
    [
        (
            "--plot",
            "figure",
            2,
            "a file name that ends in .png or .svg or .pdf, got figure.",
        ),
        (
            "--report",
            "page.txt",
            2,
            "a file name that ends in .html or .htm, got page.txt.",
        ),
        ("--plot", "folder.png", 1, "folder.png is a folder."),
        ("--report", "none/page.html", 1, "none does not exist. Create it first."),
    ],
)
@pytest.mark.parametrize(
    "command", ["compare --to 64 --data none.txt", "evaluate --data none.txt", "inspect"]
)
def test_commands_reject_output_files_before_reading_a_model(
    command: str, flag: str, name: str, code: int, message: str
) -> None:
    Path("folder.png").mkdir()
    done = invoke(*command.split(), "no/such/model", flag, name)
    words = done.stderr.replace("│", " ").split()
    assert done.exit_code == code
    assert message in " ".join(words)


def test_save_writes_through_a_symlink(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    link = tmp_path / "link.svg"
    link.symlink_to(folder / "figure.svg")
    save(link, b"svg")
    assert link.is_symlink()
    assert (folder / "figure.svg").read_bytes() == b"svg"


def test_check_file_rejects_folders_without_write_permission(public_path: Path) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from ctxextend.report.figures import FIGURE, check_file\n"
        f"os.setuid(65534); check_file(Path({str(public_path / 'figure.png')!r}), FIGURE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Permission denied" in done.stderr
