"""First trained, stated and served length of rotary positions, on published configs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import save_file
from typer.testing import Result

import ctxextend
from tests.helpers.pico import config_of, read_json, write_json
from tests.helpers.trainings import invoke, succeed, unwrapped

K = 1024
TRAINED = "original_max_position_embeddings"
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 64,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {TRAINED: 8 * K}
LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
FULL, SLIDING = "full_attention", "sliding_attention"


def yarn(factor: float, first_trained: int) -> dict[str, Any]:
    return {"type": "yarn", "factor": factor, TRAINED: first_trained}


def make(name: str, model_type: str, limit: float | None = None, **config: Any) -> Path:
    """Write a folder with this config, one small tensor and a tokenizer's limit."""
    folder = Path(name)
    folder.mkdir()
    tensors = {"lm_head.weight": np.zeros((4, 4), np.float32)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = {"model_type": model_type, **SIZES, "head_dim": 32, **config}
    write_json(folder / "config.json", values)
    if limit is not None:
        tokenizer = {"model_max_length": limit}
        write_json(folder / "tokenizer_config.json", tokenizer)
    return folder


def rope_of(folder: str | Path) -> dict[str, Any]:
    config = config_of(folder)
    settings: dict[str, Any] = config.get("rope_scaling") or config["rope_parameters"]
    return {key: value for key, value in settings.items() if key != "rope_theta"}


def with_both_names(rope: dict[str, Any]) -> dict[str, Any]:
    """Return settings as an output states them: with both names of their type."""
    name = rope.get("rope_type", rope.get("type"))
    return {**rope, "rope_type": name, "type": name}


def resize(to: object, *flags: object, output: str = "out") -> Result:
    """Run `ctxextend resize` on ``source``."""
    return invoke("resize", "source", "--to", to, *flags, "--output", output)


@pytest.mark.parametrize(
    ("model_type", "stated", "settings", "first_trained", "served"),
    [
        ("mistral", 32 * K, yarn(16.0, 8 * K), 8 * K, 128 * K),
        ("llama", 128 * K, LLAMA3, 8 * K, 128 * K),
        ("llama", 32 * K, {**LISTS, "factor": 32.0, TRAINED: 4 * K}, 4 * K, 128 * K),
        ("llama", 4 * K, {"type": "linear", "factor": 4.0, TRAINED: 4 * K}, 4 * K, 16 * K),
    ],
)
def test_inspect_reads_the_lengths_of_published_settings(
    model_type: str, stated: int, settings: dict[str, Any], first_trained: int, served: int
) -> None:
    key = "rope_parameters" if FULL in settings else "rope_scaling"
    config: dict[str, Any] = {"max_position_embeddings": stated, key: settings}
    make("source", model_type, **config)
    check_lengths(first_trained, stated, served)


def check_lengths(first_trained: int, stated: int, served: int) -> None:
    """Check the three lengths that `inspect` reports of ``source``."""
    (scheme,) = ctxextend.inspect("source").schemes
    assert scheme.first_trained == first_trained
    assert scheme.stated == stated
    assert scheme.served == served


@pytest.mark.parametrize(
    ("stated", "rope", "to", "factor"),
    [
        (40 * K, yarn(4.0, 32 * K), 128 * K, 4.0),
        (40 * K, yarn(4.0, 32 * K), 256 * K, 8.0),
        (128 * K, yarn(4.0, 8 * K), 128 * K, 16.0),
        (128 * K, LLAMA3, 256 * K, 16.0),
    ],
)
def test_resize_scales_only_beyond_the_served_length(
    stated: int, rope: dict[str, Any], to: int, factor: float
) -> None:
    make("source", "llama", to, max_position_embeddings=stated, rope_scaling=rope)
    done = resize(to, "--verify")
    assert done.exit_code == 0
    assert rope_of("out")["factor"] == factor
    assert rope_of("out")[TRAINED] == rope[TRAINED]
    assert config_of("out")["max_position_embeddings"] == to
    if factor == rope["factor"]:
        assert rope_of("out") == with_both_names(rope)
        assert "nothing scales" in done.stderr
        assert f"inputs up to {to} tokens give identical outputs" in done.stderr
        assert "Not yet trained" not in done.stderr
    succeed("verify", "out")
    succeed("inspect", "out", "--check")
    succeed("run", "out/ctxextend.yaml", "--output", "again")
    assert config_of("again") == config_of("out")


def test_inspect_tells_the_three_lengths_and_how_to_state_what_is_served() -> None:
    rope = yarn(4.0, 32 * K)
    make("source", "qwen3", 128 * K, max_position_embeddings=40 * K, rope_scaling=rope)
    done = invoke("inspect", "source", "--check")
    assert done.exit_code == 3
    assert "40960 positions (rotary, yarn), but limits disagree" in done.stdout
    fix = "ctxextend resize source --to 131072 --fix-limits"
    assert fix in done.stdout
    lengths = "first trained at 32768 tokens; the config states 40960, the settings serve 131072"
    inspected = invoke("inspect", "source")
    assert lengths in unwrapped(inspected.stdout)

    succeed(*fix.split()[1:], "--output", "fixed")
    assert rope_of("fixed") == with_both_names(yarn(4.0, 32 * K))
    succeed("inspect", "fixed", "--check")


def test_resize_states_the_first_trained_length_that_raising_the_limit_would_move() -> None:
    rope = {"type": "yarn", "factor": 4.0}
    make("source", "llama", max_position_embeddings=4 * K, rope_scaling=rope)
    resized = resize(16 * K)
    assert resized.exit_code == 0
    expected = {**yarn(4.0, 4 * K), "rope_type": "yarn"}
    assert rope_of("out") == expected


def test_resize_with_limits_states_the_factor_that_raising_the_limit_would_move() -> None:
    lists = {**LISTS, TRAINED: 4 * K}
    make("lists", "llama", max_position_embeddings=8 * K, rope_scaling=lists)
    succeed("resize", "lists", "--to", 16 * K, "--method", "limits", "--output", "limits")
    # Without a factor, the attention factor would follow max_position_embeddings.
    assert rope_of("limits")["factor"] == 2.0
    assert config_of("limits")["max_position_embeddings"] == 16 * K


@pytest.mark.parametrize(
    ("stated", "limit", "others", "stated_after"),
    [
        # The length before scaling, as transformers 4.31 asked for (Vicuna).
        (4 * K, 16 * K, {}, 4 * K),
        (16 * K, 16 * K, {}, 32 * K),
        (16 * K, 4 * K, {}, 32 * K),
        (4 * K, 1e30, {"max_sequence_length": 16 * K}, 4 * K),
    ],
)
def test_resize_decides_between_two_conventions_of_linear_settings(
    stated: int, limit: float, others: dict[str, int], stated_after: int
) -> None:
    rope = {"type": "linear", "factor": 4.0}
    make("source", "llama", limit, max_position_embeddings=stated, rope_scaling=rope, **others)
    check_lengths(4 * K, stated, 16 * K)
    done = resize(32 * K)
    assert done.exit_code == 0
    assert rope_of("out")["factor"] == 8.0
    # A file keeps its convention.
    config = config_of("out")
    assert config["max_position_embeddings"] == stated_after
    for key, value in others.items():
        assert config[key] == (value if key == TRAINED else 2 * value)
    (scheme,) = ctxextend.inspect("out").schemes
    assert scheme.first_trained == 4 * K
    assert scheme.positions == 32 * K
    succeed("verify", "out")
    succeed("inspect", "out", "--check")


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_resize_asks_for_the_trained_length_if_nothing_decides(kind: str) -> None:
    rope = {"type": kind, "factor": 4.0}
    make("source", "llama", 1e30, max_position_embeddings=8 * K, rope_scaling=rope)

    refused = resize(64 * K)
    assert refused.exit_code == 1
    assert not Path("out").exists()
    message = unwrapped(refused.stderr)
    problem = (
        f"{kind} rotary settings with factor 4 do not say whether max_position_embeddings 8192"
    )
    assert problem in message
    hint = (
        "Pass --trained-length 8192 if it is the one before, --trained-length 2048 if the one "
        "after."
    )
    assert hint in message

    inspected = invoke("inspect", "source", "--check")
    assert "--trained-length 8192" in inspected.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("kind", "trained", "stated"),
    [
        ("linear", 2 * K, 64 * K),
        ("dynamic", 8 * K, 8 * K),
    ],
)
def test_resize_takes_the_trained_length_that_decides(kind: str, trained: int, stated: int) -> None:
    rope = {"type": kind, "factor": 4.0}
    make("source", "llama", 1e30, max_position_embeddings=8 * K, rope_scaling=rope)
    done = resize(64 * K, "--trained-length", trained, "--verify")
    assert done.exit_code == 0
    assert rope_of("out")["factor"] == 64 * K / trained
    assert config_of("out")["max_position_embeddings"] == stated
    succeed("verify", "out")


