"""`resize` of models with rotary positions, on the command line."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.helpers import pico, rotary_models
from tests.helpers.trainings import invoke, succeed, unwrapped
from tests.helpers.word_tokenizer import add_tokenizer

CACHE = "cache" if Version(version("transformers")) >= Version("5.24") else "past_key_values"
SIZES = {**pico.ENCODER, "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 16}


def make(
    model_type: str = "llama", config: dict[str, Any] | None = None, max_len: int = 16
) -> Path:
    """Save a small model with a tokenizer, and other values in its config.json."""
    from transformers import AutoConfig

    torch.manual_seed(0)
    folder = Path(model_type)
    sizes = AutoConfig.for_model(model_type, **SIZES)
    model = AutoModelForCausalLM.from_config(sizes)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    path = folder / "config.json"
    values = pico.read_json(path)
    if config is not None:
        values |= config
    pico.write_json(path, values)
    return add_tokenizer(folder, special_tokens=False, max_len=max_len)


def read(path: str) -> dict[str, Any]:
    values: dict[str, Any] = pico.read_json(path)
    return values


def test_resize_of_a_rotary_model_changes_settings_and_limits_and_no_weights() -> None:
    source = make()
    done = invoke("resize", "llama", "--to", "4x")
    assert done.exit_code == 0
    assert done.stdout == "llama-64\n"
    assert "rope_parameters, 16 -> 64 positions by yarn" in done.stderr
    assert "Reads 64 tokens in transformers, transformers 4, vLLM, SGLang, llama.cpp" in done.stderr
    config = read("llama-64/config.json")
    before = read("llama/config.json")
    rope = {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert config == before | {
        "max_position_embeddings": 64,
        "rope_parameters": rope,
        "rope_scaling": {**scaling, "type": "yarn", "rope_theta": 10_000.0},
        "rope_theta": 10_000.0,
    }
    assert read("llama-64/tokenizer_config.json")["model_max_length"] == 64

    weights = source / "model.safetensors"
    copied = Path("llama-64/model.safetensors")
    assert copied.read_bytes() == weights.read_bytes()
    assert copied.stat().st_ino != weights.stat().st_ino

    card = Path("llama-64/README.md").read_text()
    change = "its positions (`rope_parameters`) resized from 16 to 64 positions with method `yarn`"
    assert change in card

    succeed("verify", "llama-64")
    succeed("run", "llama-64/ctxextend.yaml", "--output", "again")
    reproduced = Path("again/config.json").read_bytes()
    assert reproduced == Path("llama-64/config.json").read_bytes()


def test_resize_that_only_fixes_limits_leaves_rotary_settings_as_they_are() -> None:
    make(max_len=8)
    succeed("resize", "llama", "--to", "16", "--fix-limits")
    assert read("llama-16/config.json") == read("llama/config.json")


def test_commands_refuse_contradicting_dialects_and_say_what_transformers_follows() -> None:
    source = make()
    succeed("resize", "llama", "--to", "64")
    for folder in (source, Path("llama-64")):
        scaling = {"rope_type": "linear", "type": "linear", "factor": 2.0}
        settings = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
        pico.edit_json(folder / "config.json", rope_scaling=scaling, rope_parameters=settings)
    message = (
        "config.json: factor is 2.0 by rope_scaling, which transformers follows, but "
        "4.0 by rope_parameters."
    )
    for command in (
        ["resize", "llama", "--to", "128"],
        ["inspect", "llama"],
        ["inspect", "llama", "--check"],
    ):
        done = invoke(*command)
        assert done.exit_code == 1
        assert message in unwrapped(done.stderr)
    assert not Path("llama-128").exists()


@pytest.mark.parametrize("removed", [["rope_parameters"], ["rope_scaling", "rope_theta"]])
def test_verify_accepts_a_folder_with_one_dialect(removed: list[str]) -> None:
    make()
    succeed("resize", "llama", "--to", "64")
    config = read("llama-64/config.json")
    one = {key: value for key, value in config.items() if key not in removed}
    pico.write_json(Path("llama-64/config.json"), one)
    succeed("verify", "llama-64")
    succeed("verify", "llama-64", "--deep")


def test_resize_with_dynamic_keeps_the_trained_length_and_names_the_runtimes_that_disagree() -> (
    None
):
    make()
    done = invoke("resize", "llama", "--to", "64", "--method", "dynamic", "--json")
    values = json.loads(done.stdout)
    assert values["config"] == {
        "rope_parameters.rope_type": ["default", "dynamic"],
        "rope_parameters.factor": [None, 4.0],
        "rope_scaling": [
            None,
            {"rope_type": "dynamic", "factor": 4.0, "type": "dynamic", "rope_theta": 10_000.0},
        ],
        "rope_theta": [None, 10_000.0],
    }
    assert values["max_len_after"] == 64
    outcomes = {item["name"]: item["outcome"] for item in values["runtimes"]}
    assert outcomes["transformers"] == "serves"
    assert outcomes["vLLM"] == "refuses"
    assert outcomes["SGLang"] == "differs"
    assert outcomes["llama.cpp"] == "ignores"
    assert read("llama-64/tokenizer_config.json")["model_max_length"] == 64

    note = "Inputs up to 16 tokens give identical outputs"
    again = invoke("resize", "llama", "--to", "64", "--method", "dynamic", "--force")
    assert note in again.stderr
    longer = invoke("resize", "llama-64", "--to", "128")
    assert note in longer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--to", "8"],
            1,
            "The model accepts 16 tokens: its positions are rotary, so 8 need no change.",
        ),
        (
            ["--to", "64", "--method", "bands"],
            2,
            "Use one of yarn, switch, linear, dynamic, theta.",
        ),
        (
            ["--to", "64", "--method", "yarn:factor=2"],
            1,
            "--method yarn:factor=2 serves only 32 tokens. Use factor=4, or --to 32.",
        ),
        (
            ["--to", "64", "--keep-first", "4"],
            2,
            "--keep-first cannot be used with rotary positions",
        ),
        (["--to", "64", "--edit-only", "--verify"], 2, "--edit-only cannot be used with --verify"),
    ],
)
def test_resize_refuses_what_does_not_apply_to_rotary_positions(
    arguments: list[str], code: int, message: str
) -> None:
    make()
    done = invoke("resize", "llama", *arguments)
    assert done.exit_code == code
    assert message in unwrapped(done.stderr)
    files = {path.name for path in Path().iterdir()}
    assert files == {"llama"}


def test_resize_notes_that_a_sliding_window_sees_no_further() -> None:
    make("mistral", {"sliding_window": 8})
    done = invoke("resize", "mistral", "--to", "64")
    assert "All layers see 8 tokens (sliding_window)" in done.stderr


def test_resize_edit_only_writes_no_weights_and_prints_the_command_that_adds_them() -> None:
    make()
    done = invoke("resize", "llama", "--to", "64", "--edit-only", "--output", "edited")
    assert done.exit_code == 0
    assert done.stdout == "edited\n"
    names = {path.name for path in Path("edited").iterdir()}
    assert names == {"README.md", "config.json", "ctxextend.yaml", "tokenizer_config.json"}
    command = next(line for line in done.stderr.splitlines() if line.startswith("  cp "))
    assert os.system(command) == 0
    succeed("verify", "edited")


def test_resize_edit_only_is_refused_if_weights_change() -> None:
    done = invoke("resize", "tiny-gpt2", "--to", "4x", "--edit-only")
    assert done.exit_code == 2
    assert "--edit-only writes no weights, but model.safetensors must be written." in done.stderr


def test_resize_of_a_table_and_other_positions_names_the_method_of_each() -> None:
    make()
    checkpoint = pico.make(Path("pair"), "bert", base=True, max_position_embeddings=16)
    folder = checkpoint.folder
    tensors = load_file(folder / "model.safetensors")
    prefixed = {f"encoder.{name}": tensor for name, tensor in tensors.items()}
    save_file(prefixed, folder / "model.safetensors")
    parts = {"encoder": read("pair/config.json"), "decoder": read("llama/config.json")}
    config = {"model_type": "encoder-decoder", **parts}
    pico.write_json(folder / "config.json", config)
    done = invoke("resize", "pair", "--to", "64")
    assert done.exit_code == 0
    assert "--method" not in done.stderr  # no method applies to both
    inspected = invoke("inspect", "pair-64", "--check")
    assert "48 new rows created by copy" in inspected.stdout

    equal = invoke("resize", "pair", "--to", "16")
    assert "The context length already is 16: the output is a copy." in equal.stderr
    shorter = invoke("resize", "pair", "--to", "8")
    assert "Resize other parts than decoder with --part." in shorter.stderr

    decoder = {"model_type": "bloom", "seq_length": 8}
    pico.write_json(folder / "config.json", config | {"decoder": decoder})
    done = invoke("resize", "pair", "--to", "16", "--force")
    assert done.exit_code == 0
    assert "(decoder), biases continue" in done.stderr


@pytest.mark.parametrize(
    ("method", "effect"),
    [("yarn", ""), ("switch", "turns into noise"), ("dynamic", "gets worse")],
)
def test_resize_warns_if_cached_keys_have_other_frequencies_than_later_tokens(
    method: str, effect: str
) -> None:
    source = rotary_models.make(max_position_embeddings=16).folder
    done = invoke("resize", source, "--to", "64", "--method", method, "-o", "longer")
    assert done.exit_code == 0, done.stderr
    warning = f"A text that grows past 16 tokens in generate() {effect}"
    assert (warning in unwrapped(done.stderr)) == bool(effect)
    batch = "An input of up to 16 tokens gets the frequencies of long ones in a batch"
    assert (batch in unwrapped(done.stderr)) == bool(effect)

    model: Any = AutoModelForCausalLM.from_pretrained("longer").train(False)
    ids = torch.arange(24)[None] % 32
    with torch.inference_mode():
        cache = model.model(ids[:, :16], use_cache=True)[1]
        states = model.model(ids[:, 16:], **{CACHE: cache})[0]
        after_cached = model.lm_head(states)
        at_once = model(ids).logits[:, 16:]
    assert torch.allclose(after_cached, at_once, atol=1e-4) != bool(effect)
