"""nanoGPT checkpoints, converted to equivalent GPT-2 checkpoints of transformers."""

import json
import pickle
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from ctxextend import CheckpointError, plan_resize, resize
from ctxextend.checkpoint.nanogpt import from_nanogpt, read_characters
from ctxextend.lab.eval_model import open_eval_model
from ctxextend.settings import CheckpointRef
from tests.helpers import pico
from tests.helpers.nanogpt import ARGUMENTS, OLD, make
from tests.helpers.notes import text_of, texts
from tests.helpers.time_limit import time_limit
from tests.helpers.trainings import succeed

NEW = 40


def logits(state: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return nanoGPT's logits, from a separate implementation."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        bias = state.get(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        bias = state.get(f"{name}.bias")
        return functional.linear(x, weight, bias)

    embedded = state["transformer.wte.weight"][tokens]
    positions = state["transformer.wpe.weight"][: len(tokens)]
    x = embedded + positions
    for block in ("transformer.h.0", "transformer.h.1"):
        attended = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn")
        heads = attended.reshape(len(x), 3, ARGUMENTS["n_head"], -1)
        q, k, v = heads.permute(1, 2, 0, 3)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined = mixed.transpose(0, 1).reshape(x.shape)
        x = x + linear(joined, f"{block}.attn.c_proj")
        hidden = linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(functional.gelu(hidden), f"{block}.mlp.c_proj")
    return linear(norm(x, "transformer.ln_f"), "lm_head")


def convert(content: Any, folder: Path) -> dict[str, Any]:
    """Convert a checkpoint without changing its length; return the config."""
    checkpoint = folder / "ckpt.pt"
    torch.save(content, checkpoint)
    result = resize(checkpoint, to=OLD, output=folder / "out")
    warning = "The context length already is 16: the output is the same weights as safetensors"
    assert warning in texts(result, level="warning")[0]
    config: dict[str, Any] = pico.config_of(folder / "out")
    return config


def assert_same_logits(content: Any, folder: Path) -> None:
    tokens = torch.arange(16) * 5 % 32
    expected = logits(content["model"], tokens)
    model = pico.Pico(folder, transformers.GPT2LMHeadModel).load()
    with torch.no_grad():
        output = model(tokens[None])
    torch.testing.assert_close(output.logits[0], expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.1


@pytest.mark.parametrize(
    ("bias", "masks", "prefix"),
    [(True, True, ""), (False, False, "_orig_mod."), (False, True, "module._orig_mod.")],
)
def test_resize_of_a_nanogpt_checkpoint_returns_an_equivalent_gpt2(
    bias: bool, masks: bool, prefix: str, tmp_path: Path
) -> None:
    content = make(bias=bias)
    state = {
        prefix + name: tensor
        for name, tensor in content["model"].items()
        if masks or not name.endswith(".attn.bias")
    }
    config = convert(content | {"model": state}, tmp_path)
    assert_same_logits(content, tmp_path / "out")
    # The output equals a checkpoint saved with transformers.
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "saved")
    assert pico.tensor_bytes(tmp_path / "out") == pico.tensor_bytes(tmp_path / "saved")
    saved = pico.config_of(tmp_path / "saved")
    assert {key: saved.get(key) for key in config} == config
    assert config["tie_word_embeddings"] is True
    assert config["activation_function"] == "gelu"
    assert {config[f"{part}_pdrop"] for part in ("resid", "embd", "attn")} == {0.1}


@pytest.mark.parametrize("by_file", [True, False])
def test_resize_of_a_nanogpt_checkpoint_to_more_positions(by_file: bool, tmp_path: Path) -> None:
    content = make()
    out_dir = tmp_path / "out-shakespeare"
    out_dir.mkdir()
    torch.save(content, out_dir / "ckpt.pt")
    (out_dir / "log.txt").write_text("loss")
    plan = plan_resize(out_dir / "ckpt.pt" if by_file else out_dir, to=NEW)
    assert "gelu_new" in text_of(plan, "source")
    assert plan.output.path == Path("out-shakespeare-40")
    assert texts(plan, level="warning") == ()
    output = plan.execute().output
    files = {"config.json", "model.safetensors", "README.md", "ctxextend.yaml"}
    if not by_file:
        files.add("log.txt")
    assert set(pico.contents(output)) == files
    assert_same_logits(content, output)
    resize(out_dir, to=NEW, output=output, force=True)


def test_resize_rejects_a_nanogpt_checkpoint_next_to_a_config(tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "ckpt.pt")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match="nanoGPT.*separate folder"):
        resize(tmp_path / "ckpt.pt", to=NEW, output="out")


