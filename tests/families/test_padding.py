"""Models whose outputs depend on the length to which texts are padded."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoProcessor, AutoTokenizer

from ctxextend import inspect, plan_resize, resize, verify
from ctxextend.families.registry import FAMILIES
from tests.helpers import pico, tiny
from tests.helpers.notes import texts
from tests.helpers.word_tokenizer import add_tokenizer, text_of

OLD, NEW = 16, 40
WORDS = 10


def siglip(folder: Path, model_type: str = "siglip", *, is_fixed: bool = False) -> Path:
    """Save a model with its tokenizer and, if the installed libraries allow it, its processor."""
    import transformers

    model = pico.make_siglip(folder, model_type)
    add_tokenizer(model, special_tokens=True, max_len=OLD)
    if is_fixed:  # as `tokenizers` saves it
        values = pico.read_json(folder / "tokenizer.json")
        padding = {"strategy": {"Fixed": OLD}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
        values["padding"] = padding | {"pad_to_multiple_of": None, "pad_token": "[PAD]"}
        values["truncation"] = {
            "max_length": OLD,
            "strategy": "LongestFirst",
            "stride": 0,
            "direction": "Right",
        }
        pico.write_json(folder / "tokenizer.json", values)
    name = model_type.title()
    images = getattr(transformers, f"{name}ImageProcessorPil")()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor_class = getattr(transformers, f"{name}Processor")
    processor_class(images, tokenizer).save_pretrained(folder)
    return folder


def features(folder: Path, words: int, **padding: Any) -> torch.Tensor:
    """Return the pooled output of a text, padded by the folder's own processor."""
    processor: Any = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    model = AutoModel.from_pretrained(folder)
    options = {"padding": "max_length"}
    text = text_of([*range(words)])
    inputs = processor(text=[text], return_tensors="pt", **(options | padding))
    with torch.no_grad():
        ids = inputs["input_ids"]
        pooled: torch.Tensor = model.text_model(input_ids=ids).pooler_output
    return pooled


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("model_type", ["siglip", "siglip2"])
def test_resize_keeps_the_padding_of_a_model_that_pools_the_last_position(
    model_type: str, is_fixed: bool, tmp_path: Path
) -> None:
    source = siglip(tmp_path / "source", model_type, is_fixed=is_fixed)
    result = resize(source, to=NEW, output=tmp_path / "out")
    flags: dict[str, Any]
    for flags in ({}, {"truncation": True}, {"max_length": OLD}):
        # By itself, Siglip2Processor pads to 64.
        if model_type == "siglip" or is_fixed or "max_length" in flags:
            old = features(source, 5, **flags)
            new = features(result.output, 5, **flags)
            assert torch.equal(old, new)
    long = features(result.output, NEW - 2, truncation=True, max_length=NEW)
    assert long.isfinite().all()
    resized = features(result.output, 5, max_length=NEW)
    base = features(source, 5, max_length=OLD)
    moved = resized - base
    assert moved.abs().max() > 1e-3  # why the padding length is kept
    (warning,) = texts(result, level="warning")
    assert warning.startswith(
        f"{model_type}_text_model pools the last position, padding included: short texts give "
    )
    assert (
        f"with padding='max_length', max_length={OLD}. Tokenizer files stay as they are: for "
        "longer texts" in warning
    )
    assert "Inputs up to 16 tokens give identical outputs if padded as before." in texts(
        result, "short-inputs"
    )
    assert warning in (result.output / "README.md").read_text()
    files = {edit.file for edit in result.plan.edits}
    assert files == {"config.json"}
    assert inspect(result.output).agrees
    plan = plan_resize(result.output, NEW, fix_limits=True)
    fixed = {edit.key: edit.after for edit in plan.plan.edits}
    assert fixed["model_max_length"] == NEW


def test_fixed_padding_follows_the_length_only_if_asked(tmp_path: Path) -> None:
    source = siglip(tmp_path / "source", is_fixed=True)
    for to in (8, NEW):
        plan = plan_resize(source, to, fix_limits=to == NEW)
        after = {edit.key: edit.after for edit in plan.plan.edits if edit.file == "tokenizer.json"}
        assert after == {"truncation.max_length": to, "padding.strategy": {"Fixed": to}}
        assert f"Texts padded to {to} tokens give other outputs." in texts(plan, "padding")[0]
    assert not plan_resize(source, OLD, fix_limits=True).plan.edits


def test_verify_deep_pads_texts_as_processor_and_tokenizer_do(tmp_path: Path) -> None:
    source = siglip(tmp_path / "source")
    result = resize(source, to=NEW, output=tmp_path / "out")
    out = result.output
    outputs = verify(out, deep=True).checks[-1]
    assert outputs.passed
    assert (
        "a text padded by the processor (text), a text padded by the tokenizer (text)"
        in outputs.evidence[0]
    )
    pico.edit_json(out / "tokenizer_config.json", model_max_length=NEW)
    verified = verify(out, deep=True)
    checks = {check.name: check for check in verified.checks}
    assert not checks["files"].passed
    assert not checks["outputs"].passed
    wrong = "shape [1, 40, 8] instead of [1, 16, 8] at a text padded by the"
    problem = f"{wrong} processor (text); {wrong} tokenizer"
    assert problem in checks["outputs"].evidence[1]


def last_hidden_states(model_type: str, length: int) -> list[torch.Tensor]:
    """Return the outputs of a random model for the same text, padded to a length and masked."""
    torch.manual_seed(0)
    config = tiny.shrink(tiny.make_config(model_type))
    model_class = tiny.model_classes(model_type)[0]
    model: Any = model_class(config).train(False)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.3
    tokens = torch.full((1, length), 1)
    tokens[0, :WORDS] = 8 + torch.arange(WORDS)
    is_word = torch.arange(length).unsqueeze(0) < WORDS
    inputs = {"input_ids": tokens, "attention_mask": is_word.long()}
    with torch.no_grad():
        output = model(**inputs)
    outputs = [output.last_hidden_state[:, :WORDS]]
    if output.get("pooler_output") is not None:
        outputs.append(output.pooler_output)
    return outputs


@pytest.mark.slow
def test_registry_states_every_encoder_whose_outputs_depend_on_the_padding_length() -> None:
    found = set()
    ran = set()
    for model_type, family in FAMILIES.items():
        if family.parts or len(family.tables) != 1 or model_type == "imagegpt":
            continue
        try:
            short = last_hidden_states(copy.copy(model_type), 32)
            long = last_hidden_states(copy.copy(model_type), 40)
        except Exception:  # needs other inputs, or cannot be built here
            continue
        ran.add(model_type)
        for one, other in zip(short, long, strict=True):
            if (one - other).abs().max() > 1e-3 * one.abs().max():
                found.add(model_type)
    assert len(ran) > 50
    expected = {name for name, family in FAMILIES.items() if family.padding_effect}
    assert found == expected
