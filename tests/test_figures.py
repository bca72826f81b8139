"""The figures of every command: their panels, their bytes, and where they are written."""

import errno
import importlib.util
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib import image, rcParams
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from ctxextend import resize
from ctxextend.cli.app import app_of
from ctxextend.errors import OutputError
from ctxextend.evaluation.evaluation_result import Bucket, Evaluation, LossEstimate, Passkey, Recall
from ctxextend.inspection.inspect import inspect
from ctxextend.inspection.table_report import Inspection
from ctxextend.report import saving
from ctxextend.report.figures import (
    evaluation_figure,
    panel_figure,
    sampled_cosines,
    tables_figure,
    training_figure,
    upper_limit,
    write_figure,
)
from ctxextend.report.html import comparison_figure, comparison_panels, write_report
from tests import pico
from tests.comparisons import METHODS, comparison, encoders
from tests.evaluations import ENCODER, EXTENDED, INTERRUPTED, LONE, MASKED

MakePico = Callable[..., pico.Pico]

FIGURES: dict[str, Callable[[], Any]] = {
    "inspect": lambda: tables_figure([inspect("tiny-gpt2")]),
    "evaluate": lambda: evaluation_figure(replace(EXTENDED, source="--><script>$\\frac{\na\x1b[31m")),
    "compare": lambda: comparison_figure(comparison(("linear", "copy"))),
}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Fail for any warning: the command line would show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app_of(), ["inspect", *map(str, arguments)])


def save_table(folder: Path, table: Any) -> Inspection:
    folder.mkdir(exist_ok=True)
    values = torch.as_tensor(table, dtype=torch.float32)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": len(values)}))
    save_file({"wpe.weight": values}, folder / "model.safetensors")
    return inspect(folder)


def normal(rows: int, width: int) -> Any:
    return np.random.default_rng(0).normal(size=(rows, width))


def axes_of(*found: Inspection | Evaluation) -> list[Any]:
    """The axes of a figure, without drawing it; titles and curves can be asked for."""
    if isinstance(found[0], Evaluation):
        return list(evaluation_figure(found[0]).axes)
    return [axes for axes in tables_figure(found).axes if axes.get_title()]  # type: ignore[arg-type]


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def curve(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


# The bytes


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_figure_is_written_in_each_format_the_same_again(suffix: str, head: bytes, tmp_path: Path) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix.upper()}"
    write_figure(one, FIGURES["inspect"])
    write_figure(other, FIGURES["inspect"])
    assert one.read_bytes().startswith(head)
    assert one.read_bytes() == other.read_bytes()


def test_figures_have_the_same_bytes_whatever_the_process_has_set(tmp_path: Path) -> None:
    before = dict(rcParams)
    for name, make in FIGURES.items():
        write_figure(tmp_path / f"{name}.svg", make)
        text = (tmp_path / f"{name}.svg").read_text()
        ElementTree.fromstring(text)
        assert "dc:date" not in text
        assert "<script" not in text
    assert dict(rcParams) == before
    code = (
        "import matplotlib; matplotlib.rcParams['font.size'] = 30\n"
        "from pathlib import Path\n"
        "from ctxextend.inspection.inspect import inspect\n"
        "from ctxextend.report.figures import tables_figure, write_figure\n"
        "from ctxextend.report.html import comparison_figure, write_report\n"
        "from tests.comparisons import comparison\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "write_figure(folder / 'inspect.again.svg', lambda: tables_figure([inspect('tiny-gpt2')]))\n"
        "found = comparison(('linear', 'copy'))\n"
        "write_figure(folder / 'compare.again.svg', lambda: comparison_figure(found))\n"
        "write_report(found, folder / 'page.again.html')\n"
        "import sys; assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert matplotlib.rcParams['font.size'] == 30"
    )
    folder = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=os.environ | {"PYTHONHASHSEED": "7"})
    write_report(comparison(("linear", "copy")), tmp_path / "page.html")
    for name in ("inspect.svg", "compare.svg", "page.html"):
        first, _, suffix = name.partition(".")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"{first}.again.{suffix}").read_bytes()


