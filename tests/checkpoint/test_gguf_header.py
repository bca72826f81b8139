"""GGUF files that are truncated, malformed or of another kind: errors, and nothing written."""

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest

from ctxextend import inspect, resize
from ctxextend.errors import CheckpointError, CtxextendError
from tests.helpers.gguf_files import LENGTH, WIDTH, write_gguf
from tests.helpers.mutations import mutate_bytes
from tests.helpers.time_limit import examples, time_limit

UINT32 = 4
STRING = 8
ARRAY = 9


def refused(path: Path, message: str = "") -> None:
    """Check that no command reads a file, and that nothing is written."""
    before = sorted(path.parent.iterdir())
    output = path.parent / "out.gguf"
    with time_limit(6):
        for command in (inspect, lambda file: resize(file, 4 * LENGTH, output=output)):
            with pytest.raises(CtxextendError, match=message):
                command(path)
    assert sorted(path.parent.iterdir()) == before


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def pair(key: str, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def number(key: str, value: int) -> bytes:
    return pair(key, UINT32, struct.pack("<I", value))


ARCHITECTURE = pair("general.architecture", STRING, text("llama"))
NEEDED = (
    ARCHITECTURE,
    number("llama.context_length", LENGTH),
    number("llama.embedding_length", WIDTH),
    number("llama.attention.head_count", 2),
)


def header(
    *pairs: bytes,
    tensors: bytes = b"",
    version: int = 3,
    tensor_count: int = 0,
    pair_count: int | None = None,
) -> bytes:
    """Return a GGUF file of pairs and descriptions of tensors."""
    count = len(pairs) if pair_count is None else pair_count
    start = b"GGUF" + struct.pack("<IQQ", version, tensor_count, count)
    return start + b"".join(pairs) + tensors


def described(
    name: str = "t", lengths: tuple[int, ...] = (8,), kind: int = 0, start: int = 0
) -> bytes:
    content = text(name) + struct.pack("<I", len(lengths))
    content += struct.pack(f"<{len(lengths)}Q", *lengths)
    return content + struct.pack("<IQ", kind, start)


def with_tensors(*tensors: bytes) -> bytes:
    content = header(*NEEDED, tensors=b"".join(tensors), tensor_count=len(tensors))
    return content + bytes(128)


MALFORMED = {
    "magic": b"GGML" + header(*NEEDED)[4:],
    "version": header(*NEEDED, version=1),
    "array of texts": header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**63))),
    "type": header(pair("x", 77, b"")),
    "same key": header(*NEEDED, NEEDED[1]),
    "too large": with_tensors(described(lengths=(2**62,) * 4)),
    "alignment": header(*NEEDED, number("general.alignment", 48)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(MALFORMED[name])
    refused(path, "model.gguf is not a valid GGUF file")


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header(*NEEDED, version=2))
    resize(path, 4 * LENGTH, output=tmp_path / "out.gguf", verify=True)
    assert struct.unpack_from("<I", (tmp_path / "out.gguf").read_bytes(), 4) == (2,)


def test_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", endianess=gguf.GGUFEndian.BIG)
    refused(path, "gguf-convert-endian")


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00003.gguf"
    write_gguf(path, values={"split.count": 3, "split.no": 0})
    refused(path, "one of several files")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("context_length", [None, "64"]),
        ("rope.freq_base", [0.0, float("nan")]),
        ("rope.scaling.type", ["ntk"]),
        ("rope.scaling.factor", [0.5, [2, 2]]),
    ],
)
def test_missing_and_malformed_keys_are_refused(
    key: str, values: list[Any], tmp_path: Path
) -> None:
    for value in values:
        path = write_gguf(tmp_path / "model.gguf", values={f"llama.{key}": value})
        refused(path, "model.gguf: ")


@pytest.mark.parametrize(("size", "rotated"), [(0, 8), (8, "x")])
def test_a_malformed_share_of_a_head_in_layers_with_a_window_is_refused(
    size: Any, rotated: Any, tmp_path: Path
) -> None:
    values = {
        "gemma3.rope.dimension_count": size,
        "gemma3.rope.dimension_count_swa": rotated,
        "gemma3.rope.freq_base_swa": 1e4,
    }
    path = write_gguf(tmp_path / "model.gguf", "gemma3", values=values)
    refused(path, "model.gguf: gemma3.rope.dimension_count_swa is not a share of a head")


def test_numbers_of_heads_per_layer_are_read_next_to_the_size_of_a_head(tmp_path: Path) -> None:
    values = {"llama.attention.head_count": [2, 4], "llama.attention.key_length": 16}
    path = write_gguf(tmp_path / "model.gguf", values=values)
    resize(path, 4 * LENGTH, output=tmp_path / "out.gguf", verify=True)
    assert len(inspect(tmp_path / "out.gguf").schemes[0].layers[0].wavelengths) == 8


def test_a_file_without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    refused(path, "need the package gguf")


SPARSE_BYTES = 1 << 30

# Files that continue with zeros.
SPARSE = {
    "texts": header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**60))),
    "most texts": header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**22)), pair_count=2),
    "tensors": header(*NEEDED, tensor_count=9_000_000),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_absurd_counts_are_refused_at_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(SPARSE[name])
    with path.open("r+b") as file:
        file.truncate(SPARSE_BYTES)
    refused(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    last_tensor_ends = len(content) - 32
    for size in range(0, last_tensor_ends, 7):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="not a valid GGUF file"):
            inspect(path)


def flip_bit(random: Random, content: bytes) -> bytes:
    data = bytearray(content)
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("damage", [flip_bit, mutate_bytes])
@pytest.mark.parametrize("architecture", ["llama", "bert"])
def test_damaged_files_are_read_or_refused(
    damage: Callable[[Random, bytes], bytes], architecture: str, tmp_path: Path
) -> None:
    random = Random(3)
    table = None
    if architecture == "bert":
        table = np.ones((16, WIDTH), np.float32)
    whole = write_gguf(tmp_path / "whole.gguf", architecture, table=table).read_bytes()
    (tmp_path / "whole.gguf").unlink()
    path = tmp_path / "model.gguf"
    output = tmp_path / "out.gguf"
    outcomes = set()
    for _ in range(examples(80)):
        path.write_bytes(damage(random, whole))
        output.unlink(missing_ok=True)
        with time_limit(5):
            try:
                resize(path, 4 * LENGTH, output=output)
                outcomes.add("written")
            except CtxextendError:
                outcomes.add("refused")
                assert not output.exists()
        assert {*tmp_path.iterdir()} <= {path, output}
    assert outcomes == {"written", "refused"}
