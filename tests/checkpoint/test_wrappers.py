"""Checkpoints saved from a wrapped model, and files of training runs that are no weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend import evaluate, resize, train, verify
from tests.helpers import pico, trainings
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.trainings import invoke

OLD, NEW = 16, 40
WPE = "transformer.wpe.weight"
SINGLE = "model.safetensors"
MakePico = Callable[..., pico.Pico]
Rename = Callable[[str], str]


def inside(part: str, attribute: str) -> Rename:
    """Return the renaming of tensors in a module that is kept in an attribute of its wrapper."""
    return lambda name: name.replace(part, f"{part}{attribute}")


WRAPPERS: dict[str, Rename] = {
    "data parallel": lambda name: f"module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "nested": lambda name: f"module._orig_mod.module.{name}",
    "compiled blocks": inside("h.1.", "_orig_mod."),
}


def rewrite(folder: Path, rename: Rename, form: str) -> None:
    """Save a checkpoint's tensors with other names, in one of four formats."""
    saved = load_file(folder / SINGLE)
    tensors = {rename(name): tensor for name, tensor in saved.items()}
    (folder / SINGLE).unlink()
    if form == "safetensors":
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    elif form == "pickle":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        write_shards(tensors, folder, form)


def write_shards(tensors: dict[str, torch.Tensor], folder: Path, form: str) -> None:
    names = list(tensors)
    stem, suffix = "model", "safetensors"
    if form == "pickled shards":
        stem, suffix = "pytorch_model", "bin"
    weight_map = dict[str, str]()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"{stem}-{number:05}-of-00002.{suffix}"
        content = {name: tensors[name] for name in part}
        if suffix == "bin":
            torch.save(content, folder / shard)
        else:
            save_file(content, folder / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 7}, "weight_map": weight_map}
    pico.write_json(folder / f"{stem}.{suffix}.index.json", index)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("form", ["safetensors", "shards", "pickle", "pickled shards"])
def test_resize_of_a_wrapped_model_writes_plain_names(
    wrapper: str, form: str, make_pico: MakePico
) -> None:
    source = make_pico("gpt2")
    plain = pico.tensor_bytes(source.folder)
    rewrite(source.folder, WRAPPERS[wrapper], form)
    output = resize(source.folder, to=NEW, output="out").output
    written = pico.tensor_bytes(output)
    assert written.keys() == plain.keys()
    changed = [name for name in plain if written[name] != plain[name]]
    assert changed == [WPE]
    source.load(output)
    if "shards" in form:
        index = pico.read_json(output / "model.safetensors.index.json")
        assert index["weight_map"].keys() == plain.keys()
        total = sum(len(data) for _, _, data in written.values())
        assert index["metadata"]["total_size"] == total
    assert verify(output, source.folder).passed


def test_verify_compares_an_output_with_the_plain_base_of_its_source(make_pico: MakePico) -> None:
    plain = make_pico("gpt2", "plain").folder
    wrapped = make_pico("gpt2", "wrapped").folder
    rewrite(wrapped, WRAPPERS["compiled"], "safetensors")
    output = resize(wrapped, to=NEW, output="out").output
    assert verify(output, plain).passed
    tensors = load_file(plain / SINGLE)
    tensors["transformer.ln_f.bias"] += 1
    save_file(tensors, plain / SINGLE, metadata={"format": "pt"})
    assert "transformer.ln_f.bias differs" in str(verify(output, plain).checks)