def test_from_nanogpt_ties_a_head_that_equals_the_embeddings() -> None:
    content = make()
    state = content["model"]
    embeddings = state["transformer.wte.weight"]
    heads = {"copied": embeddings.clone(), "cast": embeddings.half(), "untied": embeddings + 1}
    for name, head in heads.items():
        changed = content | {"model": state | {"lm_head.weight": head}}
        config, tensors = from_nanogpt(changed, Path("ckpt.pt"))
        is_tied = name == "copied"
        assert config["tie_word_embeddings"] == is_tied
        assert ("lm_head.weight" not in tensors) == is_tied
    del state["lm_head.weight"]
    config, _ = from_nanogpt(content, Path("ckpt.pt"))
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize(("vocab_size", "end"), [(50304, 50256), (32, None)])
def test_from_nanogpt_accepts_old_arguments(vocab_size: int, end: int | None) -> None:
    content = make(vocab_size=vocab_size)
    del content["model_args"]["bias"], content["model_args"]["dropout"]
    config, tensors = from_nanogpt(content, Path("ckpt.pt"))
    assert config["vocab_size"] == vocab_size
    assert config["bos_token_id"] == config["eos_token_id"] == end
    assert config["resid_pdrop"] == 0
    assert tensors["transformer.ln_f.bias"].any()


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_layer": 3},
        {"n_layer": 10**12},
        {"vocab_size": "x" * 10_000},
        {"bias": False},
        {"use_relu": True},
    ],
    ids=str,
)
def test_from_nanogpt_rejects_arguments_that_do_not_match(arguments: dict[str, Any]) -> None:
    content = make()
    content["model_args"] |= arguments
    with time_limit(1), pytest.raises(CheckpointError, match="model_args") as caught:
        from_nanogpt(content, Path("ckpt.pt"))
    assert caught.value.message.startswith("ckpt.pt")
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("transformer.wte.weight"),
        lambda state: state.update({"transformer.h.0.extra": torch.ones(1)}),
        lambda state: state.update({"lm_head.weight": torch.ones(1)}),
    ],
)
def test_from_nanogpt_rejects_unexpected_tensors(change: Callable[[Any], Any]) -> None:
    content = make()
    change(content["model"])
    with pytest.raises(CheckpointError, match=r"ckpt\.pt"):
        from_nanogpt(content, Path("ckpt.pt"))


# ---- evaluated, compared and trained with a separate tokenizer


TEXT = "to be, or not to be: that is the question\n"


def write_folder(folder: Path) -> tuple[Path, Path]:
    """Write the output folder of train.py and the character vocabulary of prepare.py."""
    out = folder / "out"
    meta = folder / "meta.pkl"
    out.mkdir()
    torch.save(make(), out / "ckpt.pt")
    characters = dict(enumerate(sorted(set(TEXT))))
    stoi = {character: number for number, character in characters.items()}
    values = {"vocab_size": len(characters), "itos": characters, "stoi": stoi}
    meta.write_bytes(pickle.dumps(values))
    Path("text.txt").write_text(TEXT * 40)
    return out, meta


def test_open_eval_model_of_a_nanogpt_checkpoint_equals_nanogpt(tmp_path: Path) -> None:
    out, meta = write_folder(tmp_path)
    model = open_eval_model(CheckpointRef(str(out), tokenizer=str(meta)), "fp32")
    text = TEXT[:OLD]
    ids = model.tokenizer.encode(text)
    characters = sorted(set(TEXT))
    assert ids.tolist() == [characters.index(character) for character in text]
    assert model.tokenizer.tokenizer.decode(ids) == text
    assert model.kind == "causal"
    assert model.max_len == OLD
    assert model.tokenizer.num_special == 0
    assert "gelu_new" in "\n".join(model.notes)


@pytest.mark.slow
def test_nanogpt_folder_can_be_compared_trained_and_evaluated_with_a_tokenizer(
    tmp_path: Path,
) -> None:
    out, meta = write_folder(tmp_path)
    text = ("--data", "text.txt", "--tokenizer", meta)
    succeed("evaluate", out, "--to", NEW, *text, "--method", "copy", "--method", "linear")
    succeed("train", out, *text, "--steps", 2, "-o", "trained")
    # Its recipe states the tokenizer of the model and its base.
    done = succeed("evaluate", "trained", "--data", "text.txt", "--measure", "position", "--json")
    assert json.loads(done.stdout)["base"]["source"] == str(out)
    succeed("verify", "trained")
    longer = resize(out, to=NEW, output="longer").output
    succeed("verify", longer, "--deep")


class WritesFile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("executed"), "")


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"stoi": WritesFile()}),
        pickle.dumps({"stoi": {"a": "b"}}),
        b"\x80\x04not a pickle",
        b"Nr" + (400_000_000).to_bytes(4, "little") + b".",  # says that it needs much memory
        b"N" * 4_000_001,
    ],
    ids=range(5),
)
def test_read_characters_rejects_other_pickles_and_executes_no_code(
    data: bytes, tmp_path: Path
) -> None:
    (tmp_path / "meta.pkl").write_bytes(data)
    tracemalloc.start()
    with time_limit(2), pytest.raises(CheckpointError, match="is not a character vocabulary"):
        read_characters(tmp_path / "meta.pkl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000_000
    assert not Path("executed").exists()