@pytest.mark.parametrize("name", ["inspect", "evaluate"])
def test_figure_is_no_blank_page(name: str, tmp_path: Path) -> None:
    write_figure(tmp_path / "figure.png", FIGURES[name])
    grey = image.imread(tmp_path / "figure.png")[:, :, :3].mean(axis=2)
    assert min(grey.shape) > 600
    assert 0.01 < (grey < 0.5).mean() < 0.5


# The figure of inspect


def test_tables_figure_names_every_axis_and_draws_the_figures_of_the_table() -> None:
    found = inspect("tiny-gpt2")
    stats = found.tables[0].stats
    norms, cosines, spectrum, heat = axes_of(found)
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (norms, cosines, spectrum, heat)]
    assert labels == [
        ("position", "Euclidean norm"),
        ("position", "cosine similarity"),
        ("principal component", "share of the variance (%)"),
        ("position", "position"),
    ]
    assert np.array_equal(curve(norms, "tiny-gpt2").get_ydata(), stats.norms)
    assert np.array_equal(curve(cosines, "tiny-gpt2").get_ydata(), stats.cosines)
    shares = spectrum.lines[0].get_ydata()
    assert shares[:3] == pytest.approx([100 * component.share for component in stats.components[:3]])
    assert len(heat.images[0].get_array()) == 128
    # periods that fit are named, and those longer than the table marked
    assert legend(spectrum) == ["tiny-gpt2: 256*, 256*, -, 92"]
    outliers = list(found.tables[0].outliers)
    assert list(curve(norms, "stands out").get_xdata()) == outliers == [0, 1, 2, 125, 126, 127]


def test_tables_figure_tells_new_rows_from_learned_ones() -> None:
    resize("tiny-gpt2", to=512, output="longer")
    norms = axes_of(inspect("longer"))[0]
    assert "new rows of longer" in legend(norms)
    (band,) = norms.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (127.5, 511.5)
    assert band.get_hatch()


def test_tables_figure_draws_reserved_rows_before_position_0(make_pico: MakePico) -> None:
    found = inspect(make_pico("roberta").folder)
    norms, cosines, _, heat = axes_of(found)
    offset = curve(norms, "offset rows of pico-roberta")
    assert (list(offset.get_xdata()), list(offset.get_ydata())) == ([-2, -1], list(found.tables[0].norms[:2]))
    assert len(curve(norms, "pico-roberta").get_ydata()) == 16
    assert len(cosines.lines[0].get_ydata()) == 15
    assert heat.images[0].get_array().shape == (16, 16)


def test_tables_figure_overlays_two_models_and_sets_their_maps_side_by_side() -> None:
    resize("tiny-gpt2", to=256, method="linear", output="longer")
    norms, cosines, spectrum, *maps = axes_of(inspect("tiny-gpt2"), inspect("longer"))
    for axes in (norms, cosines, spectrum):
        looks = [(line.get_color(), line.get_marker(), line.get_linewidth()) for line in axes.lines[:2]]
        assert all(one != other for one, other in zip(*looks, strict=True))
    assert [axes.get_title() for axes in maps] == [
        f"Cosine between positions: {name}" for name in ("tiny-gpt2", "longer")
    ]
    assert len({axes.get_position().y0 for axes in maps}) == 1


