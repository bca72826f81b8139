import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend import resize
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.folder import open_checkpoint
from ctxextend.checkpoint.source import Source
from ctxextend.errors import CheckpointError, OutputError
from tests.helpers import pico


def open_folder(folder: Path) -> Checkpoint:
    source = Source(str(folder), "folder", folder, folder.name)
    return open_checkpoint(source)


def test_open_checkpoint_ignores_a_config_with_only_the_sentence_transformers_version(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    folder = make_pico("bert").folder
    root = pico.nest_in_module(folder, tmp_path / "sentence")
    (root / "config.json").write_text('{"__version__": "2.0.0"}')  # as in old folders
    checkpoint = open_folder(root)
    assert checkpoint.config_file == "0_Transformer/config.json"
    assert next(iter(checkpoint.weights.files)) == "0_Transformer/model.safetensors"


@pytest.mark.parametrize("content", ["../elsewhere", "/etc", "", {}, [1]])
def test_open_checkpoint_rejects_invalid_and_outside_modules(
    content: object, tmp_path: Path
) -> None:
    modules = [{"path": content, "type": "x.Transformer"}] if isinstance(content, str) else content
    pico.write_json(tmp_path / "modules.json", modules)
    with pytest.raises(
        CheckpointError, match=r"modules\.json (lists no Transformer module|is not a list)"
    ):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "model.fp16.safetensors",
            b"",
            r"has no model\.safetensors, pytorch_model\.bin or shard index\.",
        ),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid",
            "Git LFS pointer.*git lfs pull",
        ),
    ],
)
def test_open_checkpoint_without_weights_reports_found_files(
    name: str, content: bytes, message: str, make_pico: Callable[..., pico.Pico]
) -> None:
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_folder(folder)


# Invalid shard names in an index, with the expected message.
WRONG_SHARDS = {
    "../model.safetensors": "is not a file inside",
    "a\\..\\..\\b": "is not a file inside",
    "\ud800": "which is missing",
    "sub": "is a folder",
    "copy.safetensors": "and another shard",
}


@pytest.mark.parametrize(("name", "message"), WRONG_SHARDS.items(), ids=map(ascii, WRONG_SHARDS))
def test_open_checkpoint_rejects_an_index_with_an_invalid_shard(
    name: str, message: str, make_pico: Callable[..., pico.Pico]
) -> None:
    folder = make_pico("gpt2").folder
    index, weight_map = save_shards(folder)
    shared = next(iter(weight_map.values()))
    (folder / "sub").mkdir()
    shutil.copy(folder / shared, folder / "copy.safetensors")
    tensor = next(tensor for tensor, file in weight_map.items() if file == shared)
    pico.edit_json(index, weight_map=weight_map | {tensor: name})
    with pytest.raises(CheckpointError, match=message):
        open_folder(folder)


def save_shards(folder: Path) -> tuple[Path, dict[str, str]]:
    """Save a checkpoint in shards; return the path and the weight map of its index."""
    pico.shard(folder)
    index = folder / "model.safetensors.index.json"
    return index, pico.read_json(index)["weight_map"]


def test_open_checkpoint_rejects_an_index_that_does_not_match_its_shards(
    make_pico: Callable[..., pico.Pico],
) -> None:
    index, weight_map = save_shards(make_pico("gpt2").folder)
    first = next(iter(weight_map.values()))
    pico.edit_json(index, weight_map=weight_map | {"no.such.tensor": first})
    with pytest.raises(CheckpointError, match="which does not contain it"):
        open_folder(index.parent)
    pico.edit_json(index, weight_map={})
    with pytest.raises(CheckpointError, match="has no weight_map"):
        open_folder(index.parent)


def test_open_checkpoint_normalizes_shard_names(make_pico: Callable[..., pico.Pico]) -> None:
    index, weight_map = save_shards(make_pico("gpt2").folder)
    pico.edit_json(index, weight_map={name: f"./{file}" for name, file in weight_map.items()})
    checkpoint = open_folder(index.parent)
    assert checkpoint.weights.files.keys() == set(weight_map.values())
    assert index.name in checkpoint.files
    assert index.name not in checkpoint.copied


def test_check_unchanged_detects_a_replacement_of_equal_size_and_time(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    folder = make_pico("gpt2").folder
    other = tmp_path / "other"
    pico.shard(folder)
    (folder / "vocab.txt").write_text("words")
    for name in open_folder(folder).files:
        checkpoint = open_folder(folder)
        data = (folder / name).read_bytes()
        checkpoint.check_unchanged()
        other.write_bytes(data[::-1])
        time = (folder / name).stat().st_mtime_ns
        os.utime(other, ns=(time,) * 2)
        other.replace(folder / name)
        with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
            checkpoint.check_unchanged()
        (folder / name).write_bytes(data)


def test_resize_never_replaces_the_target_of_a_linked_source(
    make_pico: Callable[..., pico.Pico],
) -> None:
    result = resize(make_pico("gpt2").folder, to=40, output="out")
    output = result.output
    Path("linked").mkdir()
    Path("linked/config.json").write_bytes((output / "config.json").read_bytes())
    Path("linked/weights.safetensors").symlink_to("../out/model.safetensors")
    before = (output / "model.safetensors").read_bytes()
    with pytest.raises(OutputError, match="overlap"):
        resize("linked/weights.safetensors", to=8, output="out", force=True)
    assert (output / "model.safetensors").read_bytes() == before
