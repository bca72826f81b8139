import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from ctxextend.checkpoints.nanogpt import from_nanogpt, is_nanogpt
from ctxextend.checkpoints.pytorch_file import Unpickled, unpickle
from ctxextend.errors import CheckpointError
from tests import pico
from tests.test_pytorch_file import open_torch_file

ARGUMENTS: dict[str, Any] = {
    **{"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 16, "bias": True, "vocab_size": 32, "dropout": 0.1},
}


class Norm(nn.Module):
    """nanoGPT's LayerNorm: its bias may be absent."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(width) / 5)
        self.bias = nn.Parameter(torch.randn(width) / 5) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Causal self-attention, written out; with the mask as a buffer as nanoGPT has it without flash attention."""

    def __init__(self, width: int, heads: int, bias: bool, length: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.heads = heads
        self.register_buffer("bias", torch.ones(length, length).tril().view(1, 1, length, length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, width = x.shape
        q, k, v = self.c_attn(x).reshape(length, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
        scores = q @ k.mT / math.sqrt(width // self.heads)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return self.c_proj(mixed.transpose(0, 1).reshape(length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, length: int) -> None:
        super().__init__()
        self.ln_1 = Norm(width, bias)
        self.attn = Attention(width, heads, bias, length)
        self.ln_2 = Norm(width, bias)
        parts = {"c_fc": nn.Linear(width, 4 * width, bias=bias), "c_proj": nn.Linear(4 * width, width, bias=bias)}
        self.mlp = nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x))))  # type: ignore[no-any-return]


class NanoGpt(nn.Module):
    """What nanoGPT computes, with its names."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        width, length = sizes["n_embd"], sizes["block_size"]
        blocks = [Block(width, sizes["n_head"], sizes["bias"], length) for _ in range(sizes["n_layer"])]
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(sizes["vocab_size"], width),
            "wpe": nn.Embedding(length, width),
            "h": nn.ModuleList(blocks),
            "ln_f": Norm(width, sizes["bias"]),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(width, sizes["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](torch.arange(len(tokens)))
        for block in self.transformer["h"].children():
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))  # type: ignore[no-any-return]


def checkpoint(model: NanoGpt, **changes: Any) -> dict[str, Any]:
    """What train.py saves."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    arguments = ARGUMENTS | changes
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "model_args": arguments,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.5),
        "config": {"out_dir": "out", "learning_rate": 6e-4, "compile": True, **arguments},
    }


def make(**changes: Any) -> tuple[NanoGpt, dict[str, Any]]:
    torch.manual_seed(0)
    model = NanoGpt(**(ARGUMENTS | changes))
    return model, checkpoint(model, **changes)


