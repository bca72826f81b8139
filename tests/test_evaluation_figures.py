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
from matplotlib import rcParams

from ctxextend.errors import OutputError
from ctxextend.evaluation.evaluation_result import Bucket, Evaluation, LossEstimate, Passkey, Recall
from ctxextend.report.figures import evaluation_figure, training_figure, write_figure
from tests.evaluations import ENCODER, EXTENDED, INTERRUPTED, LONE, MASKED


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Fail for any warning: the command line would show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def plot_evaluation(evaluation: Evaluation, path: Path) -> None:
    write_figure(path, lambda: evaluation_figure(evaluation))


def axes_of(evaluation: Evaluation) -> list[Any]:
    """The axes of a figure, without drawing it."""
    return list(evaluation_figure(evaluation).axes)


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
        "from ctxextend.report.figures import evaluation_figure, write_figure\n"
        f"write_figure(Path({str(tmp_path / 'there.svg')!r}), lambda: evaluation_figure(ENCODER))\n"
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
def test_plot_evaluation_has_panels_for_each_part_that_was_measured(evaluation: Evaluation, titles: list[str]) -> None:
    found = axes_of(evaluation)
    assert [axes.get_title().partition(":")[0] for axes in found] == titles
    assert all(axes.get_xlabel() for axes in found)


def test_plot_evaluation_names_what_it_is_of() -> None:
    titles = [
        " ".join(evaluation_figure(one).subfigs[0].get_suptitle().split()) for one in (EXTENDED, INTERRUPTED, LONE)
    ]
    assert titles[0].startswith("gpt2-512 (gpt2, causal, 512 tokens), made of tiny-gpt2 (128)")
    assert titles[1].endswith("; incomplete")
    assert "made of" not in titles[2]


def test_plot_evaluation_draws_the_losses_as_steps() -> None:
    assert EXTENDED.positions is not None
    axes = axes_of(EXTENDED)[0]
    assert legend(axes) == ["model", "original, sliding windows", "original, windows back to back"]
    assert [text.get_text() for text in axes.texts] == ["learned: 128"]
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
    assert [len(curve(axes, name).get_xdata()) for name in ("model", "original")] == [5, 3]
    assert len(curve(axes_of(LONE)[1], "model").get_xdata()) == 3


def test_plot_evaluation_writes_the_shares_into_the_cells() -> None:
    found: tuple[tuple[float | None, ...], ...] = ((1.0, 0.25), (None, 0.5))
    passkey = Passkey("loss rank", (64, 256), (0.0, 1.0), found, 20, 0.1)
    (axes,) = axes_of(replace(ENCODER, passkey=passkey, retrieval=None))
    texts = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    assert texts == {(0, 0): "100", (0, 1): "25", (1, 0): "-", (1, 1): "50"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "100"]


def test_plot_evaluation_draws_bars_with_their_errors() -> None:
    _, recalls, ranks = axes_of(ENCODER)
    assert [label.get_text() for label in recalls.get_yticklabels()] == ["truncated", "chunks", "model"]
    assert [bar.get_width() for bar in recalls.patches] == [0.165, 0.415, 0.47]
    assert [bar.get_width() for bar in ranks.patches] == [0.242, 0.522, 0.571]
    assert len(recalls.containers) == 6


@pytest.mark.parametrize(("value", "error"), [(math.nan, None), (math.inf, math.nan), (0.0, 0.0)])
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


def test_plot_evaluation_refuses_a_format_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="format"):
        plot_evaluation(EXTENDED, tmp_path / "figure.jpg")


def test_plot_training_draws_both_losses(tmp_path: Path) -> None:
    log = [{"step": 1, "loss": 5.0}, {"step": 1, "eval_loss": 5.1}, {"step": 2, "loss": 4.0}]
    write_figure(tmp_path / "figure.svg", lambda: training_figure(log, "gpt2: positions"))
    assert "held out" in (tmp_path / "figure.svg").read_text()
    write_figure(tmp_path / "figure.png", lambda: training_figure([], "_"))
