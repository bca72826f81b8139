"""`inspect` of positions without a table of rows: rotary, ALiBi and relative ones."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import Result

from ctxextend import Inspection, Limit, RopeReport, inspect, resize
from tests.helpers import pico
from tests.helpers.trainings import invoke

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}
TOKENIZER = "tokenizer_config.json"
RUNS_AS_WELL = "inputs of 257 to 1024 tokens run as well"

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a model with random weights, with a tokenizer's limit if it is stated."""

    def make(name: str, model: Any, limit: float | None = None) -> Path:
        folder = tmp_path / name
        model.save_pretrained(folder)
        if limit is not None:
            (folder / TOKENIZER).write_text(json.dumps({"model_max_length": limit}))
        return folder

    return make


@pytest.fixture
def llama(save: Save) -> Path:
    """A model with four pairs of values per head, trained at 64 tokens, as its tokenizer states."""
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=64)
    return save("llama", transformers.LlamaModel(config), 64)


def run(*arguments: object, columns: int | None = None) -> Result:
    return invoke("inspect", *arguments, columns=columns)


def only_rope(found: Inspection) -> RopeReport:
    (scheme,) = found.schemes
    (rope,) = scheme.layers
    return rope


def test_inspect_returns_rotary_wavelengths(llama: Path) -> None:
    pico.edit_json(llama / TOKENIZER, model_max_length=1e30)  # no limit: longer inputs run

    found = inspect(llama)

    assert found.tables == ()
    assert found.verdict == "64 positions (rotary), all files agree."
    (scheme,) = found.schemes
    assert scheme.name == "rope_parameters"
    assert scheme.scheme == "rotary"
    assert scheme.config_key == "max_position_embeddings"
    rope = only_rope(found)
    assert rope.wavelengths / (2 * math.pi) == pytest.approx([1, 10, 100, 1000])
    assert rope.trained_length == 64
    assert rope.positions == 64
    assert rope.attention_factor == 1
    assert rope.slowed == 0
    assert rope.untrained == 0


@pytest.mark.parametrize(
    ("method", "slowed", "slowdown", "untrained"),
    # The third pair turned 64 / 628 times; now it turns 256 / (628·4), or 256 / (628·4^(2/3)) times
    # with theta.
    [
        ("yarn", 3, 4, 0),
        ("linear", 4, 4, 0),
        ("dynamic", 3, 4 * 256 / 64 - 3, 0),
        ("theta", 3, 4, 1),
    ],
)
def test_inspect_compares_wavelengths_before_and_after_a_resize(
    llama: Path, method: str, slowed: int, slowdown: float, untrained: int
) -> None:
    output = resize(llama, 256, method, output="out").output

    before = only_rope(inspect(llama))
    rope = only_rope(inspect(output))

    assert rope.trained_length == 64
    assert rope.positions == 256
    assert rope.slowed == slowed
    assert rope.untrained == untrained
    assert rope.slowdown == pytest.approx(slowdown)
    assert rope.unscaled_wavelengths == pytest.approx(before.wavelengths)
    if method not in ("dynamic", "switch"):  # its frequencies depend on the input's length
        model = transformers.AutoModel.from_pretrained(output)
        inverse = model.rotary_emb.inv_freq.double().numpy()
        assert rope.wavelengths == pytest.approx(2 * math.pi / inverse)


@pytest.mark.parametrize(
    ("method", "verdict", "stated"),
    [
        ("yarn", "256 positions (rotary, yarn), all files agree.", 256),
        ("dynamic", "256 positions (rotary, dynamic), all files agree.", 64),
        ("theta", "256 positions (rotary), all files agree.", 256),
    ],
)
def test_inspect_finds_that_all_limits_agree_after_a_resize(
    llama: Path, method: str, verdict: str, stated: int
) -> None:
    output = resize(llama, 256, method, output="out").output
    found = inspect(output)
    assert found.verdict == verdict
    limits = {f"{limit.file} {limit.key}": (limit.value, limit.tokens) for limit in found.limits}
    assert limits == {
        "config.json max_position_embeddings": (stated, 256),
        f"{TOKENIZER} model_max_length": (256, 256),
    }
    assert run(output, "--check").exit_code == 0


def disagreeing(found: Inspection) -> Limit:
    (limit,) = (limit for limit in found.limits if not limit.agrees)
    return limit


@pytest.mark.parametrize(
    ("limit", "reason"), [(32, "are truncated to 32"), (128, "of 65 to 128 tokens reach angles")]
)
def test_inspect_reports_limits_that_differ_from_the_rotary_length(
    llama: Path, limit: int, reason: str
) -> None:
    pico.edit_json(llama / TOKENIZER, model_max_length=limit)
    wrong = disagreeing(inspect(llama))
    assert wrong.file == TOKENIZER
    assert wrong.tokens == limit
    assert reason in wrong.reason
    output = f"--to 64 --fix-limits --output {llama}-64"
    if limit > 64:
        assert wrong.fix == f"ctxextend resize {llama} {output}"
    else:  # or the length was raised without scaling
        assert wrong.fix == f"ctxextend resize {llama} --trained-length 64 {output}"
    assert run(llama, "--check").exit_code == 3


def test_inspect_does_not_count_the_trained_length_as_a_limit(llama: Path) -> None:
    pico.edit_json(llama / "config.json", **{"original_max_position_embeddings": 16})
    pico.edit_json(llama / TOKENIZER, model_max_length=1e30)
    found = inspect(llama)
    assert [limit.key for limit in found.limits] == ["max_position_embeddings", "model_max_length"]


def test_inspect_does_not_compare_local_layers_with_the_new_length(save: Save) -> None:
    sizes = SIZES | {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    layer_types = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(**sizes, layer_types=layer_types)
    folder = save("gemma", transformers.Gemma3TextModel(config), 1e30)

    found = inspect(resize(folder, 256, output="out").output)

    assert found.verdict == "256 positions (rotary, yarn), all files agree."
    (scheme,) = found.schemes
    far, local = scheme.layers
    assert far.layers == "full_attention"
    assert not far.is_local
    assert far.parameters["rope_theta"] == 1e6
    assert far.slowed == 3
    assert local.layers == "sliding_attention"
    assert local.is_local
    assert local.parameters["rope_theta"] == 1e4
    assert local.slowed == 0
    screen = run("out").stdout
    assert "sliding_attention\na sliding window, which longer inputs do not change\n" in screen


@pytest.fixture
def mpt(save: Save) -> Path:
    """A model with ALiBi."""
    config = transformers.MptConfig(vocab_size=32, d_model=8, n_heads=2, n_layers=1, max_seq_len=64)
    return save("mpt", transformers.MptModel(config))


@pytest.fixture
def t5(save: Save) -> Path:
    """A model with relative positions."""
    config = transformers.T5Config(
        vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    # transformers reads no length from the config
    return save("t5", transformers.T5Model(config), 1024)


def test_inspect_states_the_length_of_models_without_rows(mpt: Path, t5: Path) -> None:
    assert inspect(mpt).verdict == "64 positions (ALiBi), all files agree."
    assert inspect(t5).verdict == "512 positions (relative), all files agree."


def test_inspect_reports_a_limit_above_the_length_of_relative_positions(t5: Path) -> None:
    pico.edit_json(t5 / "config.json", n_positions=256)
    limit = disagreeing(inspect(t5))
    assert limit.reason == f"the model has 256 positions: {RUNS_AS_WELL}"
    assert run(t5, "--check").exit_code == 3