def test_resize_with_a_trained_length_scales_from_there_and_records_it() -> None:
    make("source", "qwen3", 128 * K, max_position_embeddings=40 * K)  # it was trained at 32,768
    done = resize(128 * K, "--trained-length", 32 * K, "--verify")
    assert done.exit_code == 0
    assert rope_of("out")["factor"] == 4.0
    assert rope_of("out")[TRAINED] == 32 * K
    assert "trained_length: 32768" in Path("out/ctxextend.yaml").read_text()
    succeed("verify", "out")
    succeed("verify", "out", "--base", "source")
    succeed("inspect", "out", "--check")
    succeed("run", "out/ctxextend.yaml", "--output", "again")
    assert config_of("again") == config_of("out")
    plan = ctxextend.plan_resize("source", 128 * K, trained_length=32 * K)
    assert plan.plan.methods == {"rope_parameters": "yarn:factor=4"}


def test_resize_with_a_trained_length_corrects_settings_that_misstate_it() -> None:
    rope = yarn(4.0, 40 * K)
    make("source", "qwen3", max_position_embeddings=160 * K, rope_scaling=rope)
    done = resize(128 * K, "--trained-length", 32 * K)
    assert done.exit_code == 0
    assert rope_of("out")["factor"] == 4.0
    assert rope_of("out")[TRAINED] == 32 * K


