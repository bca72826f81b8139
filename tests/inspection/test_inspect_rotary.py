"""`inspect` of positions without a table of rows: rotary, ALiBi and relative ones."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from jsonschema import Draft202012Validator
from typer.testing import Result

from ctxextend import Inspection, RopeReport, inspect, resize
from ctxextend.recipe import RECIPE_FILE
from tests.helpers import pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import invoke

SCHEMA = SCHEMAS["inspect"]
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
        model.save_pretrained(tmp_path / name)
        if limit is not None:
            (tmp_path / name / TOKENIZER).write_text(json.dumps({"model_max_length": limit}))
        return tmp_path / name

    return make


@pytest.fixture
def llama(save: Save) -> Path:
    """A model with four pairs of values per head, trained at 64 tokens, as its tokenizer states."""
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=64)
    return save("llama", transformers.LlamaModel(config), 64)


def run(*arguments: object) -> Result:
    return invoke("inspect", *arguments)


def only_rope(found: Inspection) -> RopeReport:
    ((rope,),) = (scheme.layers for scheme in found.schemes)
    return rope


def test_inspect_returns_rotary_wavelengths(llama: Path) -> None:
    pico.edit_json(llama / TOKENIZER, model_max_length=1e30)  # no limit: longer inputs run
    found = inspect(llama)
    (scheme,) = found.schemes
    rope = only_rope(found)
    assert (found.tables, found.verdict) == ((), "64 positions (rotary), all files agree.")
    assert (scheme.name, scheme.scheme, scheme.config_key) == (
        "rope_parameters",
        "rotary",
        "max_position_embeddings",
    )
    assert rope.wavelengths / (2 * math.pi) == pytest.approx([1, 10, 100, 1000])
    assert (rope.trained_length, rope.positions, rope.attention_factor) == (64, 64, 1)
    assert (rope.partial_turns, rope.trained_partial_turns, rope.slowed, rope.untrained) == (
        2,
        2,
        0,
        0,
    )


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
    found, before = (
        inspect(resize(llama, 256, method, output="out").output),
        only_rope(inspect(llama)),
    )
    rope = only_rope(found)
    assert (rope.trained_length, rope.positions, rope.trained_partial_turns) == (64, 256, 2)
    assert (rope.slowed, rope.partial_turns, rope.untrained) == (slowed, 2, untrained)
    assert rope.slowdown == pytest.approx(slowdown)
    assert rope.unscaled_wavelengths == pytest.approx(before.wavelengths)
    if method != "dynamic":  # its frequencies depend on the input's length
        inverse = transformers.AutoModel.from_pretrained("out").rotary_emb.inv_freq.double().numpy()
        assert rope.wavelengths == pytest.approx(2 * math.pi / inverse)
    kind = "" if method == "theta" else f", {method}"
    assert found.verdict == f"256 positions (rotary{kind}), all files agree."
    stated = {f"{limit.file} {limit.key}": (limit.value, limit.tokens) for limit in found.limits}
    assert stated == {
        "config.json max_position_embeddings": (64 if method == "dynamic" else 256, 256),
        f"{TOKENIZER} model_max_length": (256, 256),
    }
    assert run("out", "--check").exit_code == 0


def test_inspect_reads_an_edited_recipe_without_the_factor_of_theta(llama: Path) -> None:
    wavelengths = only_rope(inspect(llama)).wavelengths
    resize(llama, 256, method="theta", output="out")
    recipe = Path("out", RECIPE_FILE)
    recipe.write_text(recipe.read_text().replace("theta:factor=4", "theta"))
    rope = only_rope(inspect("out"))
    assert rope.trained_length == 64
    assert rope.slowdown == pytest.approx(4)
    assert rope.unscaled_wavelengths == pytest.approx(wavelengths)


@pytest.mark.parametrize(
    ("limit", "reason"), [(32, "are truncated to 32"), (128, "of 65 to 128 tokens reach angles")]
)
def test_inspect_reports_limits_that_differ_from_the_rotary_length(
    llama: Path, limit: int, reason: str
) -> None:
    pico.edit_json(llama / TOKENIZER, model_max_length=limit)
    found = inspect(llama)
    (wrong,) = [item for item in found.limits if not item.agrees]
    assert (wrong.file, wrong.tokens) == (TOKENIZER, limit)
    assert reason in wrong.reason
    assert wrong.fix == f"ctxextend resize {llama} --to 64 --fix-limits"
    assert run(llama, "--check").exit_code == 3


def test_inspect_does_not_count_the_trained_length_as_a_limit(llama: Path) -> None:
    pico.edit_json(llama / "config.json", **{"original_max_position_embeddings": 16})
    pico.edit_json(llama / TOKENIZER, model_max_length=1e30)
    found = inspect(llama)
    assert [limit.key for limit in found.limits] == ["max_position_embeddings", "model_max_length"]
    assert [(item.name, item.tokens, item.beyond) for item in found.libraries] == [
        ("transformers", 64, "untrained")
    ]


def test_inspect_does_not_compare_local_layers_with_the_new_length(save: Save) -> None:
    sizes = SIZES | {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    config = transformers.Gemma3TextConfig(
        **sizes, layer_types=["sliding_attention", "full_attention"]
    )
    folder = save("gemma", transformers.Gemma3TextModel(config), 1e30)
    found = inspect(resize(folder, 256, output="out").output)
    (scheme,) = found.schemes
    layers = [
        (rope.layers, rope.is_local, rope.parameters["rope_theta"], rope.slowed)
        for rope in scheme.layers
    ]
    assert layers == [("full_attention", False, 1e6, 3), ("sliding_attention", True, 1e4, 0)]
    assert found.verdict == "256 positions (rotary, yarn), all files agree."
    assert (
        "sliding_attention: a sliding window, which longer inputs do not change\n"
        in run("out").stdout
    )


def test_inspect_states_that_any_length_works_without_rows(save: Save) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "d_model": 8,
        "n_heads": 2,
        "n_layers": 1,
        "max_seq_len": 64,
    }
    mpt = save("mpt", transformers.MptModel(transformers.MptConfig(**sizes)))
    assert inspect(mpt).verdict == "64 positions (ALiBi), all files agree."
    sizes = {"vocab_size": 32, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    t5 = save("t5", transformers.T5Model(transformers.T5Config(**sizes)))
    (t5 / TOKENIZER).write_text(
        '{"model_max_length": 1024}'
    )  # transformers reads no length from the config
    assert inspect(t5).verdict == "512 positions (relative), all files agree."
    pico.edit_json(t5 / "config.json", n_positions=256)
    (limit,) = (limit for limit in inspect(t5).limits if not limit.agrees)
    assert (limit.reason, run(t5, "--check").exit_code) == (
        f"the model has 256 positions: {RUNS_AS_WELL}",
        3,
    )
    frame = json.loads(run(mpt, t5, "--json").stdout)
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(frame)] == []
    for folder, scheme in ((mpt, "ALiBi"), (t5, "relative")):
        assert (
            f"{scheme} positions: any length runs once the limits below allow it\n"
            in run(folder).stdout
        )


def test_inspect_prints_rotary_models_side_by_side(llama: Path) -> None:
    resize(llama, 256, output="out")
    done = run(llama, "out", "--width", 100)
    lines = done.stdout.splitlines()
    assert lines[0] == "llama: 64 positions (rotary), all files agree."
    assert any(
        line.split() == ["rope", "type", "default", "yarn,", "factor", "4"] for line in lines
    )
    frame = json.loads(run(llama, "out", "--json").stdout)
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(frame)] == []
    assert frame["models"][1]["schemes"][0]["layers"][0]["slowed"] == 3


@pytest.mark.parametrize("flag", ["--rows=0:2", "--plot=figure.svg"])
def test_inspect_rejects_flags_that_need_rows(llama: Path, flag: str) -> None:
    done = run(llama, flag)
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        f"{flag.partition('=')[0]} applies to tables of rows; the positions of {llama} are rotary."
        in done.stderr
    )


def test_inspect_report_states_rotary_positions(llama: Path) -> None:
    assert run(llama, "--report", "report.html").exit_code == 0
    assert "64 positions (rotary)" in Path("report.html").read_text()
