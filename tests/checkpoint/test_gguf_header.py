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
from ctxextend.checkpoint.gguf_header import (
    MAX_PAIRS,
    MAX_TENSORS,
    MAX_TEXTS,
)
from ctxextend.errors import CheckpointError, CtxextendError
from tests.helpers.gguf_files import LENGTH, WIDTH, write_gguf
from tests.helpers.mutations import mutate_bytes
from tests.helpers.time_limit import examples, time_limit

UINT32 = 4
STRING = 8
ARRAY = 9


def refused(path: Path, message: str) -> str:
    """Check that no command reads a file, and that nothing is written; return the hint."""
    before = sorted(path.parent.iterdir())
    with time_limit(2):
        for command in (inspect, lambda file: resize(file, 4 * LENGTH, output=path.parent / "out")):
            with pytest.raises(CheckpointError, match=message) as caught:
                command(path)
    assert sorted(path.parent.iterdir()) == before
    return str(caught.value.hint)


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


MALFORMED = {
    "empty": (b"", "it has 0 bytes"),
    "magic": (b"GGML" + header(*NEEDED)[4:], "it starts with b'GGML'"),
    "only magic": (b"GGUF", "it is truncated"),
    "pairs": (header(*NEEDED, pair_count=2**63), "it is truncated"),
    "tensors": (header(*NEEDED, tensor_count=2**63), "it is truncated"),
    "key": (header(struct.pack("<QQ", 2**60, 0)), "a name or text has"),
    "text": (header(pair("x", STRING, struct.pack("<Q", 2**63))), "a name or text has"),
    "array": (
        header(pair("x", ARRAY, struct.pack("<IQ", UINT32, 2**61))),
        "it is truncated: the header goes beyond",
    ),
    "array of texts": (header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**63))), "truncated"),
    "array of arrays": (
        header(pair("x", ARRAY, struct.pack("<IQ", ARRAY, 1))),
        "'x' is an array of arrays",
    ),
    "array of no type": (
        header(pair("x", ARRAY, struct.pack("<IQ", 77, 1))),
        "is an array of the unknown type 77",
    ),
    "texts that fit": (
        header(pair("x", ARRAY, struct.pack("<IQQQ", STRING, 2, 0, 2**63))),
        "it is truncated: the header goes beyond",
    ),
    "type": (header(pair("x", 77, b"")), "'x' has the unknown type 77"),
    "not text": (header(struct.pack("<Q", 1) + b"\xff" + bytes(8)), "is not UTF-8"),
    "same key": (header(*NEEDED, NEEDED[1]), "'llama.context_length' is stated twice"),
    "same tensor": (
        header(*NEEDED, tensors=described() + described(start=32), tensor_count=2) + bytes(128),
        "the tensor 't' is described twice",
    ),
    "dimensions": (
        header(*NEEDED, tensors=described(lengths=(1,) * 5), tensor_count=1) + bytes(64),
        "has 5 dimensions",
    ),
    "beyond": (
        header(*NEEDED, tensors=described(lengths=(2**40,)), tensor_count=1) + bytes(64),
        "it is truncated: 't' ends at byte",
    ),
    "too large": (
        header(*NEEDED, tensors=described(lengths=(2**62,) * 4), tensor_count=1) + bytes(64),
        "'t' has too many values",
    ),
    "not aligned": (
        header(*NEEDED, tensors=described(start=8), tensor_count=1) + bytes(128),
        "does not start at a multiple of 32 bytes",
    ),
    "overlap": (
        header(*NEEDED, tensors=described() + described("u"), tensor_count=2) + bytes(128),
        "overlaps the previous tensor",
    ),
    "blocks": (
        header(*NEEDED, tensors=described(lengths=(8,), kind=8), tensor_count=1) + bytes(128),
        "has 8 columns, not a multiple of 32",
    ),
    "alignment": (
        header(*NEEDED, number("general.alignment", 48)),
        "general.alignment is 48, not a power of 2",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(name: str, tmp_path: Path) -> None:
    content, message = MALFORMED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    hint = refused(path, f"model.gguf is not a valid GGUF file: .*{message}")
    assert "again" in hint


@pytest.mark.parametrize(
    ("version", "hint"), [(1, "llama.cpp does not read it either"), (4, "Upgrade ctxextend")]
)
def test_other_versions_are_refused(version: int, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header(*NEEDED, version=version))
    assert hint in refused(path, f"has version {version} of the GGUF format")


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header(*NEEDED, version=2))
    resize(path, 4 * LENGTH, output=tmp_path / "out.gguf", verify=True)
    assert struct.unpack_from("<I", (tmp_path / "out.gguf").read_bytes(), 4) == (2,)


def test_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", endianess=gguf.GGUFEndian.BIG)
    assert "gguf-convert-endian" in refused(path, "is a big-endian GGUF file")


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00003.gguf"
    write_gguf(path, values={"split.count": 3, "split.no": 0})
    assert "llama-gguf-split --merge" in refused(path, "one of 3 files that a model was split into")


