"""Sinusoidal tables that contradict their config or the flags: errors, or a documented choice."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ctxextend.tables.layouts import sinusoidal_rows
from tests.helpers.pico import read_json, write_json
from tests.helpers.trainings import invoke, unwrapped

OLD, NEW, WIDTH = 12, 30, 8
LAYERS = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
}
PARTS = {"vocab_size": 16, "d_model": WIDTH, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, **LAYERS}
ENCODER = {"vocab_size": 16, "dim": WIDTH, "n_layers": 1, "n_heads": 1, "hidden_dim": 8}
CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "pegasus": ("PegasusModel", PARTS),
    "m2m_100": ("M2M100Model", PARTS),
    "distilbert": ("DistilBertModel", {**ENCODER, "sinusoidal_pos_embds": True}),
    "xlm": (
        "XLMModel",
        {
            "n_words": 16,
            "emb_dim": WIDTH,
            "n_layers": 1,
            "n_heads": 1,
            "sinusoidal_embeddings": True,
        },
    ),
    "gpt2": ("GPT2Model", {"vocab_size": 16, "n_embd": WIDTH, "n_layer": 1, "n_head": 1}),
}
TABLES = {
    "pegasus": "encoder.embed_positions.weight",
    "distilbert": "embeddings.position_embeddings.weight",
}


def named(tensor: str) -> tuple[str, str]:
    """Return the flag that names a table."""
    return ("--table", f"{tensor}:max_position_embeddings")


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Save a small model, then change its config and its position table."""

    def save(
        model_type: str, config: Mapping[str, Any] = {}, rows: Any = None, **changes: Any
    ) -> Path:
        torch.manual_seed(0)
        class_name, settings = CONFIGS[model_type]
        settings = {**settings, "max_position_embeddings": OLD, **changes}
        folder = tmp_path / "source"
        built = transformers.AutoConfig.for_model(model_type, **settings)
        model_class = getattr(transformers, class_name)
        model = model_class(built)
        model.save_pretrained(folder)
        values = read_json(folder / "config.json")
        write_json(folder / "config.json", values | config)
        if rows is not None:
            tensors = load_file(folder / "model.safetensors")
            table = torch.tensor(rows, dtype=torch.float32)
            tensors[TABLES[model_type]] = table
            save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return save


def resize(source: Path, *flags: str, to: int = NEW) -> str:
    """Return what `ctxextend resize` prints."""
    output = source.parent / "out"
    done = invoke("resize", str(source), "--to", str(to), "-o", str(output), *flags)
    assert done.exit_code == 0, done.stderr
    return done.stderr


def rejected(source: Path, *flags: str, to: int = NEW) -> str:
    """Return the error of `ctxextend resize`; nothing may be written."""
    output = source.parent / "out"
    done = invoke("resize", str(source), "--to", str(to), "-o", str(output), *flags)
    assert done.exit_code in {1, 2}
    files = [path.name for path in source.parent.iterdir()]
    assert files == ["source"]
    return unwrapped(done.stderr)


def rows_of(source: Path, name: str) -> np.ndarray[Any, Any]:
    tensors = load_file(source.parent / "out" / "model.safetensors")
    values: np.ndarray[Any, Any] = tensors[name].numpy()
    return values


@pytest.mark.parametrize(
    ("model_type", "config", "message"),
    [
        (
            "pegasus",
            {"max_position_embeddings": 20},
            "max_position_embeddings is 20, so encoder.embed_positions.weight",
        ),
        (
            "m2m_100",
            {"max_position_embeddings": -2},
            "must be an integer for a m2m_100 model, got -2",
        ),
        ("m2m_100", {"d_model": None}, "d_model must be an integer for a m2m_100 model, got None"),
    ],
)
def test_resize_rejects_configs_that_contradict_sinusoids(
    model_type: str, config: dict[str, Any], message: str, make: Make
) -> None:
    assert message in rejected(make(model_type, config))


