"""Model types without an entry, found by their classes in the installed transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ctxextend import UnsupportedModelError, list_families, plan_resize, resize
from ctxextend.families.registry import ENTRIES, FAMILIES
from tests.helpers.rotary_configs import NEW, SIZES, save_config
from tests.helpers.trainings import succeed

Forget = Callable[[str], None]
METHODS = ("yarn", "linear", "theta")  # of a type without an entry


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Forget:
    """Return a function that removes the entry of a type, as if it were new in transformers."""
    return lambda name: monkeypatch.delitem(cast(dict[str, Any], ENTRIES), name)


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "mixtral"])
@pytest.mark.parametrize("method", METHODS)
def test_resize_plans_the_same_without_the_entry(
    model_type: str, method: str, forget: Forget
) -> None:
    save_config(Path("source"), {"model_type": model_type, **SIZES, "rope_theta": 500_000.0})
    expected = planned_values(method)
    forget(model_type)
    assert planned_values(method) == expected


def planned_values(method: str) -> dict[tuple[str, ...], Any]:
    """Return what a resize of ``source`` writes, without the dialect that an entry adds."""
    edits = plan_resize("source", NEW, method).plan.edits
    return {edit.path: edit.after for edit in edits if edit.path[0] != "rope_scaling"}


def test_resize_builds_the_class_of_a_type_without_an_entry(forget: Forget) -> None:
    forget("qwen3")
    config: dict[str, Any] = {"model_type": "qwen3", **SIZES, "rope_theta": 500_000.0}
    save_config(Path("source"), config)
    done = succeed("resize", "source", "--to", NEW, "--output", "out")
    assert "qwen3: it has no entry: its rotary class in transformers was built" in done.stderr
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained("out")
    assert loaded.max_position_embeddings == NEW
    assert loaded.rope_parameters["rope_type"] == "yarn"
    assert loaded.rope_parameters["rope_theta"] == 500_000.0
    (listed,) = list_families(["qwen3"])
    assert listed.methods == METHODS


def test_resize_takes_the_type_of_the_text_config_of_a_multimodal_type(forget: Forget) -> None:
    forget("llava")
    text = {"model_type": "qwen3", **SIZES}
    save_config(Path("source"), {"model_type": "llava", "text_config": text})
    edits = {edit.path: edit.after for edit in plan_resize("source", NEW).plan.edits}
    assert edits["text_config", "max_position_embeddings"] == NEW


@pytest.mark.parametrize(
    ("model_type", "missing"),
    [
        ("gemma3_text", "its config has no rope_parameters of type default"),
        ("minimax_m3_vl_text", "its config has the key rotary_dim"),
        ("dia_decoder", "transformers has no model class for it"),
        ("jetmoe", "JetMoeRotaryEmbedding computes other frequencies for {}"),
        ("phi3", "they fail with KeyError("),
    ],
)
def test_resize_names_what_the_classes_of_a_type_lack(
    model_type: str, missing: str, forget: Forget
) -> None:
    forget(model_type)
    assert model_type not in FAMILIES
    save_config(Path("source"), {"model_type": model_type, **SIZES})
    with pytest.raises(UnsupportedModelError) as caught:
        resize("source", NEW, output="out")
    start = f"{model_type} has no entry here, and cannot be resized by its classes: {missing}"
    assert caught.value.message.startswith(start)
    assert not Path("out").exists()