def test_tables_figure_gives_each_of_several_tables_a_row(tmp_path: Path) -> None:
    figure = tables_figure([inspect(pico.make_bart(tmp_path / "bart"))])
    assert len([axes for axes in figure.axes if axes.get_title()]) == 8
    assert ["encoder" in block.get_suptitle() for block in figure.subfigs] == [True, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_tables_figure_marks_rows_without_numbers(value: float, tmp_path: Path) -> None:
    table = normal(40, 4)
    table[[3, 7]] = value
    norms, cosines, _, heat = axes_of(save_table(tmp_path / "table", table))
    for axes in (norms, cosines):
        assert list(curve(axes, "zero or not finite in table").get_xdata()) == [3, 7]
    assert np.flatnonzero(np.isnan(np.diag(heat.images[0].get_array().filled(math.nan)))).tolist() == [3, 7]


ODD_TABLES = {
    "nan": [np.full((20, 4), math.nan)],
    "zero and constant": [np.zeros((20, 4)), np.full((20, 4), 3.0)],
    "one row": [np.ones((1, 4))],
    "small": [normal(2, 4), normal(3, 1)],
    "large": [normal(40, 4) * 1e30, normal(40, 4) * np.logspace(0, 12, 40)[:, None]],
}


@pytest.mark.parametrize("name", ODD_TABLES)
def test_tables_figure_of_odd_tables(name: str, tmp_path: Path) -> None:
    found = [save_table(tmp_path / f"table{number}", table) for number, table in enumerate(ODD_TABLES[name])]
    write_figure(tmp_path / "figure.png", lambda: tables_figure(found))
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_tables_figure_shows_hostile_names_as_they_can_be_shown(tmp_path: Path) -> None:
    names = ("$\\frac{", "a\nb\x1b[31m", "位置", "--><script>", "n" * 200)
    found = [save_table(tmp_path / name, normal(12, 4)) for name in names]
    write_figure(tmp_path / "figure.svg", lambda: tables_figure(found))
    ElementTree.fromstring((tmp_path / "figure.svg").read_text())


def test_tables_figure_draws_each_of_many_models_in_its_own_way(tmp_path: Path) -> None:
    axes = axes_of(*(save_table(tmp_path / f"_table{number}", normal(12, 4)) for number in range(12)))
    assert len(axes) == 3 + 12
    assert len({(line.get_color(), line.get_marker()) for line in axes[2].lines}) == 12
    # matplotlib leaves labels that begin with _ out of legends
    assert legend(axes[2])[0].strip().startswith("_table0:")


@pytest.mark.parametrize(("rows", "drawn", "step"), [(512, 512, 1), (513, 257, 2), (100_000, 391, 256)])
def test_sampled_cosines_are_the_cosines_and_few_however_long_the_table(rows: int, drawn: int, step: int) -> None:
    cosines, found = sampled_cosines(np.ones((rows, 2), dtype=np.float32))
    assert (cosines.shape, found) == ((drawn, drawn), step)
    cosines, found = sampled_cosines(np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], dtype=np.float16))
    assert (cosines.tolist(), found) == ([[1, 0, -1], [0, 1, 0], [-1, 0, 1]], 1)


