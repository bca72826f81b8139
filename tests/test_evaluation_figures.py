import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import image, rcParams

from ctxextend.errors import OutputError
from ctxextend.evaluation.evaluation_result import Bucket, Evaluation, LossEstimate, Passkey, Recall
from ctxextend.report import evaluations
from ctxextend.report.evaluations import plot_evaluation
from tests.evaluations import ENCODER, EXTENDED, INTERRUPTED, LONE, MASKED


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Fail for any warning: the command line would show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def axes_of(evaluation: Evaluation) -> list[Any]:
    """The axes of a figure, without drawing it."""
    return list(evaluations._figure(evaluation).axes)


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def curve(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plot_evaluation_writes_each_format_the_same_again(suffix: str, head: bytes, tmp_path: Path) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix.upper()}"
    plot_evaluation(MASKED, one)
    plot_evaluation(MASKED, other)
    assert one.read_bytes().startswith(head)
    assert one.read_bytes() == other.read_bytes()


def test_plot_evaluation_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    before = dict(rcParams)
    plot_evaluation(ENCODER, tmp_path / "here.svg")
    assert dict(rcParams) == before
    code = (
        "import matplotlib; matplotlib.rcParams['font.size'] = 30\n"
        "from pathlib import Path\n"
        "from tests.evaluations import ENCODER\n"
        "from ctxextend.report.evaluations import plot_evaluation\n"
        f"plot_evaluation(ENCODER, Path({str(tmp_path / 'there.svg')!r}))\n"
        "import sys; assert 'matplotlib.pyplot' not in sys.modules"
    )
    folder = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert (tmp_path / "here.svg").read_bytes() == (tmp_path / "there.svg").read_bytes()


def test_plot_evaluation_writes_an_svg_that_asks_nobody_and_has_no_date(tmp_path: Path) -> None:
    plot_evaluation(replace(LONE, source="--><script>$\\frac{\na\x1b[31m"), tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    ElementTree.fromstring(text)
    assert "dc:date" not in text
    assert "<script" not in text


def test_plot_evaluation_draws_something_that_is_no_blank_page(tmp_path: Path) -> None:
    plot_evaluation(EXTENDED, tmp_path / "figure.png")
    grey = image.imread(tmp_path / "figure.png")[:, :, :3].mean(axis=2)
    assert min(grey.shape) > 900
    assert 0.02 < (grey < 0.5).mean() < 0.5


@pytest.mark.parametrize(
    ("evaluation", "titles"),
    [
        (EXTENDED, ["Loss of tokens by position", "Loss of the same tokens by context", "Passkey", "Retrieval"]),
        (LONE, ["Loss of tokens by position", "Loss of the same tokens by context", "Passkey"]),
        (INTERRUPTED, ["Loss of masked tokens by position"]),
        (MASKED, ["Loss of the same masked tokens by context"]),
        (ENCODER, ["Passkey", "Retrieval"]),
        (replace(INTERRUPTED, positions=None), []),
    ],
)
def test_plot_evaluation_has_a_panel_for_each_part_that_was_measured(evaluation: Evaluation, titles: list[str]) -> None:
    found = axes_of(evaluation)
    assert [axes.get_title().partition(":")[0] for axes in found] == titles
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in found)


def test_plot_evaluation_names_what_it_is_of() -> None:
    assert evaluations._title(EXTENDED).startswith("gpt2-512 (gpt2, causal, 512 tokens), made of tiny-gpt2 (128)")
    assert evaluations._title(INTERRUPTED).endswith("; incomplete")
    assert "made of" not in evaluations._title(LONE)


def test_plot_evaluation_draws_the_losses_as_steps() -> None:
    assert EXTENDED.positions is not None
    axes = axes_of(EXTENDED)[0]
    assert legend(axes) == [
        "model",
        "original, sliding windows",
        "original, windows back to back",
        "the original's length, 128",
    ]
    first = EXTENDED.positions.buckets[0]
    steps = curve(axes, "model")
    assert list(steps.get_xdata()[:3]) == [0, 32, 32]
    assert list(steps.get_ydata()[:2]) == [first.losses["model"].mean] * 2
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines[:3]}
    assert len(looks) == 3


def test_plot_evaluation_draws_the_original_as_far_as_it_can_read() -> None:
    axes = axes_of(EXTENDED)[1]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "128", "256", "512"]
    assert [len(container.lines[0].get_xdata()) for container in axes.containers] == [5, 3]
    assert [len(container.lines[0].get_xdata()) for container in axes_of(LONE)[1].containers] == [3]


def test_plot_evaluation_writes_the_shares_into_the_cells() -> None:
    found: tuple[tuple[float | None, ...], ...] = ((1.0, 0.25), (None, 0.5))
    passkey = Passkey("loss rank", (64, 256), (0.0, 1.0), found, 20, 0.1)
    (axes,) = axes_of(replace(ENCODER, passkey=passkey, retrieval=None))
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(0, 0): "100", (0, 1): "25", (1, 1): "50"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "100"]


def test_plot_evaluation_draws_bars_with_their_errors() -> None:
    axes = axes_of(ENCODER)[1]
    assert legend(axes) == ["recall@1", "mean reciprocal rank"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["truncated", "chunks", "model"]
    assert [text.get_text() for text in axes.texts] == ["0.17", "0.41", "0.47", "0.24", "0.52", "0.57"]


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, None), (math.inf, math.nan), (-math.inf, math.inf), (0.0, 0.0), (1e6, None)]
)
def test_plot_evaluation_of_odd_figures(value: float, error: float | None, tmp_path: Path) -> None:
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
    plot_evaluation(evaluation, tmp_path / "figure.svg")


def test_plot_evaluation_of_parts_that_hold_nothing(tmp_path: Path) -> None:
    assert EXTENDED.positions is not None
    assert EXTENDED.contexts is not None
    assert ENCODER.retrieval is not None
    evaluation = replace(
        EXTENDED,
        positions=replace(EXTENDED.positions, buckets=(), losses={}, changes={}),
        contexts=replace(EXTENDED.contexts, points=()),
        passkey=Passkey("loss rank", (), (), (), 0, 0.1),
        retrieval=replace(ENCODER.retrieval, ways={}),
    )
    plot_evaluation(evaluation, tmp_path / "figure.svg")


def test_plot_evaluation_refuses_a_format_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="format"):
        plot_evaluation(EXTENDED, tmp_path / "figure.jpg")
