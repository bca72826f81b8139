"""``n_ctx`` of GPT-2: transformers ignores it, and other engines need it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import extend_model, inspect, plan_resize, resize, verify
from ctxextend.families.known_types import FAMILIES
from tests.helpers import nanogpt, pico
from tests.helpers.trainings import invoke, make_source, train, write_book
from tests.helpers.verifications import failed_checks

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


def test_only_gpt2_types_have_such_a_key() -> None:
    found = dict[str, list[str]]()
    for model_type, family in FAMILIES.items():
        keys = [key for table in family.tables for key in table.engine_keys]
        names = [key.name for key in keys if not key.value]  # that state the length
        if names:
            found[model_type] = names
    assert found == {"gpt2": ["n_ctx"], "gpt-sw3": ["n_ctx"]}


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


def test_outputs_from_nanogpt_state_it(tmp_path: Path) -> None:
    source = tmp_path / "ckpt.pt"
    torch.save(nanogpt.make(), source)
    for to in (OLD, NEW):
        output = resize(source, to, output=tmp_path / f"out-{to}").output
        assert pico.config_of(output)["n_ctx"] == to
        assert verify(output, source).passed
        assert verify(edit_key(output, None), source).passed  # of an earlier version
        assert not verify(edit_key(output, 5), source).passed


@pytest.mark.parametrize("base", [None, OLD])
@pytest.mark.parametrize("found", [None, OLD, NEW])
def test_verify_accepts_outputs_of_earlier_versions(
    base: int | None, found: int | None, make_pico: MakePico, tmp_path: Path
) -> None:
    folder = edit_key(make_pico("gpt2").folder, base)
    output = resize(folder, NEW, output=tmp_path / "out").output
    edit_key(output, found)
    # Earlier versions raised the key of a base that states it, and added none.
    is_accepted = found == NEW or (base is None and found is None)
    verification = verify(output)
    assert verification.passed == is_accepted
    if not is_accepted:
        assert "n_ctx" in failed_checks(verification)["files"]


def test_training_states_it(tmp_path: Path) -> None:
    write_book()
    source = edit_key(make_source(tmp_path / "source", "gpt2"), None)
    train(source, "trained", steps=1)
    assert pico.config_of("trained")["n_ctx"] == OLD
    assert "n_ctx" not in failed_checks(verify("trained", source)).get("files", "")

    resized = resize(source, NEW, output="resized").output
    train(edit_key(resized, None), "longer", "--dtype", "bf16", steps=1)
    config = pico.config_of("longer")
    assert (config["n_ctx"], config["dtype"]) == (NEW, "bfloat16")
    assert "n_ctx" not in failed_checks(verify("longer"))["files"]  # but the dtype


def test_inspect_says_who_reads_it(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    assert "n_ctx" not in {limit.key for limit in inspect(edit_key(folder, None)).limits}

    found = {limit.key: limit for limit in inspect(edit_key(folder, OLD)).limits}
    assert found["n_ctx"].agrees
    assert found["n_ctx"].used_by == "llama.cpp"

    found = {limit.key: limit for limit in inspect(edit_key(folder, 5)).limits}
    assert found["n_ctx"].reason == "n_positions is 16, and llama.cpp may take 5 instead"
    assert invoke("inspect", folder, "--check").exit_code == 3
