"""How Mistral's params.json spells rotary settings, in both directions."""

from copy import deepcopy
from typing import Any

import pytest

from ctxextend.families.mistral_params import (
    check_params,
    config_of_params,
    disagreements,
    find_unstatable,
    length_in_vllm,
    rope_changes_of_params,
)
from ctxextend.tables.rotary import frequencies
from tests.helpers.mistral_format import PARAMS, THETA, YARN, YARN_IN_CONFIG

PLAIN = {"rope_type": "default", "rope_theta": THETA}
SCALED = {
    "rope_type": "yarn",
    "rope_theta": THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALINGS = (
    PLAIN,
    {**PLAIN, "rope_theta": 5e6},
    SCALED,
    {**SCALED, "attention_factor": 1.0},
    {**SCALED, "mscale": 0.5, "mscale_all_dim": 0.5},
    {**SCALED, "beta_fast": 16.0, "beta_slow": 2.0},
    YARN_IN_CONFIG,
)


def changed(params: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return params.json with other rotary settings."""
    values = deepcopy(params)
    for (*above, key), value in rope_changes_of_params(params, after).items():
        target = values
        for name in above:
            target = target[name]
        target[key] = value
    return values


@pytest.mark.parametrize("after", SCALINGS)
@pytest.mark.parametrize("before", [{}, {"yarn": YARN}, {"yarn": None}])
def test_changed_params_agree_with_the_settings(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    params = changed({**PARAMS, **before}, after)
    check_params(params, "params.json")
    assert disagreements(params, after) == []
    for other in SCALINGS:
        if disagreements(params, other) == []:
            assert (other["rope_theta"], other.get("factor")) == (
                after["rope_theta"],
                after.get("factor"),
            )


@pytest.mark.parametrize("after", SCALINGS)
def test_translated_settings_give_the_same_angles(after: dict[str, Any]) -> None:
    config = config_of_params(changed(dict(PARAMS), after), "params.json")
    translated = frequencies(config["rope_parameters"], 8, max_len=256, length=256)
    expected = frequencies(after, 8, max_len=256, length=256)
    assert translated.inverse.tolist() == expected.inverse.tolist()
    assert translated.attention_factor == expected.attention_factor


def test_unchanged_settings_change_nothing() -> None:
    assert rope_changes_of_params({**PARAMS, "yarn": YARN}, YARN_IN_CONFIG) == {}
    assert rope_changes_of_params(PARAMS, PLAIN) == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PLAIN, None),
        (SCALED, None),
        ({**SCALED, "attention_factor": 1.0}, None),
        ({**SCALED, "attention_factor": 1.2}, ("attention_factor", 1.2)),
        ({**SCALED, "truncate": False}, ("truncate", False)),
        ({**SCALED, "partial_rotary_factor": 0.5}, ("partial_rotary_factor", 0.5)),
        ({**PLAIN, "partial_rotary_factor": 0.5}, ("partial_rotary_factor", 0.5)),
        (
            {"rope_type": "linear", "rope_theta": THETA, "factor": 2.0},
            ("rope_type", "linear"),
        ),
        ({"rope_type": "longrope", "rope_theta": THETA}, ("rope_type", "longrope")),
    ],
)
def test_find_unstatable(settings: dict[str, Any], expected: tuple[str, Any] | None) -> None:
    assert find_unstatable(PARAMS, settings) == expected


def test_find_unstatable_accepts_two_attention_factors() -> None:
    equal = {**SCALED, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert find_unstatable(PARAMS, equal) is None
    found = find_unstatable(PARAMS, {**equal, "mscale_all_dim": 0.5})
    assert found is not None
    assert found.key == "attention_factor"


def test_find_unstatable_reads_the_rotated_part_from_sizes_of_latent_attention() -> None:
    latent = {**PARAMS, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4}
    assert find_unstatable(latent, {**SCALED, "partial_rotary_factor": 0.5}) is None


@pytest.mark.parametrize(
    ("lengths", "in_config", "expected"),
    [
        ({}, 256, 256),
        ({}, None, 128_000),
        ({"max_seq_len": 512}, 256, 256),
        ({"max_seq_len": 128}, 256, 128),
        ({"max_position_embeddings": 512}, 256, 512),
        ({"max_position_embeddings": 512, "max_seq_len": 128}, None, 128),
        ({"max_seq_len": 200_000}, None, 128_000),
    ],
)
def test_length_in_vllm(lengths: dict[str, int], in_config: int | None, expected: int) -> None:
    assert length_in_vllm(lengths, in_config) == expected