def test_verify_deep_compares_outputs_with_a_wrapped_base(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    rewrite(folder, WRAPPERS["compiled"], "safetensors")
    output = resize(folder, to=NEW, method="copy", output="out").output
    assert verify(output, deep=True).passed
    tensors = load_file(output / SINGLE)
    tensors["transformer.ln_f.bias"] += 1
    save_file(tensors, output / SINGLE, metadata={"format": "pt"})
    outputs = verify(output, deep=True).checks[-1]
    assert (outputs.name, outputs.status) == ("outputs", "failed")


def loss_by_position(source: Path) -> object:
    """Return what `evaluate` measures at each position of book.txt."""
    evaluation = evaluate(source, "book.txt", measure=["position"])
    return [score.mean for score in evaluation.scores]


def test_train_reads_a_wrapped_model_as_the_plain_one() -> None:
    plain = trainings.make_source(Path("plain"), "gpt2")
    wrapped = trainings.make_source(Path("wrapped"), "gpt2")
    rewrite(wrapped, WRAPPERS["compiled"], "safetensors")
    before = (wrapped / SINGLE).read_bytes()
    trainings.write_book(400)
    from_plain = train(plain, "book.txt", 2, output="plain-out", trainable="all")
    from_wrapped = train(wrapped, "book.txt", 2, output="wrapped-out", trainable="all")
    trained = pico.tensor_bytes(from_plain.output)
    assert pico.tensor_bytes(from_wrapped.output) == trained
    assert (wrapped / SINGLE).read_bytes() == before


def test_evaluate_reads_the_file_that_was_named_and_not_another_one_in_its_folder() -> None:
    folder = trainings.make_source(Path("model"), "gpt2")
    trainings.write_book(400)
    saved = load_file(folder / SINGLE)
    other = {name: tensor + 0.5 for name, tensor in saved.items()}
    torch.save({"state_dict": other}, folder / "last.ckpt")
    copied = shutil.copytree(folder, "other")
    save_file(other, Path(copied) / SINGLE, metadata={"format": "pt"})

    named = loss_by_position(folder / "last.ckpt")
    assert named == loss_by_position(Path("other"))
    assert named != loss_by_position(folder)


def test_verify_fails_if_the_names_of_an_output_have_a_prefix(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    output = resize(folder, to=NEW, output="out").output
    rewrite(output, WRAPPERS["compiled"], "safetensors")
    checks = verify(output, folder).checks
    assert "names of tensors have _orig_mod., which transformers does not load" in str(checks)
    assert not checks[0].passed


def test_resize_keeps_the_prefix_that_a_model_has_itself() -> None:
    source = make_rotary(num_hidden_layers=1, max_position_embeddings=OLD)
    plain = pico.tensor_bytes(source.folder)
    assert pico.tensor_bytes(resize(source.folder, to=NEW, output="out").output) == plain
    rewrite(source.folder, WRAPPERS["compiled"], "safetensors")
    output = resize(source.folder, to=NEW, output="from-wrapped").output
    assert pico.tensor_bytes(output) == plain
    assert verify(output, source.folder).passed


@pytest.mark.parametrize(
    ("prefix", "others", "message"),
    [
        ("model.", {}, f"It has model.{WPE}, which transformers does not load."),
        (
            "base_model.model.",
            {"base_model.model.transformer.h.0.attn.c_attn.lora_A.default.weight": (2, 8)},
            "merge_and_unload()",
        ),
        ("", {f"_orig_mod.{WPE}": (OLD, 8)}, f"contains '{WPE}' twice"),
    ],
)
def test_resize_refuses_other_names(
    prefix: str, others: dict[str, tuple[int, int]], message: str, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    rewrite(folder, lambda name: f"{prefix}{name}", "safetensors")
    pico.add_tensors(folder, {name: torch.ones(shape) for name, shape in others.items()})
    done = invoke("resize", folder, "--to", NEW)
    assert done.exit_code == 1
    assert message in done.stderr


# ---- containers of training runs


def states(source: pico.Pico, prefix: str = "") -> dict[str, torch.Tensor]:
    model = source.load()
    return {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}


CONTAINERS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], Any]]] = {
    "lightning": (
        "last.ckpt",
        lambda state: {"pytorch-lightning_version": "2.5", "state_dict": state, "epoch": 1},
    ),
    "deepspeed": (
        "mp_rank_00_model_states.pt",
        lambda state: {
            "module": state,
            "ds_version": "0.18",
            "mp_world_size": 1,
            "ds_config": {"train": 1},
        },
    ),
    "joined": ("joined.bin", lambda state: {"model": state}),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_resize_reads_the_model_in_a_container(kind: str, prefix: str, make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    plain = pico.tensor_bytes(source.folder)
    name, contain = CONTAINERS[kind]
    content = contain(states(source, prefix))
    torch.save(content, source.folder / name)
    (source.folder / SINGLE).unlink()
    result = resize(source.folder / name, to=NEW, output="out")
    output = result.output
    written = pico.tensor_bytes(output)
    assert written.keys() == plain.keys()
    changed = [tensor for tensor in plain if written[tensor] != plain[tensor]]
    assert changed == [WPE]
    source.load(output)
