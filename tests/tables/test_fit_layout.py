"""How sinusoidal a table is: `fit_layout` on known shares, and `inspect` on models."""

import json
import re
from typing import Any

import numpy as np
import pytest
import transformers
from jsonschema import validate
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from ctxextend.lab.eval_model import EvalModel
from ctxextend.tables.layouts import LAYOUTS, LayoutFit, fit_layout, sinusoidal_rows
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import invoke

Floats = NDArray[np.float64]
ROWS = 96
WIDTH = 32
SCHEMA = SCHEMAS["inspect"]


def table(
    layout: str = "halves",
    start: int = 0,
    rows: int = ROWS,
    width: int = WIDTH,
    dtype: Any = np.float32,
) -> Floats:
    positions = np.arange(start, start + rows)
    return sinusoidal_rows(positions, width, layout).astype(dtype)


def noise(rows: int = ROWS, width: int = WIDTH) -> Floats:
    return np.random.default_rng(0).standard_normal((rows, width))


def fit(values: NDArray[Any], layout: str = "") -> LayoutFit:
    found = fit_layout(values, layout)
    assert found is not None
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fit_layout_recognises_formulas_from_any_start(layout: str, dtype: Any) -> None:
    for start in (0, 2, 500):
        found = fit(table(layout, start, dtype=dtype))
        assert found.layout == layout
        assert found.is_formula
        assert found.first_deviating_row is None
        assert found.explained == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fit_layout_ignores_scale_mean_and_start(layout: str) -> None:
    mean = 1000 * noise(rows=1)
    found = fit(mean - 0.3 * table(layout, 7).astype(np.float64))
    assert found.layout == layout
    assert not found.is_formula
    assert found.explained == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("level", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fit_layout_explains_what_is_not_noise(layout: str, level: float) -> None:
    values = table(layout).astype(np.float64)
    noisy = values + level * noise()
    variance = values.var(axis=0).sum()
    noisy_variance = noisy.var(axis=0).sum()

    found = fit(noisy)

    assert found.layout == layout
    assert not found.is_formula
    assert found.explained == pytest.approx(variance / noisy_variance, abs=0.03)


@pytest.mark.parametrize("width", [8, 64, 512])
def test_fit_layout_of_random_rows_is_near_zero_at_any_width(width: int) -> None:
    assert fit(noise(256, width)).explained < 0.015


def test_fit_layout_of_learned_tables_is_low(minilm: EvalModel) -> None:
    learned = minilm.model.get_parameter("embeddings.position_embeddings.weight").detach().numpy()
    ramps = np.arange(ROWS)[:, None] * noise(1)
    walk = np.cumsum(noise(), axis=0)
    for values in (learned, ramps, walk):
        assert fit(values).explained < 0.1


def test_fit_layout_compares_with_the_layout_that_the_model_computes() -> None:
    assert fit(table("halves"), "interleaved").layout == "halves"
    assert fit(noise()).first_deviating_row is None
    assert fit(noise(), "halves").first_deviating_row == 0
    both = table("halves", width=2)  # two columns are the same in both layouts
    assert fit(both).layout == "interleaved"
    assert fit(both, "halves").layout == "halves"


@pytest.mark.parametrize(
    "values",
    [table(rows=1), np.full((7, 8), 0.1), np.arange(5.0)[:, None], np.zeros((4, 4))],
    ids=["one row", "constant", "one column", "zeros"],
)
def test_fit_layout_returns_none_without_variance_or_pairs(values: NDArray[Any]) -> None:
    assert fit_layout(values) is None


def test_fit_layout_ignores_a_last_column_without_partner() -> None:
    for layout in LAYOUTS:
        found = fit(3 * table(layout, width=9))
        assert found.explained == pytest.approx(1)


# `inspect`

LAYERS: dict[str, Any] = {
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
}
SIZES: dict[str, Any] = {
    "d_model": 8,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 16,
}
VOCABULARY: dict[str, Any] = {"langs": ["en", "de"], "src_vocab_size": 32, "tgt_vocab_size": 32}
XLM: dict[str, Any] = {
    "vocab_size": 32,
    "emb_dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "sinusoidal_embeddings": True,
}
M2M100 = {**SIZES, **LAYERS, "vocab_size": 32}
# Model class, config, table, reserved rows and layout. FSMT has a zero row at its padding index, 1.
MODELS = [
    ("PegasusModel", M2M100, "encoder.embed_positions.weight", 0, "halves"),
    (
        "FSMTModel",
        {**SIZES, **LAYERS, **VOCABULARY},
        "encoder.embed_positions.weight",
        2,
        "halves-log",
    ),
    (
        "XLMModel",
        {**XLM, "max_position_embeddings": 16},
        "position_embeddings.weight",
        0,
        "interleaved",
    ),
]


def save(name: str, config: dict[str, Any]) -> str:
    """Save a model of transformers with random weights."""
    model_class = getattr(transformers, name)
    model_class(model_class.config_class(**config)).save_pretrained(name)
    return name


def sinusoidal(*arguments: object) -> Any:
    done = invoke("inspect", *arguments, "--json")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    validate(values, SCHEMA)
    model = values["models"][0]
    return model["tables"][0]["sinusoidal"]


def unregistered(tensor: str, reserved: int) -> tuple[object, ...]:
    """Return the flag that names a table, as for a model type that is not registered."""
    return ("--table", f"{tensor}:max_position_embeddings:{reserved}")


def add_to_rows(name: str, tensor: str, first: int, last: int, value: float) -> None:
    path = f"{name}/model.safetensors"
    tensors = load_file(path)
    tensors[tensor][first:last] += value
    save_file(tensors, path, metadata={"format": "pt"})


EACH_MODEL = pytest.mark.parametrize(
    ("name", "config", "tensor", "reserved", "layout"), MODELS, ids=[model[0] for model in MODELS]
)


@EACH_MODEL
def test_inspect_recognises_stored_formulas(
    name: str, config: dict[str, Any], tensor: str, reserved: int, layout: str
) -> None:
    save(name, config)

    for flags in ((), unregistered(tensor, reserved)):
        found = sinusoidal(name, *flags)
        assert found.pop("explained") == pytest.approx(1)
        assert found == {"layout": layout, "is_formula": True, "first_deviating_row": None}
    screen = invoke("inspect", name).stdout
    assert "; rows are sinusoidal.\n" in screen
    assert f" all rows ({layout})" in screen
    assert "first deviating row" not in screen


@EACH_MODEL
def test_inspect_names_the_first_row_that_deviates_from_a_formula(
    name: str, config: dict[str, Any], tensor: str, reserved: int, layout: str
) -> None:
    save(name, config)
    row = reserved + 9
    add_to_rows(name, tensor, row, row + 1, 0.05)

    for flags in ((), unregistered(tensor, reserved)):
        found = sinusoidal(name, *flags)
        assert 0.99 < found.pop("explained") < 1
        assert found == {"layout": layout, "is_formula": False, "first_deviating_row": row}
    output = invoke("inspect", name, *unregistered(tensor, reserved)).stdout
    screen = " ".join(output.split())
    assert re.search(rf" 99\.\d % \({layout}\) first deviating row {row} ", screen)


def test_inspect_recognises_computed_formulas() -> None:
    found = sinusoidal(save("M2M100Model", M2M100))
    assert found["layout"] == "halves-log"
    assert found["is_formula"]