def test_sampled_cosines_keep_rows_that_are_a_whole_table_apart(tmp_path: Path) -> None:
    cosines, step = sampled_cosines(np.tile(normal(512, 64), (8, 1)))
    assert cosines[0, 512 // step] == pytest.approx(1)
    assert cosines[0, 512 // step + 1] < 0.9
    heat = axes_of(save_table(tmp_path / "table", normal(1100, 2)))[3]
    assert heat.get_xlabel() == heat.get_ylabel() == "position (1 in 4 drawn)"
    assert heat.images[0].get_extent() == [-2.0, 1098.0, 1098.0, -2.0]


# The figures of evaluate, train and compare

BY_POSITION, BY_CONTEXT = "Loss of tokens by position", "Loss of the same tokens by context"


@pytest.mark.parametrize(
    ("evaluation", "titles"),
    [
        (EXTENDED, [BY_POSITION, BY_CONTEXT, "Passkey", "Retrieval", "Retrieval"]),
        (LONE, [BY_POSITION, BY_CONTEXT, "Passkey"]),
        (INTERRUPTED, ["Loss of masked tokens by position"]),
        (MASKED, ["Loss of the same masked tokens by context"]),
        (ENCODER, ["Passkey", "Retrieval", "Retrieval"]),
        (replace(INTERRUPTED, positions=None), []),
    ],
)
def test_evaluation_figure_has_panels_for_each_part_that_was_measured(
    evaluation: Evaluation, titles: list[str]
) -> None:
    found = axes_of(evaluation)
    assert [axes.get_title().partition(":")[0] for axes in found] == titles
    assert all(axes.get_xlabel() for axes in found)
    (block,) = evaluation_figure(evaluation).subfigs
    title = " ".join(block.get_suptitle().split())
    assert title.startswith(f"{evaluation.source} ({evaluation.family}")
    assert title.endswith("; incomplete") == (not evaluation.complete)
    assert ("made of tiny-gpt2 (128)" in title) == (evaluation is EXTENDED)


def test_evaluation_figure_draws_losses_as_steps_and_as_points() -> None:
    assert EXTENDED.positions is not None
    by_position, by_context, *_ = axes_of(EXTENDED)
    assert legend(by_position) == ["model", "original, sliding windows", "original, windows back to back"]
    assert [text.get_text() for text in by_position.texts] == ["learned: 128"]
    steps = curve(by_position, "model")
    assert list(steps.get_xdata()[:3]) == [0, 32, 32]
    assert list(steps.get_ydata()[:2]) == [EXTENDED.positions.buckets[0].losses["model"].mean] * 2
    assert len({(line.get_color(), line.get_linestyle()) for line in by_position.lines[:3]}) == 3
    assert by_context.get_xscale() == "log"
    assert [label.get_text() for label in by_context.get_xticklabels()] == ["32", "64", "128", "256", "512"]
    assert [len(curve(by_context, name).get_xdata()) for name in ("model", "original")] == [5, 3]


def test_evaluation_figure_writes_the_shares_into_the_cells() -> None:
    found: tuple[tuple[float | None, ...], ...] = ((1.0, 0.25), (None, 0.5))
    passkey = Passkey("loss rank", (64, 256), (0.0, 1.0), found, 20, 0.1)
    (axes,) = axes_of(replace(ENCODER, passkey=passkey, retrieval=None))
    texts = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    assert texts == {(0, 0): "100", (0, 1): "25", (1, 0): "-", (1, 1): "50"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "100"]


def test_evaluation_figure_draws_bars_with_their_errors() -> None:
    _, ranks, recalls = axes_of(ENCODER)
    assert [label.get_text() for label in recalls.get_yticklabels()] == ["truncated", "chunks", "model"]
    assert [bar.get_width() for bar in recalls.patches] == [0.165, 0.415, 0.47]
    assert [bar.get_width() for bar in ranks.patches] == [0.242, 0.522, 0.571]
    assert len(recalls.containers) == 6


@pytest.mark.parametrize(("value", "error"), [(math.nan, None), (math.inf, math.nan), (0.0, 0.0)])
def test_evaluation_figure_of_odd_figures(value: float, error: float | None, tmp_path: Path) -> None:
    assert EXTENDED.positions is not None
    assert EXTENDED.contexts is not None
    assert ENCODER.retrieval is not None
    odd = LossEstimate(value, error, 0)
    buckets = (Bucket(0, 1, {"model": odd}), Bucket(3, 9, {"model": odd, "sliding": odd}))
    point = replace(EXTENDED.contexts.points[0], loss=odd, original=odd)
    evaluation = replace(
        EXTENDED,
        positions=replace(EXTENDED.positions, buckets=buckets),
        contexts=replace(EXTENDED.contexts, points=(point,)),
        passkey=Passkey("loss rank", (8,), (0.0,), ((None,),), 0, 0.1),
        retrieval=replace(ENCODER.retrieval, ways={"model": Recall(0.5, error, math.nan, error)}),
    )
    write_figure(tmp_path / "figure.svg", lambda: evaluation_figure(evaluation))


def test_training_figure_draws_both_losses(tmp_path: Path) -> None:
    log = [{"step": 1, "loss": 5.0}, {"step": 1, "eval_loss": 5.1}, {"step": 2, "loss": 4.0}]
    write_figure(tmp_path / "figure.svg", lambda: training_figure(log, "gpt2: positions"))
    assert "held out" in (tmp_path / "figure.svg").read_text()
    write_figure(tmp_path / "figure.png", lambda: training_figure([], "_"))


def test_panels_of_a_comparison_show_its_numbers() -> None:
    costs, by_position, by_context, norms, passkeys = comparison_panels(comparison())
    assert [panel.is_small for panel in (costs, by_position, by_context, norms, passkeys)] == [False] * 3 + [True] * 2
    plots = [plot for panel in (costs, by_position, by_context) for plot in panel.plots]
    axes: list[Any] = panel_figure([("", plots)], (4, 3)).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list(METHODS)
    assert [bar.get_width() for bar in axes[0].patches][1] == pytest.approx(0.05175)
    curves = [line.get_label() for line in axes[2].lines if not line.get_label().startswith("_")]
    assert curves == [*reversed(list(METHODS)[3:]), "the original, in pieces", *reversed(list(METHODS)[:3])]
    looks = {(str(line.get_color()), str(line.get_linestyle()), str(line._dash_pattern)) for line in axes[2].lines[:14]}
    assert len(looks) == 14
    titles = [plot.title for panel in comparison_panels(encoders()) if not panel.is_small for plot in panel.plots]
    assert titles == ["Behind the best", "Retrieval: mean reciprocal rank", "Retrieval: recall@1"]


def test_upper_limit_cuts_what_is_hopeless_alone() -> None:
    assert upper_limit([1.0, 2.0, 3.5], [1.0, 2.0]) is None
    assert upper_limit([1.0, 2.0, 9.0], [1.0, 2.0]) == 4.0
    assert upper_limit([math.nan, math.inf], []) is None


# Where they are written


def test_inspect_plot_writes_the_figure() -> None:
    done = run("tiny-gpt2", "--plot", "figure.png")
    assert done.exit_code == 0
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == ["figure.png"]


@pytest.mark.parametrize("name", ["figure", "figure.jpg", ".svg"])
def test_inspect_plot_refuses_a_format_before_it_reads_a_model(name: str) -> None:
    done = run("no/such/model", "--plot", name)
    assert done.exit_code == 2
    assert ".png, .svg, .pdf" in " ".join(done.stderr.replace("│", " ").split())


def test_inspect_plot_refuses_a_place_before_it_reads_a_model() -> None:
    Path("folder.png").mkdir()
    for name, said in (("folder.png", "folder.png is a folder."), ("none/figure.png", "There is no folder")):
        done = run("no/such/model", "--plot", name)
        assert (done.exit_code, said in done.stderr) == (1, True)


def test_inspect_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else found(name))
    done = run("no/such/model", "--plot", "figure.png")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "pip install 'ctxextend[plot]'"


def test_figure_replaces_a_file_only_once_the_new_one_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"
    figure.write_text("old")

    def full(self: Path, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        saving.save(figure, b"new" * 100)
    assert pico.contents(tmp_path) == {"figure.svg": b"old"}
    monkeypatch.undo()
    saving.save(figure, b"new")
    assert pico.contents(tmp_path) == {"figure.svg": b"new"}


def test_figure_follows_a_link_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.svg").symlink_to(tmp_path / "there" / "figure.svg")
    saving.save(tmp_path / "link.svg", b"drawn")
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "there" / "figure.svg").read_bytes() == b"drawn"


def test_figure_where_nothing_may_be_written(public_path: Path) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from ctxextend.report.saving import FIGURE, check_file\n"
        f"os.setuid(65534); check_file(Path({str(public_path / 'figure.png')!r}), FIGURE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "OutputError" in done.stderr
    assert "Permission denied" in done.stderr
