"""`inspect` of folders with Mistral's params.json."""

from typing import Any

import pytest

from ctxextend import inspect
from tests.helpers.mistral_format import (
    HEAD_DIM,
    NEW,
    OLD,
    PARAMS,
    YARN,
    YARN_IN_CONFIG,
    make,
    make_only_params,
    params_of,
)
from tests.helpers.trainings import invoke, succeed, unwrapped


def limits_of(folder: str) -> dict[str, tuple[Any, bool]]:
    """Return value and agreement of each limit in params.json, by key."""
    limits = inspect(folder).limits
    return {item.key: (item.value, item.agrees) for item in limits if item.file == "params.json"}


def test_inspect_lists_the_lengths_of_params_json() -> None:
    make(params={"max_position_embeddings": OLD})
    assert limits_of("mistral") == {
        "max_position_embeddings": (OLD, True),
        "max_seq_len": (OLD, True),
    }
    (limit, *_) = [item for item in inspect("mistral").limits if item.file == "params.json"]
    assert limit.used_by == "vLLM"
    succeed("inspect", "mistral", "--check")


def test_inspect_check_names_another_length_and_who_reads_it() -> None:
    make(params={"max_seq_len": 100})
    done = invoke("inspect", "mistral", "--check")
    assert done.exit_code == 3
    assert "params.json max_seq_len is 100" in unwrapped(done.stdout)
    assert "ctxextend resize mistral --trained-length 256 --to 256 --fix-limits" in unwrapped(
        done.stdout
    )
    (limit,) = [item for item in inspect("mistral").limits if not item.agrees]
    assert limit.reason == (
        "max_position_embeddings of config.json is 256, and vLLM takes the smaller one"
    )


@pytest.mark.parametrize(
    ("params", "config", "key", "reason"),
    [
        ({"rope_theta": 10_000.0}, {}, "rope_theta", "config.json states rope_theta 1000000"),
        ({"yarn": YARN}, {}, "yarn", "config.json states rope_type default"),
        ({}, {"rope_parameters": YARN_IN_CONFIG}, "yarn", "config.json states rope_type yarn"),
        (
            {"yarn": {**YARN, "beta": 16}},
            {"rope_parameters": YARN_IN_CONFIG},
            "yarn.beta",
            "config.json states beta_fast 32",
        ),
        (
            {"llama_4_scaling": {"original_max_position_embeddings": 64, "beta": 0.1}},
            {},
            "llama_4_scaling",
            "config.json states no llama_4_scaling_beta",
        ),
    ],
)
def test_inspect_check_names_other_rotary_settings(
    params: dict[str, Any], config: dict[str, Any], key: str, reason: str
) -> None:
    make(params=params, config=config)
    (limit,) = [item for item in inspect("mistral").limits if not item.agrees]
    assert limit.key == key
    assert limit.reason == f"{reason}, and vLLM reads params.json first: correct the wrong file"
    assert limit.fix is None  # only the user knows which file is right
    done = invoke("inspect", "mistral", "--check")
    assert done.exit_code == 3
    assert "but settings disagree" in unwrapped(done.stdout)
    in_config = reason.removeprefix("config.json states ")
    assert f"config.json {in_config}" in unwrapped(done.stdout)


def test_inspect_shows_a_setting_as_it_is() -> None:
    make(
        params={"yarn": {**YARN, "factor": 8}},
        config={"rope_parameters": YARN_IN_CONFIG},
    )
    shown = unwrapped(succeed("inspect", "mistral").stdout)
    assert "yarn.factor is 8, config.json factor 4" in shown
    assert "8 = unset" not in shown


def test_both_spellings_of_the_same_settings_agree() -> None:
    make(params={"yarn": YARN}, config={"rope_parameters": YARN_IN_CONFIG})
    succeed("inspect", "mistral", "--check")