def convert(content: Any, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Take it through a file, as a user does, and into a folder for transformers."""
    torch.save(content, folder / "ckpt.pt")
    loaded = unpickle(folder / "ckpt.pt")
    assert is_nanogpt(loaded.content)
    config, tensors = from_nanogpt(loaded)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return config, tensors


def assert_same_logits(model: NanoGpt, folder: Path) -> None:
    tokens = torch.arange(16) * 5 % 32
    theirs = pico.Pico(folder, transformers.GPT2LMHeadModel).load()
    with torch.no_grad():
        ours = model.train(False)(tokens)
        torch.testing.assert_close(theirs(tokens[None]).logits[0], ours, atol=1e-6, rtol=0)
    assert ours.std() > 0.1


@pytest.mark.parametrize(
    ("bias", "masks", "prefix"), [(True, True, ""), (False, False, "_orig_mod."), (False, True, "module._orig_mod.")]
)
def test_from_nanogpt_gives_a_gpt2_that_computes_the_same(bias: bool, masks: bool, prefix: str, tmp_path: Path) -> None:
    model, content = make(bias=bias)
    state = {prefix + name: t for name, t in content["model"].items() if masks or not name.endswith(".attn.bias")}
    config, _ = convert(content | {"model": state}, tmp_path)
    assert config["tie_word_embeddings"]
    assert_same_logits(model, tmp_path)


def test_from_nanogpt_gives_what_transformers_saves(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    config, _ = convert(make(bias=False)[1], tmp_path / "ours")
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    ours, theirs = (pico.tensor_bytes(tmp_path / name) for name in ("ours", "theirs"))
    assert ours == theirs
    stated = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert all(stated.get(key) == value for key, value in config.items())


def test_from_nanogpt_keeps_a_head_that_is_not_the_embeddings(tmp_path: Path) -> None:
    model, content = make()
    model.lm_head.weight = nn.Parameter(torch.randn(32, 8) / 4)
    config, tensors = convert(content | {"model": model.state_dict()}, tmp_path)
    assert not config["tie_word_embeddings"]
    assert list(tensors)[-1] == "lm_head.weight"
    assert_same_logits(model, tmp_path)


@pytest.mark.parametrize("change", ["copied", "dropped"])
def test_from_nanogpt_ties_a_head_that_equals_the_embeddings(change: str, tmp_path: Path) -> None:
    model, content = make()
    head = content["model"].pop("lm_head.weight")
    if change == "copied":
        content["model"]["lm_head.weight"] = head.clone()
    config, tensors = convert(content, tmp_path)
    assert config["tie_word_embeddings"]
    assert "lm_head.weight" not in tensors
    assert_same_logits(model, tmp_path)


def test_from_nanogpt_writes_the_config_of_the_arguments() -> None:
    _, content = make(vocab_size=50304, dropout=0)
    config, tensors = from_nanogpt(Unpickled(Path("ckpt.pt"), content))
    assert config == {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu",
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        **{"bos_token_id": 50256, "eos_token_id": 50256},
        "dtype": "float32",
        "layer_norm_epsilon": 1e-5,
        **{"n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 16},
        "tie_word_embeddings": True,
        "vocab_size": 50304,
    }
    assert next(iter(tensors)) == "transformer.wte.weight"
    assert from_nanogpt(Unpickled(Path("ckpt.pt"), make()[1]))[0]["eos_token_id"] is None


def test_from_nanogpt_takes_arguments_from_before_biases_could_be_left_out() -> None:
    _, content = make()
    old = {name: value for name, value in content["model_args"].items() if name not in ("bias", "dropout")}
    content["model"] = {name: tensor.bfloat16() for name, tensor in content["model"].items()}
    config, tensors = from_nanogpt(Unpickled(Path("ckpt.pt"), content | {"model_args": old}))
    assert (config["resid_pdrop"], config["dtype"]) == (0, "bfloat16")
    assert tensors["transformer.ln_f.bias"].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layer": None}, "'n_layer' = None"),
        ({"n_layer": 3}, "no transformer.h.2.ln_1.weight"),
        ({"n_layer": 1}, "'transformer.h.1.ln_1.weight', which"),
        ({"n_head": 3}, "'n_head' = 3"),
        ({"n_embd": 8.0}, "'n_embd' = 8.0"),
        ({"n_embd": 16}, r"wte.weight is \(32, 8\); by model_args it should be \(32, 16\)"),
        ({"block_size": 0}, "'block_size' = 0"),
        ({"vocab_size": "x" * 99}, "'vocab_size' = 'xxx"),
        ({"bias": 1}, "'bias' = 1"),
        ({"bias": False}, "holds transformer.h.0.ln_1.bias"),
        ({"dropout": 1.5}, "'dropout' = 1.5"),
        ({"use_relu": True}, "'use_relu' = True"),
    ],
)
def test_from_nanogpt_refuses_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    _, content = make()
    content["model_args"] |= arguments
    with pytest.raises(CheckpointError, match=message) as caught:
        from_nanogpt(Unpickled(Path("ckpt.pt"), content))
    assert caught.value.message.startswith("ckpt.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("transformer.wte.weight"), "no transformer.wte.weight"),
        (lambda state: state.pop("transformer.ln_f.bias"), "no transformer.ln_f.bias"),
        (lambda state: state.update({"transformer.h.0.extra": torch.ones(1)}), "'transformer.h.0.extra', which"),
        (lambda state: state.update({"x": 3}), "'x' is of type int"),
        (lambda state: state.clear(), "holds no tensors"),
    ],
)
def test_from_nanogpt_refuses_other_tensors(change: Callable[[Any], Any], message: str) -> None:
    _, content = make()
    change(content["model"])
    with pytest.raises(CheckpointError, match=message):
        from_nanogpt(Unpickled(Path("ckpt.pt"), content))


def test_is_nanogpt_knows_others() -> None:
    no_tensors = {"model": torch.ones(1), "model_args": {"block_size": 1}}
    others: list[Any] = [None, [], {"model": {}}, {"model": {}, "model_args": ["block_size"]}, no_tensors]
    for content in others:
        assert not is_nanogpt(content)


def test_a_nanogpt_checkpoint_opens_as_a_training_checkpoint_too(tmp_path: Path) -> None:
    torch.save(make()[1], tmp_path / "ckpt.pt")
    assert "lm_head.weight" not in open_torch_file(tmp_path / "ckpt.pt").tensors
