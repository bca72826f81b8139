"""Other length keys in config.json than a model type's own: edits, warnings and reports."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from ctxextend import Limit, extend_model, inspect, plan_resize, resize
from tests.helpers import pico
from tests.helpers.notes import text_of, texts, texts_in
from tests.helpers.trainings import invoke

MakePico = Callable[..., pico.Pico]
OLD = 64
NEW = 256
ROTARY: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}
OTHER_KEYS = [
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "seq_length",
    "seq_len",
    "sequence_length",
    "model_max_length",
    "tokenizer_model_max_length",
    "max_context_length",
    "context_length",
    "max_model_len",
]


def make_llama(folder: Path, length: int = OLD, **keys: Any) -> Path:
    config = transformers.LlamaConfig(max_position_embeddings=length, vocab_size=32, **ROTARY)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    pico.edit_json(folder / "config.json", **keys)
    return folder


def stated(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def wrong_limits(folder: Path) -> list[Limit]:
    return [limit for limit in inspect(folder).limits if not limit.agrees]


def wrong_keys(folder: Path) -> list[str]:
    return [limit.key for limit in wrong_limits(folder)]


# Keys that agree


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_resize_edits_length_keys_that_agree(key: str, tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "llama", **{key: OLD})
    assert wrong_keys(folder) == []
    plan = plan_resize(folder, NEW)
    assert key not in text_of(plan)
    output = plan.execute(tmp_path / "out").output
    assert stated(output)[key] == NEW
    assert inspect(output).agrees


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("gpt2", {"max_seq_len": 16}, {"max_seq_len": 8}),
        ("bert", {"n_positions": 16, "seq_length": 16}, {"n_positions": 8, "seq_length": 8}),
        (
            "roberta",
            {"max_seq_length": 16, "n_positions": 18},
            {"max_seq_length": 8, "n_positions": 10},
        ),
    ],
)
def test_resize_edits_length_keys_with_and_without_reserved_rows(
    model_type: str,
    keys: dict[str, int],
    expected: dict[str, int],
    make_pico: MakePico,
    tmp_path: Path,
) -> None:
    folder = make_pico(model_type).folder
    pico.edit_json(folder / "config.json", **keys)
    assert wrong_keys(folder) == []
    output = resize(folder, 8, output=tmp_path / "out").output
    assert stated(output).items() >= expected.items()
    assert inspect(output).agrees


def test_resize_edits_a_length_key_of_one_of_two_tables(tmp_path: Path) -> None:
    folder = pico.make_led(tmp_path / "led", encoder=32, decoder=16)
    pico.edit_json(folder / "config.json", model_max_length=32, seq_length=16)
    assert wrong_keys(folder) == []

    output = resize(folder, 64, part="encoder", output=tmp_path / "out").output
    config = stated(output)
    assert config["model_max_length"] == 64
    assert config["seq_length"] == 16
    assert inspect(output).agrees

    plan = plan_resize(output, 32, part="decoder", fix_limits=True)
    assert texts(plan, level="warning") == ()
    config = stated(plan.execute(tmp_path / "both").output)
    assert config["model_max_length"] == 64
    assert config["seq_length"] == 32


def make_llava(folder: Path, **keys: Any) -> Path:
    """Save a model whose config nests the one of the Llama that reads texts."""
    text = {
        "model_type": "llama",
        "max_position_embeddings": OLD,
        "vocab_size": 32,
        "seq_length": OLD,
        **ROTARY,
    }
    vision = {"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **ROTARY}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    pico.edit_json(folder / "config.json", **keys)
    return folder


def test_resize_edits_length_keys_around_a_text_config(tmp_path: Path) -> None:
    folder = make_llava(
        tmp_path / "llava", tokenizer_model_max_length=OLD, max_sequence_length=OLD // 2
    )
    assert wrong_keys(folder) == ["max_sequence_length"]

    output = resize(folder, NEW, output=tmp_path / "out").output

    config = stated(output)
    assert config["tokenizer_model_max_length"] == NEW
    assert config["text_config"]["seq_length"] == NEW
    assert config["max_sequence_length"] == OLD // 2
    readers = {limit.key: limit.used_by for limit in inspect(output).limits}
    assert readers["tokenizer_model_max_length"] == "LLaVA"
    assert readers["max_sequence_length"] == "none"
    assert "vLLM" in readers["text_config.seq_length"]


@pytest.mark.parametrize(
    "values", [{"model_max_length": OLD, "n_ctx": OLD}, {"model_max_length": 2 * OLD}]
)
def test_extend_model_edits_the_length_keys_that_resize_edits(
    values: dict[str, int], tmp_path: Path
) -> None:
    folder = make_llama(tmp_path / "llama", **values)
    resized = stated(resize(folder, NEW, output=tmp_path / "out").output)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)

    extend_model(model, NEW)

    for key in values:
        assert getattr(model.config, key) == resized[key]


# Keys that disagree


@pytest.mark.parametrize("key", ["n_ctx", "model_max_length"])
def test_inspect_reports_and_fixes_length_keys_that_disagree(key: str, tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "llama", **{key: OLD // 2})
    done = invoke("inspect", folder, "--check")
    assert done.exit_code == 3
    screen = " ".join(done.stdout.split())
    assert f"{key} is {OLD // 2}" in screen
    (limit,) = wrong_limits(folder)
    assert limit.reason.startswith(f"max_position_embeddings is {OLD}")

    assert f"if the model was trained at {OLD // 2} tokens, scale it: " in limit.remark
    _, *command = shlex.split(str(limit.fix))
    fixed = invoke(*command)
    assert fixed.exit_code == 0
    output = tmp_path / f"llama-{OLD}"
    assert stated(output)[key] == OLD
    assert invoke("inspect", output, "--check").exit_code == 0


@pytest.mark.parametrize("to", [32, 128])
def test_fix_limits_sets_length_keys_that_disagree(
    to: int, make_pico: MakePico, tmp_path: Path
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", max_seq_len=5)
    output = resize(folder, to, fix_limits=True, output=tmp_path / "out").output
    assert stated(output)["max_seq_len"] == to
    assert inspect(output).agrees


@pytest.mark.parametrize("to", [8, 32])
def test_resize_keeps_length_keys_that_disagree_and_warns(
    to: int, make_pico: MakePico, tmp_path: Path
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", max_seq_len=5)
    done = invoke("resize", folder, "--to", to, "-o", tmp_path / "out", "--json")
    (warning,) = texts_in(json.loads(done.stdout), "lengths")
    stays = "config.json max_seq_len is 5, not 16, and stays 5: vLLM and SGLang may take 5 instead"
    assert warning == f"{stays} of {to}. To set it to {to}, pass --fix-limits."
    assert stated(tmp_path / "out")["max_seq_len"] == 5


@pytest.mark.parametrize(
    ("to", "expected", "advice"),
    [
        (4 * OLD, "is already 256, but max_position_embeddings is 64", "use --method limits"),
        (2 * OLD, "is 256, but max_position_embeddings is 64", "use --to 256 --method limits"),
        (8 * OLD, "is 256, but max_position_embeddings is 64", "pass --trained-length 256"),
    ],
)
def test_resize_warns_that_a_longer_length_may_be_trained(
    to: int, expected: str, advice: str, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path / "llama", model_max_length=4 * OLD)
    (warning,) = texts(plan_resize(folder, to), level="warning")
    condition = "if the model was trained at 256 tokens"
    assert f"config.json model_max_length {expected}: {condition}, {advice}" in warning


@pytest.mark.parametrize("value", [10**30, 0, True, "64"])
def test_inspect_ignores_values_that_are_no_length(value: Any, tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "llama")
    config = stated(folder) | {"model_max_length": value}
    (folder / "config.json").write_text(json.dumps(config))
    assert inspect(folder).agrees
    assert texts(plan_resize(folder, NEW), level="warning") == ()
