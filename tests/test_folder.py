import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import Source
from ctxextend.errors import CheckpointError
from tests import pico


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(Source(str(folder), "folder", folder, folder.name))


def test_open_checkpoint_sorts_files_into_copied_and_omitted(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    kept = ["vocab.txt", "1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "LICENSE"]
    stale = [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "model.onnx",
        "onnx/model.onnx",
        "onnx/quantized/model.onnx",
        "openvino/openvino_model.xml",
        "coreml/text/model.mlpackage",
        "x.gguf",
        "M.GGUF",
        "exports/model.onnx",
        "quantized/m.Q4.gguf",
        "unity/model.tflite",
        "x.tflite",
        "model.fp16.safetensors",
        "optimizer.pt",
        "checkpoint-500/model.safetensors",
        ".git",
        "1_Pooling/.DS_Store",
    ]
    for name in (*kept, *(name for name in stale if name != ".git")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_bytes(b"x")
    checkpoint = opened(folder)
    assert set(kept) <= set(checkpoint.copied)
    assert set(checkpoint.omitted) == set(stale)
    assert all(checkpoint.omitted.values())


def test_open_checkpoint_finds_a_transformer_in_a_sub_folder(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    root = pico.nest(make_pico("bert").folder, tmp_path / "sentence")
    checkpoint = opened(root)
    assert checkpoint.config_file == "0_Transformer/config.json"
    assert next(iter(checkpoint.weights)) == "0_Transformer/model.safetensors"
    assert "modules.json" in checkpoint.copied
    (root / "config.json").write_text('{"__version__": "2.0.0"}')  # as old folders have it
    assert opened(root).config_file == "0_Transformer/config.json"


@pytest.mark.parametrize("content", ["../elsewhere", "/etc", "", {}, [1]])
def test_open_checkpoint_refuses_modules_that_are_none_or_outside(content: object, tmp_path: Path) -> None:
    modules = [{"path": content, "type": "x.Transformer"}] if isinstance(content, str) else content
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules\.json (names no transformer in a sub-folder|is not a list)"):
        opened(tmp_path)


def test_open_checkpoint_without_config_or_weights(make_pico: Callable[..., pico.Pico], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        opened(tmp_path)
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        opened(folder)


def test_open_checkpoint_with_foreign_weights_alone_says_what_to_type(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(CheckpointError, match="holds tensorflow weights alone, which transformers 5") as caught:
        opened(folder)
    advice, command = (caught.value.hint or "").split(", then python -c ")
    assert advice == 'Convert them with transformers 4: pip install "transformers<5" tensorflow tf-keras torch'
    code = f"import transformers; transformers.GPT2LMHeadModel.from_pretrained({str(folder)!r}, from_tf=True)"
    assert shlex.split(command) == [f"{code}.save_pretrained('pico-gpt2-safetensors')"]


@pytest.mark.parametrize("stated", [["X$(touch x)"], 5, [], [7]])
def test_open_checkpoint_with_foreign_weights_alone_puts_no_strangers_words_into_a_command(
    stated: object, make_pico: Callable[..., pico.Pico]
) -> None:
    folder = make_pico("gpt2", name="it's $HOME").folder
    (folder / "model.safetensors").rename(folder / "flax_model.msgpack")
    pico.edit_json(folder / "config.json", architectures=stated)
    with pytest.raises(CheckpointError, match="flax weights") as caught:
        opened(folder)
    command = shlex.split((caught.value.hint or "").partition(", then python -c ")[2])[0]
    assert command.startswith(f"import transformers; transformers.AutoModel.from_pretrained({str(folder)!r}, ")


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a\\..\\..\\b", "C:model", ""])
def test_open_checkpoint_refuses_an_index_that_leads_out(name: str, make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    pico.shard(folder)
    pico.edit_json(folder / "model.safetensors.index.json", weight_map={"transformer.wpe.weight": name})
    with pytest.raises(CheckpointError, match="not inside the folder"):
        opened(folder)


def test_open_checkpoint_refuses_an_index_that_does_not_fit(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    names = pico.shard(folder)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    (folder / names[0]).rename(folder / "away")
    with pytest.raises(CheckpointError, match=f"names {names[0]}, which is missing"):
        opened(folder)
    (folder / "away").rename(folder / names[0])
    pico.edit_json(index, weight_map=weight_map | {"no.such.tensor": names[0]})
    with pytest.raises(CheckpointError, match="where it is not"):
        opened(folder)
    pico.edit_json(index, weight_map={})
    with pytest.raises(CheckpointError, match="has no weight_map"):
        opened(folder)


def test_open_checkpoint_refuses_one_tensor_in_two_shards(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    pico.shard(folder)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    files = list(weight_map.values())
    shard = next(name for name in files if files.count(name) > 1)
    moved = next(name for name, file in weight_map.items() if file == shard)
    (folder / "copy.safetensors").write_bytes((folder / shard).read_bytes())
    pico.edit_json(index, weight_map=weight_map | {moved: "copy.safetensors"})
    with pytest.raises(CheckpointError, match="stands in copy.safetensors and in"):
        opened(folder)


def test_open_checkpoint_takes_shards_by_roundabout_names(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    pico.shard(folder)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    pico.edit_json(index, weight_map={name: f"./{file}" for name, file in weight_map.items()})
    checkpoint = opened(folder)
    assert [file.path.name for file in checkpoint.weights.values()] == sorted(set(weight_map.values()))
    assert "model.safetensors.index.json" in checkpoint.files - set(checkpoint.copied)


@pytest.mark.parametrize("name", ["x.gguf", "model.fp16.safetensors", "other.bin"])
def test_open_checkpoint_without_weights_names_what_is_there(name: str, make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match=f"holds neither .*, only {name}"):
        opened(folder)


def test_open_checkpoint_of_a_git_lfs_pointer_says_so(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer.*git lfs pull"):
        opened(folder)


def test_check_unchanged_notices_every_file(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    pico.shard(folder)
    (folder / "vocab.txt").write_text("words")
    for name in opened(folder).files:
        checkpoint = opened(folder)
        checkpoint.check_unchanged()
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data + b" ")
        with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
            checkpoint.check_unchanged()
        (folder / name).write_bytes(data)


def test_check_unchanged_notices_another_file_of_the_same_size_and_time(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    path = make_pico("gpt2").folder / "model.safetensors"
    checkpoint = opened(path.parent)
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(path.stat().st_mtime_ns,) * 2)
    other.replace(path)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        checkpoint.check_unchanged()
