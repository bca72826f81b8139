"""`resize` of folders with Mistral's params.json: what it edits, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from ctxextend import plan_resize, resize, verify
from ctxextend.errors import CheckpointError, MethodError
from tests.helpers import mistral_format, pico
from tests.helpers.mistral_format import (
    NEW,
    OLD,
    PARAMS,
    THETA,
    YARN,
    YARN_IN_CONFIG,
    make,
    make_only_params,
    params_of,
)
from tests.helpers.trainings import invoke, succeed, unwrapped
from tests.helpers.verifications import failed_checks, passed_checks

NEW_YARN = {
    "original_max_position_embeddings": OLD,
    "factor": 4.0,
    "apply_scale": True,
    "beta": 32,
    "alpha": 1,
}


def test_resize_edits_params_json_with_the_rest() -> None:
    source = make()
    done = succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    assert params_of("longer") == {**PARAMS, "max_seq_len": NEW, "yarn": NEW_YARN}
    assert pico.config_of(Path("longer"))["max_position_embeddings"] == NEW
    lines = Path("longer/params.json").read_text().splitlines()
    before = (source / "params.json").read_text().splitlines()
    assert lines[:10] == before[:10]  # as Mistral formats them
    assert lines[11:] != before[11:]
    assert "vLLM reads params.json before config.json: both change." in done.stderr
    assert "mistral-inference ignores yarn in params.json" in done.stderr
    assert "--method dynamic" not in done.stderr
    succeed("inspect", "longer", "--check")
    assert "params.json max_seq_len 1024" in passed_checks(verify("longer"))["files"]


def test_resize_states_a_raised_base_in_params_json() -> None:
    make(params={"rope_theta": None})
    resize("mistral", NEW, method="theta", output="longer")
    stated = params_of("longer")
    assert stated["rope_theta"] == pico.config_of(Path("longer"))["rope_parameters"]["rope_theta"]
    assert stated["rope_theta"] > THETA
    assert "yarn" not in stated


def test_resize_by_limits_changes_only_lengths_in_params_json() -> None:
    make(params={"max_position_embeddings": OLD})
    resize("mistral", NEW, method="limits", output="longer")
    expected = {**PARAMS, "max_seq_len": NEW, "max_position_embeddings": NEW}
    assert params_of("longer") == expected


def test_resize_adds_no_length_that_vllm_takes_from_the_config() -> None:
    make(params={"max_seq_len": None})
    resize("mistral", NEW, output="longer")
    assert params_of("longer").keys() == {*PARAMS, "yarn"} - {"max_seq_len"}


def test_resize_multiplies_the_factor_of_yarn_in_params_json() -> None:
    make(params={"yarn": YARN}, config={"rope_parameters": YARN_IN_CONFIG})
    resize("mistral", NEW, output="longer")
    assert params_of("longer")["yarn"] == {**YARN, "factor": 16.0}
    succeed("inspect", "longer", "--check")


def test_resize_changes_the_first_length_in_llama_4_scaling() -> None:
    scaling = {"original_max_position_embeddings": 64, "beta": 0.1}
    in_config = {**YARN_IN_CONFIG, "llama_4_scaling_beta": 0.1}
    make(
        "ministral",
        model_type="ministral3",
        params={"yarn": YARN, "llama_4_scaling": scaling},
        config={"rope_parameters": in_config},
    )
    succeed("inspect", "ministral", "--check")
    resize("ministral", NEW, trained_length=128, output="longer")
    stated = params_of("longer")
    assert stated["yarn"]["original_max_position_embeddings"] == 128
    assert stated["llama_4_scaling"] == {**scaling, "original_max_position_embeddings": 128}


@pytest.mark.parametrize("dialect", ["both", "keep"])
@pytest.mark.parametrize("is_old", [False, True])
def test_resize_states_no_rope_scaling_next_to_params_json(dialect: str, is_old: bool) -> None:
    folder = make()
    if is_old:
        config = pico.config_of(folder)
        del config["rope_parameters"]
        config |= {"rope_theta": THETA, "transformers_version": "4.40.0"}
        pico.write_json(folder / "config.json", config)
    done = succeed("resize", "mistral", "--to", NEW, "--dialect", dialect, "--output", "longer")
    config = pico.config_of(Path("longer"))
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert config.get("rope_scaling") is None
    assert "config.json states the settings only as rope_parameters: vLLM" in done.stderr
    assert "Loads, but without the new settings, in transformers 4" in done.stderr


def test_resize_without_consolidated_weights_states_both_dialects() -> None:
    folder = make()
    mistral_format.weights_of(folder).unlink()
    resize("mistral", NEW, output="longer")
    config = pico.config_of(Path("longer"))
    assert config["rope_scaling"]["rope_type"] == config["rope_parameters"]["rope_type"]
    assert params_of("longer")["yarn"] == NEW_YARN


@pytest.mark.parametrize("method", ["linear", "dynamic"])
def test_resize_refuses_a_method_that_params_json_cannot_state(method: str) -> None:
    make()
    done = invoke("resize", "mistral", "--to", NEW, "--method", method, "--output", "longer")
    assert done.exit_code == 2
    assert f"params.json cannot state {method} settings, and vLLM reads it." in done.stderr
    assert "Use --method yarn or theta, or remove params.json and" in done.stderr
    assert not Path("longer").exists()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"attention_factor": 1.5}, "attention_factor 1.5"),
        ({"truncate": False, "attention_factor": 1.0}, "truncate false"),
    ],
)
def test_resize_refuses_settings_that_params_json_cannot_state(
    settings: dict[str, Any], what: str
) -> None:
    stated = {**YARN_IN_CONFIG, "mscale": None, "mscale_all_dim": None, **settings}
    config = {key: value for key, value in stated.items() if value is not None}
    apply_scale = settings["attention_factor"] != 1
    folder = make(
        params={"yarn": {**YARN, "apply_scale": apply_scale}}, config={"rope_parameters": config}
    )
    if apply_scale:  # the files disagree before the resize
        with pytest.raises(CheckpointError, match=r"latter attention_factor 1\.5"):
            plan_resize(folder, NEW)
        return
    with pytest.raises(MethodError, match=f"params.json cannot state {what}"):
        plan_resize(folder, NEW)


def test_resize_edits_params_json_in_a_shape_without_config() -> None:
    make_only_params()
    done = succeed("resize", "only", "--to", NEW, "--output", "longer", "--verify")
    assert params_of("longer") == {**PARAMS, "max_seq_len": NEW, "yarn": NEW_YARN}
    assert not Path("longer/config.json").exists()
    assert "No config.json found" not in done.stderr
    assert "Context length 1024 in vLLM." in done.stderr
    assert verify("longer").passed
    succeed("inspect", "longer", "--check")


@pytest.mark.parametrize(
    ("stated", "to", "expected"),
    [
        ({"max_seq_len": None}, 256_000, {"max_position_embeddings": 256_000}),
        ({"max_seq_len": 200_000}, 256_000, {"max_position_embeddings": 256_000}),
        ({"max_position_embeddings": 512}, NEW, {"max_position_embeddings": NEW}),
    ],
)
def test_resize_without_config_states_what_vllm_takes(
    stated: dict[str, Any], to: int, expected: dict[str, int]
) -> None:
    make_only_params(params=stated)
    resize("only", to, output="longer")
    after = params_of("longer")
    assert {key: after[key] for key in expected} == expected
    assert after.get("max_seq_len", to) == to


@pytest.mark.parametrize(
    ("params", "config", "message"),
    [
        (
            {"rope_theta": 10_000.0},
            {},
            "the former states rope_theta 10000, the latter rope_theta 1000000.",
        ),
        ({"yarn": YARN}, {}, "the former states yarn factor 4, the latter rope_type default."),
        (
            {},
            {"rope_parameters": YARN_IN_CONFIG},
            "the former states no yarn, the latter rope_type yarn.",
        ),
        (
            {"yarn": {**YARN, "factor": 8}},
            {"rope_parameters": YARN_IN_CONFIG},
            "the former states yarn.factor 8, the latter factor 4.",
        ),
        (
            {"yarn": {**YARN, "apply_scale": True}},
            {"rope_parameters": YARN_IN_CONFIG},
            "the former states yarn.apply_scale True, the latter attention_factor 1.",
        ),
        (
            {"max_seq_len": 512},
            {},
            "the former states max_seq_len 512, the latter max_position_embeddings 256. vLLM",
        ),
        ({"head_dim": 4}, {}, "the former states head_dim 4, the latter head_dim 8."),
    ],
)
def test_resize_refuses_a_params_json_that_disagrees(
    params: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    make(params=params, config=config)
    done = invoke("resize", "mistral", "--to", NEW, "--output", "longer")
    assert done.exit_code == 1
    text = unwrapped(done.stderr)
    assert f"params.json and config.json disagree: {message}" in text
    assert "Correct the wrong one" in text
    assert not Path("longer").exists()


def test_fix_limits_corrects_a_length_in_params_json() -> None:
    make(params={"max_seq_len": 100})
    resize("mistral", OLD, fix_limits=True, output="fixed")
    assert params_of("fixed") == dict(PARAMS)
    resize("mistral", NEW, fix_limits=True, output="longer")
    assert params_of("longer")["max_seq_len"] == NEW


def test_verify_finds_a_changed_params_json() -> None:
    make()
    output = resize("mistral", NEW, output="longer").output
    mistral_format.write_params(output, {"max_seq_len": NEW, "yarn": {**NEW_YARN, "factor": 2}})
    failed = failed_checks(verify("longer"))
    assert "params.json: yarn.factor is 2, expected 4.0" in failed["files"]


def test_params_json_of_another_program_is_copied() -> None:
    folder = make()
    mistral_format.weights_of(folder).unlink()
    (folder / "params.json").write_text('{"lr": 0.1}')
    output = resize("mistral", NEW, method="dynamic", output="longer").output
    assert (output / "params.json").read_text() == '{"lr": 0.1}'