@pytest.mark.parametrize("rope", [None, yarn(4.0, 16 * K)])
def test_resize_with_limits_changes_no_setting_of_rotary_positions(
    rope: dict[str, Any] | None,
) -> None:
    make("source", "llama", 64 * K, max_position_embeddings=32 * K, rope_scaling=rope)
    done = resize(256 * K, "--method", "limits", "--verify")
    assert done.exit_code == 0
    before = config_of("source")
    after = config_of("out")
    if rope is None:
        assert after["rope_scaling"] is None
    else:
        expected = {**with_both_names(before["rope_scaling"]), "rope_theta": 10_000.0}
        assert after["rope_scaling"] == expected
    assert after["max_position_embeddings"] == 256 * K
    assert read_json("out/tokenizer_config.json") == {"model_max_length": 256 * K}
    assert "Nothing scales" in done.stderr
    assert "method: limits" in Path("out/ctxextend.yaml").read_text()
    succeed("verify", "out")


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("llama", "max_position_embeddings"),
        ("t5", "n_positions"),
    ],
)
def test_resize_with_fix_limits_records_no_method_that_it_does_not_apply(
    model_type: str, key: str
) -> None:
    make("source", model_type, K, **{key: 2 * K})
    done = resize(2 * K, "--fix-limits", "--verify")
    assert done.exit_code == 0
    assert "method" not in Path("out/ctxextend.yaml").read_text()
    succeed("verify", "out")
    succeed("run", "out/ctxextend.yaml", "--output", "again")
    succeed("inspect", "out", "--check")


def test_extend_model_scales_from_the_trained_length() -> None:
    sizes: dict[str, Any] = {**SIZES, "max_position_embeddings": 40, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes)
    model = transformers.LlamaModel(config)
    ctxextend.extend_model(model, 128, trained_length=32)
    rope: Any = model.config.rope_parameters
    assert rope["rope_type"] == "yarn"
    assert rope["factor"] == 4.0
    assert rope[TRAINED] == 32
    assert model.config.max_position_embeddings == 128


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_resize_with_limits_refuses_what_a_key_before_scaling_cannot_state(kind: str) -> None:
    rope = {"type": kind, "factor": 2.0}
    make("source", "llama", 64 * K, max_position_embeddings=32 * K, rope_scaling=rope)
    done = resize(256 * K, "--method", "limits")
    assert done.exit_code == 1
    assert not Path("out").exists()
    assert "max_position_embeddings 32768 is the length before scaling" in unwrapped(done.stderr)


def test_resize_with_a_longer_trained_length_scales_nothing_up_to_it() -> None:
    make("source", "llama", max_position_embeddings=32 * K)
    for to in (48 * K, 64 * K):
        output = f"out-{to}"
        done = resize(to, "--trained-length", 64 * K, output=output)
        assert done.exit_code == 0
        config = config_of(output)
        assert config["max_position_embeddings"] == to
        assert not config.get("rope_scaling")
        assert "nothing scales" in done.stderr


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": yarn(1e308, 4 * K)},
        {"rope_scaling": {"type": "linear", "factor": 10**400}},
        {"max_position_embeddings": 10**400},
    ],
)
def test_inspect_refuses_numbers_that_overflow(config: dict[str, Any]) -> None:
    make("source", "llama", **{"max_position_embeddings": 4 * K, **config})
    inspected = invoke("inspect", "source")
    resized = resize(16 * K)
    for done in (inspected, resized):
        assert done.exit_code == 1
        assert "config.json: " in done.stderr


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096},
        },
    ],
)
def test_resize_of_a_config_without_sizes_takes_those_of_transformers(
    config: dict[str, Any],
) -> None:
    Path("source").mkdir()
    tensors = {"lm_head.weight": np.zeros((4, 4), np.float32)}
    save_file(tensors, "source/model.safetensors", metadata={"format": "pt"})
    write_json("source/config.json", config)
    (scheme,) = ctxextend.inspect("source").schemes
    assert scheme.layers[0].wavelengths.shape == (64,)
    resized = resize("2x")
    assert resized.exit_code == 0
    succeed("verify", "out")


