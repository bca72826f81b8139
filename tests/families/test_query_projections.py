"""Scaled query projections give what multiplied attention logits give.

Independent of the registry: the reference is a model with the weights of the base, of which the
product of queries and keys is multiplied while it runs.
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import extend_model, plan_resize, resize, verify
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.query_projections import NO_QUERY_PROJECTION, QUERY_PROJECTIONS
from ctxextend.plan.plan import Plan
from tests.helpers import rules, tiny
from tests.helpers.attention_logits import multiply_logits
from tests.helpers.model_types import WITH_ROWS
from tests.helpers.parameters import slow
from tests.helpers.small_model import SmallModel
from tests.helpers.zoo import Reader, text_readers

FACTOR = 2.0  # a power of two, so that weights are multiplied without rounding
FAST = (
    "albert",
    "bart",
    "bert",
    "clip_text_model",
    "gemma2",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "llama",
    "phi3",
    "roberta",
    "whisper",
)
SPREAD = 8.0  # by which weights are multiplied, so that attention is not uniform
CLOSE = 1e-9  # in float64, relative to the largest output
APART = 1e-5
# Sizes of models that would be too large to run.
SMALLER = {"qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 32}}
# Of types whose settings `yarn` does not scale.
METHODS = {"cwm": "switch", "phi3": "switch"}


class Scaled(NamedTuple):
    """A small model that was resized with and without a query scale."""

    plain: Any
    scaled: Any
    extended: Any
    attention: list[str]  # the modules whose queries are multiplied
    length: int


def types_of(*, with_rows: bool) -> list[Any]:
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in sorted(QUERY_PROJECTIONS)
        if (name in WITH_ROWS) is with_rows
    ]


def spread(model: Any) -> None:
    """Multiply all matrices of attention, so that outputs depend on its logits."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed" not in name:
                weight.mul_(SPREAD)
            if weight.dim() == 1 and "norm" not in name.lower() and "ln_" not in name:
                weight.add_(torch.randn_like(weight) / 4)


