"""Safetensors files: read as by the safetensors library; hostile headers are rejected quickly."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ctxextend.checkpoint.checkpoint import Weights
from ctxextend.checkpoint.safetensors_file import numpy_dtype, open_safetensors
from ctxextend.errors import CheckpointError
from tests.helpers.hostile_weights import entry, open_with_safetensors, pack
from tests.helpers.time_limit import time_limit

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_read_equals_safetensors(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = torch.randn(5, 3).to(TORCH_DTYPES[name])
    save_file({"other": torch.ones(7), "table": values}, path)
    expected = load_file(path)["table"]
    expected_bytes = expected.view(torch.uint8).numpy()

    weights = Weights(files={path.name: open_safetensors(path)})
    table = weights.read("table")

    assert table.shape == (5, 3)
    assert table.dtype == numpy_dtype(name)
    assert table.tobytes() == expected_bytes.tobytes()


def test_open_safetensors_keeps_header_order_and_metadata(tmp_path: Path) -> None:
    metadata = {"format": "pt"}
    header = {"b": entry(2, 3), "__metadata__": metadata, "a": entry(0, 2)}
    (tmp_path / "a").write_bytes(pack(header, b"xyz"))

    file = open_safetensors(tmp_path / "a")

    assert list(file.header) == ["b", "__metadata__", "a"]
    assert list(file.entries) == ["b", "a"]
    assert file.entries["b"].start == 2
    assert file.entries["b"].size == 1


ONE = json.dumps(entry(0, 4))


def with_header(header: str) -> bytes:
    """Return a file of 4 data bytes with this header."""
    return pack(header.encode(), b"1234")


def with_entry(entry_json: str) -> bytes:
    """Return a file of 4 data bytes with this JSON as its only header entry."""
    return with_header(f'{{"a":{entry_json}}}')


def with_shape(shape: str) -> bytes:
    return with_entry(f'{{"dtype":"U8","shape":{shape},"data_offsets":[0,4]}}')


def with_offsets(offsets: str) -> bytes:
    return with_entry(f'{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}')


def with_metadata(metadata: str) -> bytes:
    return with_header(f'{{"__metadata__":{metadata},"a":{ONE}}}')


MANY = 1_000_000

# Files that safetensors rejects.
HOSTILE: dict[str, bytes] = {
    "length of 2^63": pack(b"{}", b"", 2**63),
    "nested lists": pack(b"[" * MANY),
    "shape of a million digits": with_shape(f"[{'9' * MANY}]"),
    "beyond the file": pack({"a": entry(0, 9)}, b"1234"),
    "gap in the middle": pack({"a": entry(0, 1), "b": entry(2, 4)}, b"1234"),
    "lone surrogate": with_header(f'{{"\\ud800":{ONE}}}'),
}
# Files that safetensors accepts: other notations of an entry, and more dimensions than arrays have.
REJECTED_BY_CTXEXTEND: dict[str, bytes] = {
    "entry is a list": with_entry('["U8",[4],[0,4]]'),
    "dtype is an object": with_entry('{"dtype":{"U8":null},"shape":[4],"data_offsets":[0,4]}'),
    "30,000 dimensions": with_shape(f"[{'1,' * 30_000}4]"),
}
REJECTED = HOSTILE | REJECTED_BY_CTXEXTEND


@pytest.mark.parametrize("name", REJECTED)
def test_open_safetensors_rejects_a_hostile_header_within_a_second(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(REJECTED[name])
    with time_limit(1), pytest.raises(CheckpointError) as caught:
        open_safetensors(path)
    assert caught.value.message.startswith(f"{path} is not a valid safetensors file: ")
    assert len(caught.value.message) < 500
    if name in HOSTILE:
        with pytest.raises(SafetensorError):
            open_with_safetensors(path)


def test_open_safetensors_rejects_a_huge_header_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "a"
    length = 10_000_000 * 50
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little"))
        file.write(b'{"a":')
        file.truncate(length + 8)
    with time_limit(1), pytest.raises(CheckpointError, match="is not a valid safetensors file"):
        open_safetensors(path)


# Unusual but valid files.
UNUSUAL: dict[str, bytes] = {
    "no tensors": pack({}),
    "escapes in a name": pack({'\0\n\x1b[31m\u202e\U0001f600"\\/': entry(0, 4)}, b"1234"),
    "a name twice": with_header(
        f'{{"a":{ONE},"\\u0061":{{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}}}}'
    ),
    "empty tensors": pack(
        {"b": entry(4, 4, "F32", [0, 3]), "a": entry(0, 4), "c": entry(0, 0, "F64", [0])}, b"1234"
    ),
    "a string of 200,000 characters": with_metadata(
        json.dumps({"x": "é\n" * 100_000, "y": "z"}, ensure_ascii=False)
    ),
}


@pytest.mark.parametrize("content", UNUSUAL.values(), ids=UNUSUAL)
def test_open_safetensors_reads_unusual_files_like_safetensors(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    file = open_safetensors(path)
    with safe_open(path, "np") as other:
        assert {*file.entries} == {*other.keys()}
        metadata = file.header.get("__metadata__") or {}
        expected = other.metadata() or {}
        assert metadata == expected
        for name in other.keys():  # noqa: SIM118 - not a mapping
            shape = other.get_slice(name).get_shape()
            assert [*file.entries[name].shape] == shape