def test_inspect_reads_a_folder_without_config() -> None:
    make_only_params(params={"yarn": YARN})
    result = inspect("only")
    assert result.model_type == "mistral"
    (scheme,) = result.schemes
    assert scheme.positions == OLD
    assert scheme.layers[0].parameters["rope_type"] == "yarn"
    assert scheme.layers[0].attention_factor == 1
    assert scheme.layers[0].wavelengths.shape == (HEAD_DIM // 2,)
    assert any("transformers does not load this folder" in note for note in result.notes)


def test_inspect_says_which_length_programs_take_if_none_is_stated() -> None:
    make_only_params(params={"max_seq_len": None})
    done = succeed("inspect", "only", "--check")
    assert "128000 positions" in done.stdout
    assert "params.json states no length: vLLM and mistral-inference take 128,000" in unwrapped(
        done.stdout + done.stderr
    )


def test_inspect_says_which_of_two_lengths_counts() -> None:
    make_only_params(params={"max_position_embeddings": NEW})
    result = inspect("only")
    assert result.schemes[0].positions == OLD
    remarks = {item.key: item.remark for item in result.limits}
    assert remarks["max_position_embeddings"] == f"vLLM takes the smaller length, {OLD}"
    assert result.agrees


@pytest.mark.parametrize(
    ("params", "model_type"),
    [
        ({"moe": {"num_experts": 4, "num_experts_per_tok": 2}}, "mixtral"),
        (
            {
                "yarn": YARN,
                "llama_4_scaling": {"original_max_position_embeddings": 64, "beta": 0.1},
            },
            "ministral3",
        ),
        ({"vision_encoder": {"hidden_size": 8}, "sliding_window": [None, 32]}, "mistral"),
    ],
)
def test_inspect_finds_the_model_type_without_config(
    params: dict[str, Any], model_type: str
) -> None:
    make_only_params(params=params)
    assert inspect("only").model_type == model_type


@pytest.mark.parametrize("is_only", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is a JSON list, not an object"),
        ("{", "is not valid JSON"),
        ("[" * 10_000, "is nested too deeply"),
        ('{"lr": 1}', "does not state dim, n_layers and hidden_dim"),
    ],
)
def test_malformed_files_are_refused(text: str, message: str, is_only: bool) -> None:
    folder = make_only_params("mistral") if is_only else make()
    (folder / "params.json").write_text(text)
    for command in (("inspect", "mistral"), ("resize", "mistral", "--to", NEW)):
        done = invoke(*command)
        assert done.exit_code == 1
        assert message in unwrapped(done.stderr)


@pytest.mark.parametrize("is_only", [False, True])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_theta": "1e6"}, "rope_theta must be a number above 0, up to 1e+30, got '1e6'"),
        ({"rope_theta": True}, "rope_theta must be a number above 0, up to 1e+30, got True"),
        ({"rope_theta": float("inf")}, "rope_theta must be a number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta must be a number above 0"),
        ({"max_seq_len": -1}, "max_seq_len must be a whole number from 1 to"),
        ({"max_seq_len": 10**30}, "max_seq_len must be a whole number from 1 to"),
        ({"max_position_embeddings": 256.5}, "must be a whole number from 1 to"),
        ({"yarn": [1]}, "yarn must be an object of settings, got [1]"),
        ({"yarn": {"factor": 4}}, "yarn.original_max_position_embeddings must be a whole number"),
        ({"yarn": {**YARN, "factor": 0.5}}, "yarn.factor must be a number from 1 to"),
        ({"yarn": {**YARN, "beta": {"a": 1}}}, "yarn.beta must be a number above 0"),
        ({"yarn": {**YARN, "apply_scale": 1}}, "yarn.apply_scale must be true or false, got 1"),
        ({"yarn": {**YARN, "mscale": 1}}, "yarn has the key 'mscale', which vLLM does not accept"),
        ({"yarn": YARN, "llama_4_scaling": {"beta": 1}}, "llama_4_scaling.original_max"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str, is_only: bool) -> None:
    maker = make_only_params if is_only else make
    maker("mistral", params=values)
    done = invoke("resize", "mistral", "--to", NEW, "--output", "longer")
    assert done.exit_code == 1
    assert message in unwrapped(done.stderr)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_theta": None}, "states no rope_theta: mistral-inference takes 1,000,000"),
        ({"dim": 10**15}, "dim must be a whole number from 1 to"),
        ({"sliding_window": {"a": 1}}, "sliding_window must be a whole number, or a list"),
        ({"model_type": "mamba"}, "model_type 'mamba' has no rotary positions"),
        ({"kv_lora_rank": 8}, "latent attention (kv_lora_rank) is read only with a config.json"),
    ],
)
def test_what_is_not_translated_is_refused(values: dict[str, Any], message: str) -> None:
    make_only_params(params=values)
    done = invoke("inspect", "only")
    assert done.exit_code == 1
    assert message in unwrapped(done.stderr)


def test_extra_keys_are_kept() -> None:
    extra = {"some": {"nested": [1, 2]}}
    make(params={"extra": extra})
    succeed("resize", "mistral", "--to", NEW, "--output", "longer")
    assert params_of("longer").keys() == {*PARAMS, "yarn", "extra"}
    assert params_of("longer")["extra"] == extra


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"dim": 1, "dim": 2}', "params.json has a duplicate key 'dim'"),
        ('{"dim": ' + "9" * 6000 + "}", "params.json has a number of 6,000 digits"),
    ],
)
def test_malformed_params_json_is_named_with_what_to_do(text: str, message: str) -> None:
    folder = make_only_params()
    (folder / "params.json").write_text(text)
    done = invoke("inspect", "only")
    assert done.exit_code == 1
    assert message in unwrapped(done.stderr)
    assert "Correct " in unwrapped(done.stderr)


def test_params_json_without_weights_is_named() -> None:
    folder = make_only_params()
    (folder / "consolidated.safetensors").unlink()
    done = invoke("inspect", "only")
    assert done.exit_code == 1
    text = unwrapped(done.stderr)
    assert "has no config.json, and no weights next to params.json" in text
    assert "Download its consolidated*.safetensors too." in text