@pytest.mark.parametrize("config", [{}, {"sinusoidal_pos_embds": False}])
def test_resize_lets_the_rows_decide_against_the_config(config: dict[str, Any], make: Make) -> None:
    source = make("distilbert", config)
    assert "12 -> 30 positions by formula" in resize(source)
    positions = np.arange(NEW)
    expected = sinusoidal_rows(positions, WIDTH).astype(np.float32)
    found = rows_of(source, TABLES["distilbert"])
    np.testing.assert_array_equal(found, expected)


def test_resize_says_that_rows_deviate_from_their_formula(make: Make) -> None:
    rows = sinusoidal_rows(np.arange(OLD), WIDTH)
    rows[9:] += np.random.default_rng(0).normal(0, 0.1, size=(OLD - 9, WIDTH))
    source = make("distilbert", rows=rows)
    output = resize(source, "--method", "linear", "--dry-run")
    assert "12 -> 30 positions by formula" not in output
    note = "its rows are not the sinusoids of the model, so they are treated as learned"
    assert f"{note}.\n" in output
    output = resize(source)
    assert f"{note}; auto chose copy, " in output

    found = rows_of(source, TABLES["distilbert"])
    expected = rows.astype(np.float32)
    np.testing.assert_array_equal(found[:OLD], expected)
    np.testing.assert_array_equal(found[OLD:-6], expected)


def test_a_model_with_learned_rows_and_sinusoids_names_the_method_of_each(make: Make) -> None:
    rows = sinusoidal_rows(np.arange(OLD), WIDTH, "halves")
    noise = np.random.default_rng(0).normal(size=rows.shape)
    source = make("pegasus", rows=rows + noise * 0.1)
    output = resize(source)
    assert "encoder.embed_positions.weight (encoder), 12 -> 30 positions by copy\n" in output
    assert "decoder.embed_positions.weight (decoder), 12 -> 30 positions by formula\n" in output
    verified = invoke("verify", source.parent / "out")
    assert "match method copy" in verified.stdout
    assert "match method formula" in verified.stdout


def test_recipe_of_a_stored_and_a_computed_table_can_be_run(make: Make) -> None:
    source = make("pegasus", {"model_type": "marian"})
    tensors = load_file(source / "model.safetensors")
    del tensors["decoder.embed_positions.weight"]
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    resize(source)
    recipe = source.parent / "out" / "ctxextend.yaml"
    again = source.parent / "again"
    done = invoke("run", str(recipe), "--output", str(again))
    assert done.exit_code == 0, done.stderr
    verified = invoke("verify", str(again))
    assert "match method formula" in verified.stdout


@pytest.mark.parametrize("width", [7, 15])
def test_resize_continues_odd_widths_as_transformers_does(width: int, make: Make) -> None:
    source = make("pegasus", d_model=width)
    resize(source, "--verify")
    model = transformers.PegasusModel.from_pretrained(source.parent / "out")
    built = transformers.PegasusModel(model.config)
    found = model.decoder.embed_positions.weight
    expected = built.decoder.embed_positions.weight
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [("pegasus", "halves"), ("distilbert", "interleaved"), ("unknown", "interleaved")],
)
def test_resize_continues_a_row_that_fits_two_layouts_as_its_model_does(
    model_type: str, layout: str, make: Make
) -> None:
    """The first row fits `halves` and `halves-log`; two columns fit `interleaved` too."""
    saved_type = model_type.replace("unknown", "distilbert")
    source = make(saved_type, max_position_embeddings=1)
    name = TABLES[saved_type]
    flags: tuple[str, ...] = ()
    if model_type == "unknown":
        config = read_json(source / "config.json")
        write_json(source / "config.json", config | {"model_type": "my-own"})
        flags = named(name)
    shown = resize(source, *flags)
    assert f"its sinusoids continue (layout {layout})" in shown
    found = rows_of(source, name)
    expected = sinusoidal_rows(np.arange(NEW), WIDTH, layout)
    np.testing.assert_array_equal(found, expected.astype("f4"))
