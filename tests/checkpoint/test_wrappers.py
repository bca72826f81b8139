"""Checkpoints saved from a wrapped model, and files of training runs that are no weights."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend import evaluate, resize, verify
from tests.helpers import pico, trainings
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
    assert "names of tensors have parts of a wrapper" in str(checks)
    assert not checks[0].passed


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
