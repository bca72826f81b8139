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
    assert "--method dynamic" not in done.stderr
    check_output(NEW)
    assert "params.json max_seq_len 1024" in passed_checks(verify("longer"))["files"]


def test_resize_states_betas_in_params_json_and_refuses_another_attention_factor() -> None:
    make()
    stated = resize_twice("mistral", NEW, method="yarn:beta-fast=16,beta-slow=2")
    assert stated["yarn"] == {**NEW_YARN, "beta": 16, "alpha": 2}
    with pytest.raises(MethodError, match="cannot state these yarn settings"):
        resize("mistral", NEW, "yarn:attention-factor=1.05", output="refused")


@pytest.mark.parametrize(
    ("params", "rope", "method", "expected"),
    [
        ({"max_position_embeddings": OLD}, None, "limits", {"max_position_embeddings": NEW}),
        ({"max_seq_len": None}, None, "auto", {"yarn": NEW_YARN}),
        ({"yarn": YARN}, YARN_IN_CONFIG, "auto", {"yarn": {**YARN, "factor": 16.0}}),
    ],
)
def test_resize_changes_what_params_json_states(
    params: dict[str, Any], rope: dict[str, Any] | None, method: str, expected: dict[str, Any]
) -> None:
    make(params=params, config={"rope_parameters": rope} if rope else {})
    before = params_of("mistral")
    if "max_seq_len" in before:  # else vLLM takes the length from the config
        expected = {**expected, "max_seq_len": NEW}
    assert resize_twice("mistral", NEW, method=method) == {**before, **expected}


def test_resize_states_a_raised_base_in_params_json() -> None:
    make(params={"rope_theta": None})
    stated = resize_twice("mistral", NEW, method="theta")
    assert stated["rope_theta"] == pico.config_of(Path("longer"))["rope_parameters"]["rope_theta"]
    assert stated["rope_theta"] > THETA


def make_with_query_scaling(*, params: dict[str, Any], rope: dict[str, Any]) -> Path:
    """Save a model whose queries are scaled by position, with these settings of positions."""
    in_params = {"llama_4_scaling": SCALING, **params}
    config = {"rope_parameters": {**rope, **SCALING_IN_CONFIG}}
    return make("ministral", model_type="ministral3", params=in_params, config=config)


def test_resize_keeps_llama_4_scaling_next_to_yarn() -> None:
    make_with_query_scaling(params={"yarn": YARN}, rope=YARN_IN_CONFIG)
    stated = resize_twice("ministral", NEW)
    assert stated["yarn"] == {**YARN, "factor": 16.0}
    assert stated["llama_4_scaling"] == SCALING


@pytest.mark.parametrize(
    "settings", [{"method": "theta"}, {"method": "limits"}, {"trained_length": 64}]
)
def test_resize_keeps_llama_4_scaling_without_yarn(settings: dict[str, Any]) -> None:
    folder = make_with_query_scaling(params={}, rope=PLAIN_IN_CONFIG)
    resize(folder, NEW, output="longer", **settings)
    stated = params_of("longer")
    assert stated["llama_4_scaling"] == SCALING
    assert stated["max_seq_len"] == NEW
    again = resize("longer", 2 * NEW, method=settings.get("method", "auto"), output="again").output
    assert inspect(again).agrees
    assert params_of(again)["llama_4_scaling"] == SCALING


def test_resize_without_params_json_refuses_to_move_the_scaling_of_queries() -> None:
    folder = make_with_query_scaling(params={}, rope=PLAIN_IN_CONFIG)
    (folder / "params.json").unlink()
    mistral_format.weights_of(folder).unlink()
    with pytest.raises(MethodError, match="by which llama_4_scaling_beta scales queries"):
        plan_resize(folder, NEW)


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
    assert "transformers 4" not in done.stderr
    check_output(NEW)


@pytest.mark.parametrize("method", ["linear", "dynamic"])
def test_resize_refuses_a_method_that_params_json_cannot_state(method: str) -> None:
    make()
    done = invoke("resize", "mistral", "--to", NEW, "--method", method, "--output", "longer")
    assert done.exit_code == 2
    text = unwrapped(done.stderr)
    assert f"reads before config.json, cannot state these {method} settings." in text
    assert "Remove params.json and consolidated* from a copy of the folder" in text
    assert not Path("longer").exists()


def test_resize_warns_of_a_length_in_params_json_that_stays() -> None:
    make(params={"max_seq_len": 512})
    done = succeed("resize", "mistral", "--to", 2 * NEW, "--method", "limits", "--output", "longer")
    assert "params.json max_seq_len is 512, not 256, and stays 512" in unwrapped(done.stderr)
    assert params_of("longer")["max_seq_len"] == 512


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


def test_convert_refuses_a_removal_that_params_json_cannot_state() -> None:
    folder = make()
    done = invoke("convert", "mistral", "--scheme", "none")
    assert done.exit_code == 2
    shown = unwrapped(done.stderr)
    assert "params.json, which vLLM reads before config.json, cannot state these" in shown
    assert "Remove params.json and consolidated*" in shown
    (folder / "params.json").unlink()
    mistral_format.weights_of(folder).unlink()
    succeed("convert", "mistral", "--scheme", "none", "--dry-run")
