"""Draw the figures of the site: the table that each method makes, rotary wavelengths, loss by
position scheme, and results.

    python -m benchmarks.figures [--out docs/figures]

The learned table is that of tiny-gpt2, 128 rows, extended to 512. The figures of schemes and of
docs/results.md show the files in results.
"""

import argparse
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file

from benchmarks.result_figures import BASE_STYLE, OTHER, draw_results
from ctxextend import list_methods, resize
from ctxextend.report.figures import COLOURS, DASHES, RC_PARAMS, SOFT
from ctxextend.tables.frequencies import frequencies
from ctxextend.tables.layouts import sinusoidal_rows
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.tables.methods import formula
from ctxextend.tables.rotary_methods import ROTARY_METHODS, RopeLengths

__all__ = ["extended_tables"]

matplotlib.use("Agg")
LEARNED, EXTENDED, TENSOR = 128, 512, "transformer.wpe.weight"
DPI = 110
# A head of 128 values that was trained at 4,096 positions with the base of Llama 2, extended four
# times.
HEAD_SIZE = 128
BASE = 10_000.0
TRAINED = 4096
FACTOR = 4
ROPE = {"rope_type": "default", "rope_theta": BASE}
Rows = NDArray[np.float64]


def extended_tables(folder: Path) -> Iterator[tuple[str, Rows, Rows]]:
    """Yield each method of tables, learned rows, shape (128, 128), and the rows that it makes of
    them, (512, 128).
    """

    def resized(length: int, method: str) -> Rows:
        output = resize("tiny-gpt2", length, method, output=folder / method, force=True).output
        return load_file(output / "model.safetensors")[TENSOR].astype(np.float64)

    learned = resized(EXTENDED, "copy")[:LEARNED]
    for method in list_methods():
        if method.name == "formula":
            waves = sinusoidal_rows(np.arange(LEARNED), learned.shape[1], "halves")
            yield method.name, waves, formula(waves, EXTENDED, layout="halves", start=0)
        elif method.name != DEFAULT_METHOD:
            yield method.name, learned, resized(EXTENDED, method.name)


def draw_table(axes: Any, learned: Rows, rows: Rows) -> None:
    """Draw rows along the three leading components of the learned ones, and the cosines between
    rows.
    """
    curves, heat = axes
    mean = learned.mean(axis=0)
    directions = np.linalg.svd(learned - mean, full_matrices=False)[2][:3]
    for number, values in enumerate(directions @ (rows - mean).T):
        curves.plot(values, color=COLOURS[number], linestyle=DASHES[number], linewidth=1.1)
    curves.axvline(LEARNED, color=OTHER, linewidth=0.8)
    curves.set(xlabel="position", xlim=(0, EXTENDED), title="leading components", yticks=[])
    units = (rows - mean) / np.linalg.norm(rows - mean, axis=1, keepdims=True).clip(1e-9)
    image = units @ units.T
    heat.imshow(image, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    for line in (heat.axvline, heat.axhline):
        line(LEARNED, color=SOFT, linewidth=0.6)
    heat.set(
        xlabel="position", title="cosine between rows", xticks=[0, 128, 512], yticks=[0, 128, 512]
    )
    heat.grid(visible=False)


def draw_wavelengths(axes: Any) -> None:
    """Draw the wavelength of each pair by rotary method."""
    pairs = np.arange(HEAD_SIZE // 2)
    unscaled = 2 * np.pi / np.asarray(frequencies(ROPE, HEAD_SIZE, TRAINED).inverse)
    axes.plot(pairs, unscaled, label="as trained", **BASE_STYLE)
    for number, name in enumerate(("yarn", "linear", "dynamic", "theta")):
        lengths = RopeLengths(first_trained=TRAINED, served=TRAINED, after=FACTOR * TRAINED)
        rope = ROTARY_METHODS[name].function(ROPE, lengths, HEAD_SIZE, factor=float(FACTOR))
        max_len = TRAINED if ROTARY_METHODS[name].keeps_max_len else FACTOR * TRAINED
        values = np.asarray(frequencies(rope, HEAD_SIZE, max_len, FACTOR * TRAINED).inverse)
        axes.plot(
            pairs, 2 * np.pi / values, label=name, color=COLOURS[number], linestyle=DASHES[number]
        )
    for length in (TRAINED, FACTOR * TRAINED):
        axes.axhline(length, color=OTHER, linewidth=0.8)
        axes.annotate(
            f"{length:,} tokens",
            (0, length),
            (2, 2),
            textcoords="offset points",
            color=SOFT,
            fontsize=7,
        )
    axes.set(
        yscale="log",
        xlabel="pair of values in a head",
        ylabel="tokens per turn",
        xlim=(0, HEAD_SIZE // 2 - 1),
    )
    axes.set_yticks(
        [10.0**power for power in range(1, 7)], [f"{10**power:,}" for power in range(1, 7)]
    )
    axes.minorticks_off()
    axes.legend(loc="lower right")


def draw_schemes(axes: Any, schemes: dict[str, Any]) -> None:
    """Draw perplexity by position of each scheme after a resize, without training, against its
    base.
    """
    for number, (name, scheme) in enumerate(schemes.items()):
        positions = [(start + stop) / 2 for start, stop, *_ in scheme["by_position"]]
        ratios = [ratio for *_, ratio in scheme["by_position"]]
        axes.plot(
            positions,
            ratios,
            label=name,
            color=COLOURS[number],
            linestyle=DASHES[number],
            marker=".",
        )
    axes.axhline(1, label="base, sliding windows", **BASE_STYLE)
    axes.axvline(LEARNED, color=OTHER, linewidth=0.8)
    axes.set(yscale="log", xlabel="position", ylabel="perplexity / base's", xlim=(0, EXTENDED))
    axes.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.legend()


def save(figure: Any, path: Path) -> None:
    """Save a figure as a PNG file of few colours, which is a third of the size."""
    data = io.BytesIO()
    figure.savefig(data, dpi=DPI)
    pyplot.close(figure)
    Image.open(data).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), metavar="DIR")
    draw(parser.parse_args().out)


def draw(out: Path) -> None:
    """Draw all figures into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(dict[Any, Any](RC_PARAMS)), tempfile.TemporaryDirectory() as folder:
        for name, learned, rows in extended_tables(Path(folder)):
            figure, axes = pyplot.subplots(
                1, 2, figsize=(6, 2.3), width_ratios=(1.7, 1), layout="constrained"
            )
            draw_table(axes, learned, rows)
            save(figure, out / f"method-{name}.png")
        figure, axis = pyplot.subplots(figsize=(6, 3), layout="constrained")
        draw_wavelengths(axis)
        save(figure, out / "rotary-methods.png")
        figure, axis = pyplot.subplots(figsize=(6, 3), layout="constrained")
        schemes = Path(__file__).with_name("results") / "schemes.json"
        draw_schemes(axis, json.loads(schemes.read_text("utf-8"))["schemes"])
        save(figure, out / "schemes.png")
        for name, figure in draw_results():
            save(figure, out / f"{name}.png")


if __name__ == "__main__":
    main()
