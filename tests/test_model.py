"""The in-memory route, which must equal the file route bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import CheckpointError, ResizeError, UnsupportedModelError, extend_model, resize
from ctxextend.tables.methods import METHODS
from tests import pico

MakePico = Callable[..., pico.Pico]
NEW = 40
REQUESTS: list[dict[str, Any]] = [
    *({"to": NEW, **pico.resize_settings(method)} for method in METHODS),
    {"to": NEW, "method": "hierarchical:alpha=0.25"},
    {"to": NEW, "method": "random:seed=3"},
    {"to": NEW, "method": "linear", "keep_first": 3, "drop_last": 2},
    {"to": NEW, "method": "sinusoidal:scope=all"},
    {"to": 7},
    {"to": 16},
]
DTYPES = [torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("model_type", "request_", "dtype"),
    [
        *(("gpt2", request_, torch.float32) for request_ in REQUESTS),
        *(("gpt2", {"to": NEW, "method": method}, dtype) for method in ("copy", "linear") for dtype in DTYPES),
        *((encoder, {"to": NEW, "method": "linear"}, torch.float32) for encoder in ("bert", "roberta")),
    ],
    ids=str,
)
def test_extend_model_equals_the_file_route(
    model_type: str, request_: dict[str, Any], dtype: torch.dtype, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type, dtype=dtype)
    resize(source.folder, output=tmp_path / "out", **request_)
    theirs, ours = source.load(tmp_path / "out"), source.load()
    extend_model(ours, **request_)
    expected, got = theirs.state_dict(), ours.state_dict()
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert value.dtype == got[name].dtype == dtype
        assert torch.equal(got[name], value), name
    for (name, value), (other_name, other) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == other_name
        assert torch.equal(value, other)
        assert value.dtype == other.dtype
    assert ours.config.to_dict() | {"_name_or_path": ""} == theirs.config.to_dict() | {"_name_or_path": ""}
    length = request_["to"]
    assert torch.equal(pico.logits(ours, length), pico.logits(theirs, length))
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(ours, length + 1)


def test_extend_model_keeps_what_the_module_was(make_pico: MakePico) -> None:
    model = make_pico("roberta").load()
    table = model.roberta.embeddings.position_embeddings
    table.weight.requires_grad_(False)
    extend_model(model, to=NEW)
    assert model.roberta.embeddings.position_embeddings is table
    assert table.num_embeddings == len(table.weight) == NEW + 2
    assert table.padding_idx == 1
    assert isinstance(table.weight, torch.nn.Parameter)
    assert not table.weight.requires_grad


def test_extend_model_of_tables_that_are_one_keeps_them_one(tmp_path: Path) -> None:
    model: Any = transformers.BartModel.from_pretrained(pico.make_bart(tmp_path / "bart"))
    model.decoder.embed_positions.weight = model.encoder.embed_positions.weight
    extend_model(model, to=NEW)
    assert model.decoder.embed_positions.weight is model.encoder.embed_positions.weight
    assert len(model.encoder.embed_positions.weight) == NEW + 2
    pico.logits(model, NEW)


def test_extend_model_changes_copies_of_the_config_too() -> None:
    config = transformers.ProphetNetConfig(
        hidden_size=8, num_encoder_layers=1, num_decoder_layers=1, vocab_size=32, max_position_embeddings=17
    )
    config.num_encoder_attention_heads = config.num_decoder_attention_heads = 2
    model: Any = transformers.ProphetNetModel(config)
    extend_model(model, to=NEW)
    assert {model.config.max_position_embeddings, model.encoder.config.max_position_embeddings} == {NEW + 2}


def test_extend_model_keeps_what_was_set_after_loading(make_pico: MakePico) -> None:
    model = make_pico("gpt2").load()
    model.transformer.drop.p = 0.25
    model.gradient_checkpointing_enable()
    model.config.resid_pdrop = 0.9
    extend_model(model, to=NEW)
    assert model.transformer.drop.p == 0.25
    assert model.transformer.gradient_checkpointing
    assert model.transformer.h[0].mlp.dropout.p == 0.1
    assert model.config.resid_pdrop == 0.9


def test_extend_model_draws_no_random_numbers() -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    model = transformers.IBertModel(transformers.IBertConfig(**sizes, intermediate_size=8, max_position_embeddings=18))
    state = torch.random.get_rng_state()
    extend_model(model, to=NEW)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_extend_model_that_fails_changes_nothing(make_pico: MakePico) -> None:
    model = make_pico("bert").load()
    before = {name: value.clone() for name, value in model.state_dict().items()}, model.config.to_dict()
    for request_ in ({"to": 0}, {"to": 8, "method": "copy"}, {"to": 40, "keep_first": 16}):
        with pytest.raises(ResizeError):
            extend_model(model, **request_)
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == before[1]
    pico.logits(model, 16)


class Mine(transformers.GPT2Model):  # type: ignore[no-untyped-call]
    """A model class of a user's own."""


SMALL_GPT2 = transformers.GPT2Config(**pico.CONFIGS["gpt2"])


def make_llama() -> Any:
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 16}
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes, num_hidden_layers=1))


def make_wrapped() -> Any:
    wrapped: Any = torch.nn.ModuleDict({"inner": transformers.GPT2Model(SMALL_GPT2)})
    wrapped.config = SMALL_GPT2
    return wrapped


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (make_llama, UnsupportedModelError, "uses rotary"),
        (make_wrapped, CheckpointError, "This ModuleDict: no position table found.*not a wrapper"),
        (lambda: transformers.GPT2Model(SMALL_GPT2).to("meta"), ResizeError, "meta device"),  # type: ignore[arg-type]
        (lambda: Mine(SMALL_GPT2), CheckpointError, "Mine is no class of transformers"),
        (lambda: torch.nn.Linear(2, 2), CheckpointError, "A Linear holds no transformers config"),
        (lambda: None, CheckpointError, "holds no transformers config"),
    ],
)
def test_extend_model_refuses_what_it_cannot_follow(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    model = make()
    with pytest.raises(error, match=message):
        extend_model(model, to=NEW)
    assert SMALL_GPT2.n_positions == 16
    assert not isinstance(model, Mine) or len(model.wpe.weight) == 16


def test_extend_model_leaves_out_what_was_taken_out_of_a_model(make_pico: MakePico) -> None:
    model = make_pico("gpt2").load()
    del model.transformer.h[1:]
    model.transformer.h[0].attn = torch.nn.Identity()
    extend_model(model, to=NEW, method="linear")
    assert len(model.transformer.wpe.weight) == NEW
