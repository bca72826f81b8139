"""Sinusoidal tables equal those of transformers, are found in any dtype, and continue exactly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers.models.ctrl import modeling_ctrl
from transformers.models.fsmt import modeling_fsmt
from transformers.models.musicgen import modeling_musicgen
from transformers.models.pegasus import modeling_pegasus
from transformers.models.xlm import modeling_xlm

from ctxextend.tables.apply import resize_table
from ctxextend.tables.layouts import Formula, find_formula, sinusoidal_rows
from tests.helpers.method_choices import read_choice
from tests.helpers.trainings import succeed

XLM: Any = modeling_xlm.create_sinusoidal_embeddings
PEGASUS: Any = modeling_pegasus.PegasusSinusoidalPositionalEmbedding
CTRL: Any = modeling_ctrl.positional_encoding
FSMT: Any = modeling_fsmt.SinusoidalPositionalEmbedding
MUSICGEN: Any = modeling_musicgen.MusicgenSinusoidalPositionalEmbedding
# Tables of transformers, (rows, width), and their layout.
THEIRS: dict[str, tuple[str, Callable[[int, int], torch.Tensor]]] = {
    "xlm": ("interleaved", lambda rows, width: XLM(rows, width, torch.empty(rows, width))),
    "pegasus": ("halves", lambda rows, width: PEGASUS(rows, width).create_weight()),
    "ctrl": ("halves", lambda rows, width: CTRL(rows, width, torch.float)),
    "fsmt": ("halves-log", lambda rows, width: FSMT.get_embedding(rows, width, None)),
    "musicgen": ("halves-log-cos", lambda rows, width: MUSICGEN.get_embedding(rows, width)),
}
ROWS = 700


def to_numpy(tensor: torch.Tensor) -> NDArray[np.generic]:
    name = str(tensor.dtype).removeprefix("torch.")
    stored = tensor.contiguous().view(torch.uint8).numpy()
    return stored.view(name).reshape(tensor.shape)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(
    ("name", "width"), [(name, width) for name in THEIRS for width in (6, 7, 16, 64)]
)
@pytest.mark.parametrize("start", [0, 2, 130])
def test_formula_continues_tables_of_transformers_bit_for_bit(
    name: str, width: int, start: int, dtype: torch.dtype
) -> None:
    layout, create = THEIRS[name]
    theirs = create(ROWS, width).to(dtype)
    learned = to_numpy(theirs[start:300])
    choice = read_choice(f"formula:layout={layout}")

    ours = resize_table(learned, ROWS - start, choice)

    assert find_formula(learned, layout) == Formula(layout, start)
    # New rows in float64 are not rounded to float32.
    differing = ours.astype(np.float32) != to_numpy(theirs[start:]).astype(np.float32)
    share = differing.mean()
    if name == "ctrl" and dtype.itemsize == 2:
        # In 16 bits, rows do not tell whether CTRL's layout was computed in float32.
        assert share <= 0.01
    else:
        assert share == 0


@pytest.mark.filterwarnings("error")
def test_find_formula_is_none_for_rows_whose_squares_overflow() -> None:
    assert find_formula(np.full((3, 4), 1e200)) is None


def test_find_formula_prefers_the_given_layout_for_a_single_row() -> None:
    table = sinusoidal_rows(np.arange(1), 8, "halves").astype(np.float32)  # that of halves-log, too
    assert find_formula(table) == Formula("halves", 0)
    assert find_formula(table, "halves-log") == Formula("halves-log", 0)
    one_pair = sinusoidal_rows(np.arange(9), 2, "halves")
    assert find_formula(one_pair) == Formula("interleaved", 0)


def test_inspect_recognises_a_stored_formula_of_any_type(tmp_path: Path) -> None:
    config = transformers.PegasusConfig(d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8)
    config.encoder_layers = config.decoder_layers = 1
    config.encoder_attention_heads = config.decoder_attention_heads = 2
    config.max_position_embeddings = 16
    config.vocab_size = 32
    transformers.PegasusModel(config).save_pretrained(tmp_path)
    tensor = "encoder.embed_positions.weight"
    flags: tuple[object, ...] = ("--table", f"{tensor}:max_position_embeddings:0")

    assert inspected_layout(tmp_path) == "halves"
    assert inspected_layout(tmp_path, *flags) == "halves"

    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[tensor][9] += 0.05
    save_file(tensors, path, metadata={"format": "pt"})
    assert inspected_layout(tmp_path) == ""


def inspected_layout(folder: Path, *flags: object) -> Any:
    done = succeed("inspect", folder, *flags, "--json")
    return json.loads(done.stdout)["models"][0]["tables"][0]["sinusoidal"]