ALPHA = {"type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0}


def save_hunyuan(name: str) -> None:
    """Save a tiny model with settings as Tencent publishes them."""
    sizes: dict[str, Any] = {
        **SIZES,
        "head_dim": 32,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    config = transformers.HunYuanDenseV1Config(**sizes)
    transformers.HunYuanDenseV1ForCausalLM(config).save_pretrained(name)
    values = config_of(name)
    del values["rope_parameters"]
    values |= {"rope_theta": 10_000.0, "rope_scaling": ALPHA}
    write_json(Path(name) / "config.json", values)


@pytest.mark.parametrize("flags", [(), ("--method", "yarn")])
def test_resize_does_not_scale_settings_with_alpha(flags: tuple[str, ...]) -> None:
    make("source", "hunyuan_v1_dense", max_position_embeddings=64, rope_scaling=ALPHA)
    done = resize(256, *flags)
    assert done.exit_code == 2
    assert "settings with alpha 1000 cannot be scaled" in done.stderr
    assert "use --method limits" in done.stderr
    assert not Path("out").exists()


def test_resize_raises_only_limits_of_settings_with_alpha() -> None:
    save_hunyuan("source")
    resized = resize(256, "--method", "limits")
    assert resized.exit_code == 0, resized.stderr
    assert rope_of("out") == with_both_names(ALPHA)
    assert config_of("out")["max_position_embeddings"] == 256
    succeed("inspect", "out", "--check")
    succeed("verify", "out")
    succeed("verify", "out", "--deep")
    succeed("run", "out/ctxextend.yaml", "--output", "again")
    assert config_of("again") == config_of("out")


def make_nested(name: str, model_type: str, text: dict[str, Any], outer: dict[str, Any]) -> None:
    """Write a folder with a text config, and keys of it once more around it."""
    make(name, model_type, text_config=text)
    config = {"model_type": model_type, "text_config": text, **outer}
    write_json(Path(name) / "config.json", config)


def load_config(name: str) -> Any:
    return transformers.AutoConfig.from_pretrained(name).get_text_config().rope_parameters


@pytest.mark.parametrize(
    ("model_type", "method"),
    [
        ("qwen2_5_vl", "yarn"),
        ("qwen2_5_vl", "theta"),
        ("gemma3", "yarn"),
        ("qwen2_vl", "yarn"),
    ],
)
def test_resize_changes_copies_around_a_text_config(model_type: str, method: str) -> None:
    text_type = "llama" if model_type == "llava" else f"{model_type}_text"
    rope = {"rope_type": "default", "type": "default"}
    flat = {
        **SIZES,
        "head_dim": 32,
        "max_position_embeddings": 4 * K,
        "rope_theta": 1e6,
        "rope_scaling": rope,
    }
    text = {"model_type": text_type, **flat}
    make_nested("source", model_type, text, flat)
    done = resize(8 * K, "--method", method)
    assert done.exit_code == 0, done.stderr

    outer = config_of("out")
    text = outer["text_config"]
    assert outer["max_position_embeddings"] == text["max_position_embeddings"]
    copied = outer["rope_scaling"]
    read = text["rope_scaling"] or text["rope_parameters"][FULL]
    assert {**copied, "rope_theta": None} == {**read, "rope_theta": None}
    theta = outer["rope_theta"] or copied["rope_theta"]
    assert theta == text["rope_theta"]

    succeed("inspect", "out", "--check")
    succeed("verify", "out")
    succeed("run", "out/ctxextend.yaml", "-o", "again")
    assert load_config("out")


def test_resize_states_the_scaling_next_to_a_copied_length() -> None:
    flat = {**SIZES, "head_dim": 32, "max_position_embeddings": 4 * K}
    make_nested("source", "llava", {"model_type": "llama", **flat}, flat)
    done = resize(8 * K)
    assert done.exit_code == 0, done.stderr
    config = config_of("out")
    assert config["max_position_embeddings"] == 8 * K
    inner = config["text_config"]["rope_scaling"]
    assert inner == {**config["rope_scaling"], "rope_theta": 10_000.0}
    assert "rope_theta" not in config
    assert load_config("out")["rope_type"] == "yarn"
