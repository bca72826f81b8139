"""`resize` of folders with Mistral's params.json: what it edits, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from ctxextend import inspect, plan_resize, resize, verify
from ctxextend.errors import MethodError
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
from tests.helpers.trainings import invoke, succeed, unwrapped, write_book
from tests.helpers.verifications import failed_checks, passed_checks

NEW_YARN = {
    "original_max_position_embeddings": OLD,
    "factor": 4.0,
    "apply_scale": True,
    "beta": 32,
    "alpha": 1,
}
SCALING = {"original_max_position_embeddings": 64, "beta": 0.1}  # of queries
PLAIN_IN_CONFIG = {"rope_type": "default", "rope_theta": THETA}
SCALING_IN_CONFIG = {"original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}


def resize_twice(folder: str | Path, to: int, **settings: Any) -> dict[str, Any]:
    """Resize a folder, check the output, resize it again, and return its params.json."""
    resize(folder, to, output="longer", **settings)
    check_output(to)
    return params_of("longer")


def check_output(to: int) -> None:
    """Check that the files of an output agree, and that it can be resized again."""
    succeed("inspect", "longer", "--check")
    again = resize("longer", 2 * to, output="again").output
    assert inspect(again).agrees


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
    check_output(NEW)
    assert "params.json max_seq_len 1024" in passed_checks(verify("longer"))["files"]


def test_resize_states_betas_in_params_json_and_refuses_another_attention_factor() -> None:
    make()
    stated = resize_twice("mistral", NEW, method="yarn:beta-fast=16,beta-slow=2")
    assert stated["yarn"] == {**NEW_YARN, "beta": 16, "alpha": 2}
    with pytest.raises(MethodError, match="cannot state attention_factor 1.05"):
        resize("mistral", NEW, "yarn:attention-factor=1.05", output="refused")


def test_resize_states_a_raised_base_in_params_json() -> None:
    make(params={"rope_theta": None})
    stated = resize_twice("mistral", NEW, method="theta")
    assert stated["rope_theta"] == pico.config_of(Path("longer"))["rope_parameters"]["rope_theta"]
    assert stated["rope_theta"] > THETA
    assert "yarn" not in stated


def test_resize_by_limits_changes_only_lengths_in_params_json() -> None:
    make(params={"max_position_embeddings": OLD})
    expected = {**PARAMS, "max_seq_len": NEW, "max_position_embeddings": NEW}
    assert resize_twice("mistral", NEW, method="limits") == expected


def test_resize_adds_no_length_that_vllm_takes_from_the_config() -> None:
    make(params={"max_seq_len": None})
    assert resize_twice("mistral", NEW).keys() == {*PARAMS, "yarn"} - {"max_seq_len"}


def test_resize_multiplies_the_factor_of_yarn_in_params_json() -> None:
    make(params={"yarn": YARN}, config={"rope_parameters": YARN_IN_CONFIG})
    assert resize_twice("mistral", NEW)["yarn"] == {**YARN, "factor": 16.0}


def make_with_query_scaling(
    *, params: dict[str, Any], rope: dict[str, Any], is_only: bool = False
) -> Path:
    """Save a model whose queries are scaled by position, with these settings of positions."""
    in_params = {"llama_4_scaling": SCALING, **params}
    if is_only:
        return make_only_params("ministral", params=in_params)
    config = {"rope_parameters": {**rope, **SCALING_IN_CONFIG}}
    return make("ministral", model_type="ministral3", params=in_params, config=config)


both_kinds_of_folders = pytest.mark.parametrize("is_only", [False, True])


@both_kinds_of_folders
def test_resize_corrects_the_first_length_in_llama_4_scaling_with_that_of_yarn(
    *, is_only: bool
) -> None:
    make_with_query_scaling(params={"yarn": YARN}, rope=YARN_IN_CONFIG, is_only=is_only)
    succeed("inspect", "ministral", "--check")
    stated = resize_twice("ministral", NEW, trained_length=128)
    assert stated["yarn"]["original_max_position_embeddings"] == 128
    assert stated["llama_4_scaling"] == {**SCALING, "original_max_position_embeddings": 128}


@both_kinds_of_folders
def test_resize_keeps_llama_4_scaling_next_to_yarn(*, is_only: bool) -> None:
    make_with_query_scaling(params={"yarn": YARN}, rope=YARN_IN_CONFIG, is_only=is_only)
    stated = resize_twice("ministral", NEW)
    assert stated["yarn"] == {**YARN, "factor": 16.0}
    assert stated["llama_4_scaling"] == SCALING


@both_kinds_of_folders
@pytest.mark.parametrize(
    "settings", [{"method": "theta"}, {"method": "limits"}, {"trained_length": 64}]
)
def test_resize_keeps_llama_4_scaling_without_yarn(
    settings: dict[str, Any], *, is_only: bool
) -> None:
    folder = make_with_query_scaling(params={}, rope=PLAIN_IN_CONFIG, is_only=is_only)
    succeed("inspect", folder, "--check")
    resize(folder, NEW, output="longer", **settings)
    succeed("inspect", "longer", "--check")
    stated = params_of("longer")
    assert stated["llama_4_scaling"] == SCALING
    assert stated["max_seq_len"] == NEW
    again = resize("longer", 2 * NEW, method=settings.get("method", "auto"), output="again").output
    assert inspect(again).agrees
    assert params_of(again)["llama_4_scaling"] == SCALING


@both_kinds_of_folders
def test_resize_refuses_to_move_the_scaling_of_queries(*, is_only: bool) -> None:
    folder = make_with_query_scaling(params={}, rope=PLAIN_IN_CONFIG, is_only=is_only)
    done = invoke("resize", folder, "--to", NEW, "--output", "longer")
    assert done.exit_code == 2
    text = unwrapped(done.stderr)
    assert "would state original_max_position_embeddings 256 instead of 64" in text
    assert "Use --method theta or limits, or pass --trained-length 64" in text
    assert not Path("longer").exists()


def test_resize_without_params_json_refuses_to_move_the_scaling_of_queries() -> None:
    folder = make_with_query_scaling(params={}, rope=PLAIN_IN_CONFIG)
    (folder / "params.json").unlink()
    mistral_format.weights_of(folder).unlink()
    with pytest.raises(MethodError, match="by which llama_4_scaling_beta scales queries"):
        plan_resize(folder, NEW)


@both_kinds_of_folders
@pytest.mark.parametrize("command", [("inspect",), ("resize", "--to", NEW)])
def test_another_length_in_llama_4_scaling_than_in_yarn_is_refused(
    command: tuple[str | int, ...], *, is_only: bool
) -> None:
    scaling = {**SCALING, "original_max_position_embeddings": 128}
    params = {"yarn": YARN, "llama_4_scaling": scaling}
    make_with_query_scaling(params=params, rope=YARN_IN_CONFIG, is_only=is_only)
    name, *flags = command
    done = invoke(str(name), "ministral", *flags)
    assert done.exit_code == 1
    message = "llama_4_scaling.original_max_position_embeddings is 128, but that of yarn is 64"
    assert message in unwrapped(done.stderr)


def test_a_scaling_of_queries_by_0_is_none() -> None:
    in_config = {**YARN_IN_CONFIG, "llama_4_scaling_beta": 0}
    make(
        "ministral",
        model_type="ministral3",
        params={"yarn": YARN},
        config={"rope_parameters": in_config},
    )
    assert "llama_4_scaling" not in resize_twice("ministral", NEW)


@pytest.mark.parametrize("is_old", [False, True])
def test_resize_states_no_rope_scaling_next_to_params_json(is_old: bool) -> None:
    folder = make()
    if is_old:
        config = pico.config_of(folder)
        del config["rope_parameters"]
        config |= {"rope_theta": THETA, "transformers_version": "4.40.0"}
        pico.write_json(folder / "config.json", config)
    done = succeed("resize", "mistral", "--to", NEW, "--output", "longer")
    config = pico.config_of(Path("longer"))
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert config.get("rope_scaling") is None
    assert "config.json states the settings only as rope_parameters: vLLM" in done.stderr
    assert "Loads, but without the new settings, in transformers 4" in done.stderr
    check_output(NEW)


def test_resize_without_consolidated_weights_states_both_dialects() -> None:
    folder = make()
    mistral_format.weights_of(folder).unlink()
    resize_twice("mistral", NEW)
    config = pico.config_of(Path("longer"))
    assert config["rope_scaling"]["rope_type"] == config["rope_parameters"]["rope_type"]
    assert params_of("longer")["yarn"] == NEW_YARN


@pytest.mark.parametrize("method", ["linear", "dynamic"])
def test_resize_refuses_a_method_that_params_json_cannot_state(method: str) -> None:
    make()
    done = invoke("resize", "mistral", "--to", NEW, "--method", method, "--output", "longer")
    assert done.exit_code == 2
    assert f"params.json cannot state {method} settings, and vLLM reads it." in done.stderr
    assert "Use --method yarn or theta." in done.stderr
    assert "For other settings, remove params.json and" in unwrapped(done.stderr)
    assert not Path("longer").exists()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"attention_factor": 1.5}, "attention_factor 1.5"),
        ({"truncate": False}, "truncate false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_type": "linear"}, "rope_type linear"),
    ],
)
def test_settings_of_the_config_that_params_json_cannot_state_are_disagreements(
    settings: dict[str, Any], what: str
) -> None:
    make(params={"yarn": YARN}, config={"rope_parameters": {**YARN_IN_CONFIG, **settings}})
    assert invoke("inspect", "mistral", "--check").exit_code == 3
    (limit,) = [item for item in inspect("mistral").limits if not item.agrees]
    stated = f"config.json states {what}, which params.json cannot state"
    step = "correct config.json, or remove Mistral's files from a copy of the folder"
    assert limit.reason == f"{stated}, and vLLM reads params.json first: {step}"
    done = invoke("resize", "mistral", "--to", NEW)
    assert done.exit_code == 1
    text = unwrapped(done.stderr)
    assert f"the latter {what}, which params.json cannot state." in text
    assert "If params.json is right, correct config.json. For other settings, remove" in text


def test_resize_advises_no_method_that_params_json_cannot_state() -> None:
    usual = {"attention_factor": 1.138629436111989, "mscale": 0.0, "mscale_all_dim": 0.0}
    make(
        params={"yarn": {**YARN, "apply_scale": True}},
        config={"rope_parameters": {**YARN_IN_CONFIG, **usual}},
    )
    succeed("inspect", "mistral", "--check")
    with pytest.raises(MethodError, match=r"params.json cannot state attention_factor 1\.13"):
        plan_resize("mistral", NEW)
    done = invoke("resize", "mistral", "--to", NEW)
    assert "--method" not in done.stderr
    assert "For other settings, remove params.json and" in unwrapped(done.stderr)


def test_resize_advises_only_methods_that_params_json_can_state() -> None:
    make(config={"rope_parameters": {**PLAIN_IN_CONFIG, "truncate": False}})
    done = invoke("resize", "mistral", "--to", NEW)
    assert "params.json cannot state truncate false" in done.stderr
    assert "Use --method theta. For other settings" in unwrapped(done.stderr)
    resize("mistral", NEW, method="theta", output="longer")
    succeed("inspect", "longer", "--check")
    resize("longer", 2 * NEW, method="theta", output="again")


def test_compare_refuses_a_method_that_params_json_cannot_state() -> None:
    make()
    write_book()
    done = invoke("compare", "mistral", "--to", NEW, "--method", "dynamic", "--data", "book.txt")
    assert done.exit_code == 2
    assert "params.json cannot state dynamic settings, and vLLM reads it." in done.stderr


def test_resize_edits_params_json_in_a_shape_without_config() -> None:
    make_only_params()
    done = succeed("resize", "only", "--to", NEW, "--output", "longer", "--verify")
    assert params_of("longer") == {**PARAMS, "max_seq_len": NEW, "yarn": NEW_YARN}
    assert not Path("longer/config.json").exists()
    assert "No config.json found" not in done.stderr
    assert "Context length 1024 in vLLM." in done.stderr
    assert verify("longer").passed
    check_output(NEW)


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
    after = resize_twice("only", to)
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
            "the former states yarn.apply_scale true, the latter attention_factor 1.",
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


def test_resize_plans_from_the_length_that_params_json_states() -> None:
    make_only_params(params={"max_seq_len": 131_072})
    succeed("resize", "only", "--to", 262_144, "--output", "longer")
    values = params_of("longer")
    assert values["max_position_embeddings"] == values["max_seq_len"] == 262_144
    assert values["yarn"]["factor"] == 2
    assert values["yarn"]["original_max_position_embeddings"] == 131_072


def test_resize_states_the_length_that_vllm_does_not_take() -> None:
    make_only_params(params={"max_seq_len": 131_072})
    remark = "vLLM takes 128000, since no max_position_embeddings is stated"
    assert remark in unwrapped(succeed("inspect", "only").stdout)
    done = invoke("resize", "only", "--to", 131_072)
    assert done.exit_code == 0
    differ = "Some length limits differ: --fix-limits makes them agree."
    assert differ in unwrapped(done.stderr)
    succeed("resize", "only", "--to", 131_072, "--fix-limits", "--output", "fixed")
    assert params_of("fixed") == {**params_of("only"), "max_position_embeddings": 131_072}


def test_refused_linear_settings_are_offered_as_flags() -> None:
    make()
    done = invoke("resize", "mistral", "--to", NEW, "--method", "linear")
    command = f"ctxextend flags mistral --to {NEW} --for vllm --method linear"
    assert command in unwrapped(done.stderr)
    flags = succeed(*command.split()[1:])
    assert '"rope_type": "linear"' in flags.stdout
    dynamic = invoke("resize", "mistral", "--to", NEW, "--method", "dynamic")
    assert dynamic.exit_code != 0
    assert "ctxextend flags" not in unwrapped(dynamic.stderr)


def test_convert_refuses_a_removal_that_params_json_cannot_state() -> None:
    folder = make()
    done = invoke("convert", "mistral", "--scheme", "none")
    assert done.exit_code == 2
    shown = unwrapped(done.stderr)
    message = "--scheme none: params.json cannot state that no position is rotated, and vLLM reads"
    assert message in shown
    assert "Remove params.json and consolidated*.safetensors" in shown
    assert "--method" not in shown
    (folder / "params.json").unlink()
    mistral_format.weights_of(folder).unlink()
    succeed("convert", "mistral", "--scheme", "none", "--dry-run")
