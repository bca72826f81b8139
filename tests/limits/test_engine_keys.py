"""``n_ctx`` of GPT-2: transformers ignores it, and other engines need it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from ctxextend import extend_model, plan_resize, resize
from tests.helpers import pico

MakePico = Callable[..., pico.Pico]
OLD = 16
NEW = 40


def edit_key(folder: Path, value: int | None) -> Path:
    """Set ``n_ctx`` in a folder's config, or remove it."""
    config = pico.config_of(folder)
    config.pop("n_ctx", None)
    if value is not None:
        config["n_ctx"] = value
    pico.write_json(folder / "config.json", config)
    return folder


@pytest.mark.parametrize("stated", [None, OLD])
@pytest.mark.parametrize("settings", [{}, {"fix_limits": True}])
def test_a_resized_gpt2_states_it(
    stated: int | None, settings: dict[str, Any], make_pico: MakePico, tmp_path: Path
) -> None:
    folder = edit_key(make_pico("gpt2").folder, stated)
    planned = plan_resize(folder, NEW, **settings)
    (edit,) = [edit for edit in planned.plan.edits if edit.key == "n_ctx"]
    assert (edit.before, edit.after) == (stated, NEW)
    assert edit.reason == ("" if stated else "needed by llama.cpp and mlx-lm")
    output = resize(folder, NEW, output=tmp_path / "out", **settings).output
    assert pico.config_of(output)["n_ctx"] == NEW
    if not settings:
        config = transformers.AutoConfig.from_pretrained(output)
        config.save_pretrained(tmp_path / "saved")
        assert pico.config_of(tmp_path / "saved")["n_ctx"] == NEW


def test_it_stays_missing_if_the_length_stays(make_pico: MakePico, tmp_path: Path) -> None:
    folder = edit_key(make_pico("gpt2").folder, None)
    output = resize(folder, OLD, fix_limits=True, output=tmp_path / "out").output
    assert "n_ctx" not in pico.config_of(output)
    edit_key(folder, 5)
    fixed = resize(folder, OLD, fix_limits=True, output=tmp_path / "fixed").output
    assert pico.config_of(fixed)["n_ctx"] == OLD


def test_extend_model_sets_it(make_pico: MakePico, tmp_path: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(make_pico("gpt2").folder)
    extend_model(model, NEW)
    model.save_pretrained(tmp_path / "saved")
    assert pico.config_of(tmp_path / "saved")["n_ctx"] == NEW


def test_a_gpt2_inside_another_model_states_it_only_if_its_source_does(tmp_path: Path) -> None:
    for stated in (None, OLD):
        sizes: dict[str, Any] = {
            "vocab_size": 16,
            "n_embd": 8,
            "n_layer": 1,
            "n_head": 1,
            "n_positions": OLD,
        }
        config = transformers.EncoderDecoderConfig(
            encoder=transformers.GPT2Config(**sizes).to_dict(),
            decoder=transformers.GPT2Config(**sizes).to_dict(),
        )
        folder = tmp_path / f"source-{stated}"
        transformers.EncoderDecoderModel(config).save_pretrained(folder)
        if stated is not None:
            content = pico.config_of(folder)
            content["decoder"]["n_ctx"] = stated
            pico.write_json(folder / "config.json", content)
        output = resize(folder, NEW, part="decoder", output=tmp_path / f"out-{stated}").output
        expected = NEW if stated else None
        assert pico.config_of(output)["decoder"].get("n_ctx") == expected
