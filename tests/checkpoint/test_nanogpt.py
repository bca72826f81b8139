"""nanoGPT checkpoints, converted to equivalent GPT-2 checkpoints of transformers."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from ctxextend import CheckpointError, plan_resize, resize
from ctxextend.checkpoint.nanogpt import from_nanogpt, read_characters
from ctxextend.evaluation.eval_model import open_eval_model
from ctxextend.settings import CheckpointRef
from tests.helpers import pico
from tests.helpers.nanogpt import ARGUMENTS, OLD, make
from tests.helpers.notes import text_of, texts
from tests.helpers.trainings import invoke, succeed, unwrapped

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
    state = {}
    for name, tensor in content["model"].items():
        is_mask = name.endswith(".attn.bias")
        if masks or not is_mask:
            state[prefix + name] = tensor
    config = convert(content | {"model": state}, tmp_path)
    assert_same_logits(content, tmp_path / "out")
    # The output equals a checkpoint saved with transformers.
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "saved")
    written = pico.tensor_bytes(tmp_path / "out")
    saved = pico.tensor_bytes(tmp_path / "saved")
    assert written == saved
    stated = pico.config_of(tmp_path / "saved")
    found = {key: stated.get(key) for key in config}
    assert found == config
    assert config["tie_word_embeddings"] is True
    assert config["activation_function"] == "gelu"
    rates = {config[f"{part}_pdrop"] for part in ("resid", "embd", "attn")}
    assert rates == {0.1}


@pytest.mark.parametrize("by_file", [True, False])
def test_resize_of_a_nanogpt_checkpoint_to_more_positions(by_file: bool, tmp_path: Path) -> None:
    content = make()
    out_dir = tmp_path / "out-shakespeare"
    out_dir.mkdir()
    torch.save(content, out_dir / "ckpt.pt")
    (out_dir / "log.txt").write_text("loss")
    untouched = pico.contents(out_dir)
    source = out_dir / "ckpt.pt" if by_file else out_dir
    plan = plan_resize(source, to=NEW)
    assert "gelu_new" in text_of(plan, "source")
    assert plan.output.path == Path("out-shakespeare-40")
    assert plan.plan.model_type == "gpt2"
    assert texts(plan, level="warning") == ()
    output = plan.execute().output
    assert pico.contents(out_dir) == untouched
    files = {"config.json", "model.safetensors", "README.md", "ctxextend.yaml"}
    if not by_file:
        files.add("log.txt")
    assert set(pico.contents(output)) == files
    assert_same_logits(content, output)
    loaded = pico.Pico(output, transformers.GPT2LMHeadModel).load()
    assert pico.logits(loaded, NEW).isfinite().all()
    learned = content["model"]["transformer.wpe.weight"]
    table = loaded.transformer.wpe.weight[: 2 * OLD]
    repeated = torch.cat([learned, learned])
    assert torch.equal(table, repeated)
    resize(out_dir, to=NEW, output=output, force=True)


def test_resize_rejects_a_nanogpt_checkpoint_next_to_a_config(tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "ckpt.pt")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match="nanoGPT.*separate folder"):
        resize(tmp_path / "ckpt.pt", to=NEW, output="out")


@pytest.mark.parametrize("change", ["untied", "copied", "dropped"])
def test_resize_of_a_nanogpt_checkpoint_ties_a_head_that_equals_the_embeddings(
    change: str, tmp_path: Path
) -> None:
    content = make()
    state = content["model"]
    if change == "untied":
        state["lm_head.weight"] = torch.randn(32, 8) / 4
    elif change == "copied":
        state["lm_head.weight"] = state["lm_head.weight"].clone()
    kept = dict(state)
    if change == "dropped":
        del kept["lm_head.weight"]
    config = convert(content | {"model": kept}, tmp_path)
    tensors = pico.tensor_bytes(tmp_path / "out")
    is_tied = change != "untied"
    assert config["tie_word_embeddings"] == is_tied
    assert ("lm_head.weight" not in tensors) == is_tied
    assert_same_logits(content, tmp_path / "out")


def test_from_nanogpt_sets_the_end_of_text_of_gpt2s_vocabulary() -> None:
    for vocab_size, end in ((50304, 50256), (32, None)):
        content = make(vocab_size=vocab_size)
        config, _ = from_nanogpt(content, Path("ckpt.pt"))
        assert config["vocab_size"] == vocab_size
        assert config["bos_token_id"] == end
        assert config["eos_token_id"] == end


def test_from_nanogpt_accepts_old_arguments_without_bias() -> None:
    content = make()
    arguments = dict(content["model_args"])
    arguments.pop("bias", None)
    arguments.pop("dropout", None)
    tensors = {name: tensor.bfloat16() for name, tensor in content["model"].items()}
    old_content = content | {"model_args": arguments, "model": tensors}
    config, tensors = from_nanogpt(old_content, Path("ckpt.pt"))
    assert config["resid_pdrop"] == 0
    assert config["dtype"] == "bfloat16"
    assert tensors["transformer.ln_f.bias"].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layer": None}, "'n_layer' = None"),
        ({"n_layer": 3}, "does not contain transformer.h.2.ln_1.weight"),
        ({"n_layer": 1}, "'transformer.h.1.ln_1.weight', which"),
        ({"n_head": 3}, "'n_head' = 3"),
        ({"n_embd": 8.0}, "'n_embd' = 8.0"),
        ({"n_embd": 16}, r"wte.weight has shape \(32, 8\), model_args require \(32, 16\)"),
        ({"block_size": 0}, "'block_size' = 0"),
        ({"vocab_size": "x" * 99}, "'vocab_size' = 'xxx"),
        ({"bias": 1}, "'bias' = 1"),
        ({"bias": False}, "contains transformer.h.0.ln_1.bias"),
        ({"dropout": 1.5}, "'dropout' = 1.5"),
        ({"use_relu": True}, "'use_relu' = True"),
    ],
)
def test_from_nanogpt_rejects_arguments_that_do_not_match(
    arguments: dict[str, Any], message: str
) -> None:
    content = make()
    content["model_args"] |= arguments
    with pytest.raises(CheckpointError, match=message) as caught:
        from_nanogpt(content, Path("ckpt.pt"))
    assert caught.value.message.startswith("ckpt.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("transformer.wte.weight"),
            "does not contain transformer.wte.weight",
        ),
        (
            lambda state: state.pop("transformer.ln_f.bias"),
            "does not contain transformer.ln_f.bias",
        ),
        (
            lambda state: state.update({"transformer.h.0.extra": torch.ones(1)}),
            "'transformer.h.0.extra', which",
        ),
        (lambda state: state.update({"x": 3}), "'x' is of type int"),
        (lambda state: state.clear(), "contains no named tensors"),
    ],
)
def test_from_nanogpt_rejects_unexpected_tensors(
    change: Callable[[Any], Any], message: str
) -> None:
    content = make()
    change(content["model"])
    with pytest.raises(CheckpointError, match=message):
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
    notes = "\n".join(model.notes)
    assert "gelu_new" in notes

    content = make()
    tokens = torch.tensor(ids)
    expected = logits(content["model"], tokens)
    with torch.no_grad():
        output = model.model(tokens[None])
    torch.testing.assert_close(output.logits[0], expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_nanogpt_folder_can_be_evaluated_compared_and_trained_with_a_tokenizer(
    tmp_path: Path,
) -> None:
    out, meta = write_folder(tmp_path)
    text = ("--data", "text.txt", "--tokenizer", meta)
    evaluated = invoke("evaluate", out, *text, "--measure", "position", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    loss = json.loads(evaluated.stdout)
    assert loss["model_type"] == "gpt2"
    assert loss["kind"] == "causal"
    methods = ("--method", "copy", "--method", "linear")
    compared = succeed("compare", out, "--to", NEW, *text, *methods, "--json")
    rows = json.loads(compared.stdout)["rows"]
    compared_methods = {row["method"] for row in rows}
    assert compared_methods == {"copy", "linear"}
    trained = invoke("train", out, *text, "--steps", 2, "-o", "trained")
    assert trained.exit_code == 0, trained.output
    transformers.GPT2LMHeadModel.from_pretrained("trained")
    done = invoke("evaluate", "trained", "--data", "text.txt", "--measure", "position", "--json")
    # Its recipe states the tokenizer of the model and its base.
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["base"] == str(out)
    succeed("verify", "trained")
    longer = resize(out, to=NEW, output="longer").output
    deep = invoke("verify", longer, "--deep")
    assert "bit-identical to the base's on inputs of" in unwrapped(deep.stdout)
    succeed("evaluate", longer, *text, "--measure", "position")


class WritesFile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("executed"), "")


@pytest.mark.parametrize(
    "content", [{"stoi": WritesFile()}, {"stoi": {"a": "b"}}, {"itos": {}}, None, ["stoi"]]
)
def test_read_characters_rejects_other_pickles_and_executes_no_code(
    content: Any, tmp_path: Path
) -> None:
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(CheckpointError, match="is not a character vocabulary"):
        read_characters(tmp_path / "meta.pkl")
    (tmp_path / "meta.pkl").write_bytes(b"\x80\x04not a pickle")
    with pytest.raises(CheckpointError, match="is not a character vocabulary"):
        read_characters(tmp_path / "meta.pkl")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"Nr" + (400_000_000).to_bytes(4, "little") + b".",
            "its memo index 400,000,000 is too large for 7 bytes",
        ),
        (b"Np400000000\n.", "its memo index 400,000,000 is too large for 13 bytes"),
        (b"Nq\xff.", "its memo index 255 is too large for 4 bytes"),
        (b"N" * 4_000_001, "it is larger than 4,000,000 bytes"),
    ],
)
def test_read_characters_rejects_files_that_need_much_memory(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "meta.pkl").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=f"is not a character vocabulary: UnpicklingError: {message}"
    ):
        read_characters(tmp_path / "meta.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_read_characters_reads_every_protocol_and_many_characters(
    protocol: int, tmp_path: Path
) -> None:
    ids = {chr(0x4E00 + number): number for number in range(2000)}
    meta = {
        "vocab_size": len(ids),
        "itos": {number: char for char, number in ids.items()},
        "stoi": ids,
    }
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta, protocol))
    assert read_characters(tmp_path / "meta.pkl") == ids