def load(model_class: Any, folder: Path) -> Any:
    """Load a model in float64, with an attention and experts of single operations."""
    model = model_class.from_pretrained(folder, attn_implementation="eager")
    if hasattr(model.config, "_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.train(False).double()


def scaled_model(model: Any, folder: Path, to: int, method: str) -> Scaled:
    spread(model)
    model.save_pretrained(folder / "base")
    loaded = []
    for scale in (None, FACTOR):
        output = folder / str(scale)
        result = resize(folder / "base", to, method, query_scale=scale, output=output, verify=True)
        loaded.append(load(type(model), output))
    assert verify(folder / str(FACTOR))
    extended = copy.deepcopy(model)
    extend_model(extended, to, method, query_scale=FACTOR)
    names = [tensor.name for tensor in result.plan.scaled_tensors]
    modules = dict.fromkeys(name.rsplit(".", 2)[0] for name in names)
    plain, scaled = loaded
    return Scaled(plain, scaled, extended.double(), list(modules), to)


def check(models: Scaled, reader: Reader) -> None:
    """Check that scaled weights do what multiplied logits do, and what the model did not do."""
    before = reader.run(models.plain, models.length)
    after = reader.run(models.scaled, models.length)
    state = models.scaled.state_dict()
    for name, value in models.extended.state_dict().items():
        assert torch.equal(value, state[name]), name
    multiply_logits(models.plain, models.attention, FACTOR)
    expected = reader.run(models.plain, models.length)
    size = before.abs().max()
    assert expected.isfinite().all()
    assert (expected - before).abs().max() > APART * size, "attention logits change nothing"
    assert (after - expected).abs().max() <= CLOSE * size


@pytest.mark.parametrize("model_type", types_of(with_rows=True))
def test_scaled_projections_of_models_with_rows_multiply_attention_logits(
    model_type: str, tmp_path: Path
) -> None:
    model_class = tiny.model_classes(model_type)[0]
    small = SmallModel(tiny.make_config(model_type), model_class)
    reader = next(reader for _, _, reader, _ in small.readers)
    check(scaled_model(small.model, tmp_path, small.new, "copy"), reader)


@pytest.mark.parametrize("model_type", types_of(with_rows=False))
def test_scaled_projections_of_rotary_models_multiply_attention_logits(
    model_type: str, tmp_path: Path
) -> None:
    config = rules.make_config(model_type)
    config.update(SMALLER.get(model_type, {}))
    model = rules.build(model_type, config)
    assert rules.is_real(model)
    path, names = next(iter(text_readers(model)))
    method = METHODS.get(model_type, "yarn:attention-factor=1")
    check(scaled_model(model, tmp_path, rules.NEW, method), Reader(path, names))


@pytest.mark.parametrize("model_type", sorted(NO_QUERY_PROJECTION))
def test_model_types_without_such_projections_are_known(model_type: str) -> None:
    assert model_type in FAMILIES
    assert model_type not in QUERY_PROJECTIONS


@pytest.mark.parametrize("multi_query", [True, False])
def test_both_forms_of_gpt_bigcode_have_their_queries(multi_query: bool, tmp_path: Path) -> None:
    config = tiny.make_config("gpt_bigcode")
    config.multi_query = multi_query
    small = SmallModel(config, tiny.model_classes("gpt_bigcode")[0])
    reader = next(reader for _, _, reader, _ in small.readers)
    check(scaled_model(small.model, tmp_path, small.new, "copy"), reader)


@pytest.mark.parametrize("model_type", ["clip", slow("clipseg")])
def test_models_with_a_text_model_scale_only_its_queries(model_type: str, tmp_path: Path) -> None:
    small = SmallModel(tiny.make_config(model_type), tiny.model_classes(model_type)[0])
    reader = next(reader for _, _, reader, _ in small.readers)
    models = scaled_model(small.model, tmp_path, small.new, "copy")
    assert not any("vision" in name for name in models.attention)
    check(models, reader)


@pytest.mark.parametrize(
    ("composite", "encoder", "decoder"),
    [
        ("encoder-decoder", "roberta", "bert"),
        slow("encoder-decoder", "bert", "gpt2"),
        slow("vision-encoder-decoder", "vit", "mbart"),
        slow("vision-encoder-decoder", "vit", "trocr"),
    ],
)
def test_composites_scale_self_attention_only(
    composite: str, encoder: str, decoder: str, tmp_path: Path
) -> None:
    parts = {
        name: tiny.make_config(kind).to_dict()
        for name, kind in (("encoder", encoder), ("decoder", decoder))
    }
    parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
    small = SmallModel(CONFIG_MAPPING[composite](**parts), tiny.model_classes(composite)[0])
    result = plan_of(small, tmp_path)
    names = [tensor.name for tensor in result.scaled_tensors]
    assert any(name.startswith("decoder.") for name in names)
    assert any(name.startswith("encoder.") for name in names) is (composite == "encoder-decoder")
    assert not any("cross" in name or "encoder_attn" in name for name in names)
    extended = copy.deepcopy(small.model)
    extend_model(extended, small.new, "copy", query_scale=FACTOR)
    state = extended.state_dict()
    changed = [
        name
        for name, value in small.model.state_dict().items()
        if value.shape == state[name].shape and not torch.equal(value, state[name])
    ]
    assert len(changed) == sum(name.endswith(".weight") for name in names)


def plan_of(small: SmallModel, folder: Path) -> Plan:
    """Return the plan of a small model with a query scale."""
    small.model.save_pretrained(folder)
    return plan_resize(folder, small.new, "copy", query_scale=FACTOR).plan


def test_a_rotary_language_model_inside_another_model_is_found(tmp_path: Path) -> None:
    model = rules.build("llava", rules.make_config("llava"))
    assert rules.is_real(model)
    model.save_pretrained(tmp_path)
    plan = plan_resize(tmp_path, rules.NEW, "yarn:attention-factor=1", query_scale=FACTOR).plan
    names = [tensor.name for tensor in plan.scaled_tensors]
    assert names
    assert all("language_model" in name and ".self_attn.q_proj." in name for name in names)
    extended = copy.deepcopy(model)
    extend_model(extended, rules.NEW, "yarn:attention-factor=1", query_scale=FACTOR)
    state = extended.state_dict()
    changed = [
        name for name, value in model.state_dict().items() if not torch.equal(value, state[name])
    ]
    assert len(changed) == len(names)
    assert all(".self_attn.q_proj." in name and "vision" not in name for name in changed)
