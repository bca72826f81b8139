"""`extend_model`, whose result must equal that of `resize` bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import CheckpointError, ResizeError, UnsupportedModelError, extend_model, resize
from tests.helpers import pico

MakePico = Callable[..., pico.Pico]
NEW = 40
SETTINGS: list[dict[str, Any]] = [
    *({"to": NEW, **pico.resize_settings(method)} for method in pico.LEARNED_METHODS),
    {"to": NEW, "method": "linear", "keep_first": 3},
    {"to": 7},
    {"to": 16},
]


@pytest.mark.parametrize(
    ("model_type", "settings", "dtype"),
    [
        *(("gpt2", settings, torch.float32) for settings in SETTINGS),
        ("gpt2", {"to": NEW, "method": "linear"}, torch.float16),
        ("gpt2", {"to": NEW, "method": "linear"}, torch.bfloat16),
        ("roberta", {"to": NEW, "method": "linear"}, torch.float64),
    ],
    ids=str,
)
def test_extend_model_equals_resize(
    model_type: str,
    settings: dict[str, Any],
    dtype: torch.dtype,
    make_pico: MakePico,
    tmp_path: Path,
) -> None:
    source = make_pico(model_type, dtype=dtype)
    output = resize(source.folder, output=tmp_path / "out", **settings).output
    resized = source.load(output)
    extended = source.load()

    extend_model(extended, **settings)

    state = extended.state_dict()
    assert_equal_tensors(state, resized.state_dict())
    for value in state.values():
        assert value.dtype == dtype
    assert_equal_tensors(dict(extended.named_buffers()), dict(resized.named_buffers()))
    assert config_without_path(extended) == config_without_path(resized)
    length = settings["to"]
    logits = pico.logits(extended, length)
    assert torch.equal(logits, pico.logits(resized, length))
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(extended, length + 1)


def assert_equal_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Assert that names, their order, types and values are equal."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def config_without_path(model: Any) -> dict[str, Any]:
    """Return the settings of a model but the folder that it was loaded from."""
    settings: dict[str, Any] = model.config.to_dict()
    del settings["_name_or_path"]
    return settings


def test_extend_model_keeps_module_attributes(make_pico: MakePico) -> None:
    model = make_pico("roberta").load()
    table = model.roberta.embeddings.position_embeddings
    table.weight.requires_grad_(False)
    extend_model(model, to=NEW)
    assert model.roberta.embeddings.position_embeddings is table
    assert table.num_embeddings == len(table.weight) == NEW + 2
    assert table.padding_idx == 1
    assert isinstance(table.weight, torch.nn.Parameter)
    assert not table.weight.requires_grad


def test_extend_model_keeps_tied_tables_tied(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    model: Any = transformers.BartModel.from_pretrained(folder)
    model.decoder.embed_positions.weight = model.encoder.embed_positions.weight
    extend_model(model, to=NEW)
    assert model.decoder.embed_positions.weight is model.encoder.embed_positions.weight
    assert len(model.encoder.embed_positions.weight) == NEW + 2
    pico.logits(model, NEW)


def test_extend_model_updates_copies_of_the_config() -> None:
    config = transformers.ProphetNetConfig(
        hidden_size=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        vocab_size=32,
        max_position_embeddings=17,
    )
    config.num_encoder_attention_heads = 2
    config.num_decoder_attention_heads = 2
    model: Any = transformers.ProphetNetModel(config)
    extend_model(model, to=NEW)
    assert model.config.max_position_embeddings == NEW + 2
    assert model.encoder.config.max_position_embeddings == NEW + 2


def test_extend_model_keeps_the_config_of_another_part_of_the_same_class() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "intermediate_size": 8,
        "max_position_embeddings": 16,
    }
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**sizes),
        transformers.BertConfig(**sizes, is_decoder=True, add_cross_attention=True),
    )
    model: Any = transformers.EncoderDecoderModel(config)
    extend_model(model, to=NEW, part="encoder")
    assert len(model.encoder.embeddings.position_embeddings.weight) == NEW
    assert model.encoder.config.max_position_embeddings == NEW
    assert len(model.decoder.bert.embeddings.position_embeddings.weight) == 16
    assert model.decoder.config.max_position_embeddings == 16


def test_extend_model_keeps_attributes_set_after_loading(make_pico: MakePico) -> None:
    model = make_pico("gpt2").load()
    model.transformer.drop.p = 0.25
    model.gradient_checkpointing_enable()
    model.config.resid_pdrop = 0.9
    extend_model(model, to=NEW)
    assert model.transformer.drop.p == 0.25
    assert model.transformer.gradient_checkpointing
    assert model.transformer.h[0].mlp.dropout.p == 0.1
    assert model.config.resid_pdrop == 0.9


@pytest.mark.parametrize(
    "settings",
    [
        {"to": 0},
        {"to": 8, "method": "copy"},
        {"to": 40, "method": "linear", "keep_first": 16},
    ],
)
def test_extend_model_changes_nothing_if_it_fails(
    settings: dict[str, Any], make_pico: MakePico
) -> None:
    model = make_pico("bert").load()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()

    with pytest.raises(ResizeError):
        extend_model(model, **settings)

    assert_equal_tensors(model.state_dict(), state)
    assert model.config.to_dict() == config
    pico.logits(model, 16)


class CustomModel(transformers.GPT2Model):  # type: ignore[no-untyped-call]
    """A model class outside transformers."""


SMALL_GPT2 = transformers.GPT2Config(**pico.CONFIGS["gpt2"])


def make_mamba() -> Any:
    config = transformers.MambaConfig(hidden_size=8, vocab_size=16, num_hidden_layers=1)
    return transformers.MambaModel(config)


def make_on_meta_device() -> Any:
    model: Any = transformers.GPT2Model(SMALL_GPT2)
    return model.to("meta")


def make_wrapped() -> Any:
    wrapped: Any = torch.nn.ModuleDict({"inner": transformers.GPT2Model(SMALL_GPT2)})
    wrapped.config = SMALL_GPT2
    return wrapped


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (make_mamba, UnsupportedModelError, "uses no position embeddings"),
        (make_wrapped, CheckpointError, "This ModuleDict: no position table found.*not a wrapper"),
        (make_on_meta_device, ResizeError, "meta device"),
        (lambda: torch.nn.Linear(2, 2), CheckpointError, "Linear has no transformers config"),
    ],
)
def test_extend_model_rejects_unsupported_models(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    model = make()
    with pytest.raises(error, match=message):
        extend_model(model, to=NEW)
    assert SMALL_GPT2.n_positions == 16


def test_extend_model_rejects_and_keeps_a_model_class_outside_transformers() -> None:
    model = CustomModel(SMALL_GPT2)
    with pytest.raises(CheckpointError, match="CustomModel is not a transformers class"):
        extend_model(model, to=NEW)
    assert SMALL_GPT2.n_positions == 16
    assert len(model.wpe.weight) == 16


def test_extend_model_supports_removed_and_replaced_modules(make_pico: MakePico) -> None:
    model = make_pico("gpt2").load()
    del model.transformer.h[1:]
    model.transformer.h[0].attn = torch.nn.Identity()
    extend_model(model, to=NEW, method="linear")
    assert len(model.transformer.wpe.weight) == NEW