def test_an_unknown_type_of_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = described(kind=999)
    path.write_bytes(header(*NEEDED, tensors=tensors, tensor_count=1) + bytes(64))
    assert "pip install --upgrade gguf" in refused(path, "'t' has the type 999")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama.context_length": None}, "llama.context_length is missing"),
        ({"llama.context_length": 0}, "llama.context_length must be a positive integer"),
        ({"llama.context_length": "64"}, "llama.context_length must be a positive integer"),
        ({"llama.attention.head_count": None}, "llama.attention.head_count is missing"),
        ({"llama.rope.dimension_count": 0}, "llama.rope.dimension_count must be a positive"),
        ({"llama.rope.freq_base": 0.0}, "llama.rope.freq_base must be a number above 0"),
        ({"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base must be a number"),
        ({"llama.rope.freq_base": float("inf")}, "llama.rope.freq_base must be a number"),
        ({"llama.rope.scaling.type": "ntk"}, "llama.rope.scaling.type must be none, linear"),
        ({"llama.rope.scaling.factor": 0.5}, "llama.rope.scaling.factor must be a number of at"),
        (
            {"llama.rope.scaling.attn_factor": 0.0},
            "llama.rope.scaling.attn_factor must be a num",
        ),
        ({"llama.rope.scaling.factor": -1.0}, "llama.rope.scaling.factor must be a number"),
    ],
)
def test_missing_and_malformed_keys_are_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", values=values)
    refused(path, f"model.gguf: {message}")


@pytest.mark.parametrize(
    "key", ["context_length", "attention.head_count", "rope.freq_base", "rope.scaling.factor"]
)
def test_arrays_instead_of_numbers_are_named(key: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", values={f"llama.{key}": [2, 2]})
    hint = refused(path, f"model.gguf: llama.{key} is an array")
    assert "Resize the checkpoint that it was made from" in hint


@pytest.mark.parametrize("key", ["rope.dimension_count", "attention.key_length"])
def test_numbers_of_heads_per_layer_are_read_next_to_the_size_of_a_head(
    key: str, tmp_path: Path
) -> None:
    values = {"llama.attention.head_count": [2, 4], f"llama.{key}": 16}
    path = write_gguf(tmp_path / "model.gguf", values=values)
    resize(path, 4 * LENGTH, output=tmp_path / "out.gguf", verify=True)
    assert len(inspect(tmp_path / "out.gguf").schemes[0].layers[0].wavelengths) == 8


def test_a_table_of_another_width_is_refused(tmp_path: Path) -> None:
    table = np.zeros((16, WIDTH), np.float32)
    values = {"bert.embedding_length": 16}
    path = write_gguf(tmp_path / "model.gguf", "bert", table=table, values=values)
    refused(path, r"has shape \[16, 32\], expected \(rows, 16\) by bert.embedding_length")


def test_a_file_without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    assert "pip install 'ctxextend[gguf]'" in refused(path, "need the package gguf")


SPARSE_BYTES = 1 << 30

# Files that continue with zeros: (content, message)
SPARSE = {
    "texts": (
        header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**60))),
        "number of texts in arrays is 1,152,921,504,606,846,976, too many for",
    ),
    "many texts": (
        header(pair("x", ARRAY, struct.pack("<IQ", STRING, 2**26))),
        "number of texts in arrays is 67,108,864, more than",
    ),
    "most texts": (
        header(pair("x", ARRAY, struct.pack("<IQ", STRING, MAX_TEXTS)), pair_count=2),
        "the key '' is stated twice|has the unknown type|general.architecture",
    ),
    "numbers": (
        header(pair("x", ARRAY, struct.pack("<IQ", UINT32, 2**27))),
        "its header is longer than",
    ),
    "text": (header(pair("x", STRING, struct.pack("<Q", 2**29))), "a name or text has"),
    "pairs": (header(pair_count=9_000_000), "number of keys is 9,000,000, more than 65,536"),
    "tensors": (
        header(*NEEDED, tensor_count=9_000_000),
        "number of tensors is 9,000,000, more",
    ),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_absurd_counts_are_refused_at_once(name: str, tmp_path: Path) -> None:
    content, message = SPARSE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(SPARSE_BYTES)
    refused(path, message)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_the_most_keys_and_tensors_are_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    keys = [number(f"k{index}", 1) for index in range(MAX_PAIRS - len(NEEDED))]
    tensors = b"".join(described(f"t{index}", start=32 * index) for index in range(MAX_TENSORS))
    path.write_bytes(header(*NEEDED, *keys, tensors=tensors, tensor_count=MAX_TENSORS))
    with path.open("r+b") as file:
        file.truncate(SPARSE_BYTES)
    with time_limit(3):
        assert inspect(path).schemes[0].positions == LENGTH


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
