"""Safetensors files of strangers: whatever a header says, it is read, or refused with a CheckpointError."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from ctxextend.checkpoints.safetensors_file import MAX_HEADER_BYTES, open_safetensors
from ctxextend.errors import CheckpointError
from tests.faults.limits import within
from tests.faults.weights import entry, pack, theirs

# Seconds after which a refusal is one too late.


def described(inner: str) -> bytes:
    """A file of 4 bytes whose only tensor is described by a piece of JSON."""
    return pack(f'{{"a":{inner}}}'.encode(), b"1234")


def with_shape(shape: str) -> bytes:
    return described(f'{{"dtype":"U8","shape":{shape},"data_offsets":[0,4]}}')


def with_offsets(offsets: str) -> bytes:
    return described(f'{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}')


def with_metadata(metadata: str) -> bytes:
    return pack(f'{{"__metadata__":{metadata},"a":{json.dumps(entry(0, 4))}}}'.encode(), b"1234")


ONE = json.dumps(entry(0, 4))
MANY = 1_000_000
DIGITS = "9" * 5_000

# What safetensors refuses too.
HOSTILE: dict[str, bytes] = {
    "empty file": b"",
    "length of 0": pack(b"", b"1234"),
    "length of 2^63": pack(b"{}", b"", 2**63),
    "length behind the file": pack(b"{}", b"", 3),
    "list": pack([1, 2]),
    "number": pack(b"12345"),
    "two values": pack(b"{}{}"),
    "not closed": pack(f'{{"a":{ONE}'.encode(), b"1234"),
    "name that is a number": pack(f"{{1:{ONE}}}".encode(), b"1234"),
    "byte order mark": pack(f'\ufeff{{"a":{ONE}}}'.encode(), b"1234"),
    "nested lists": pack(b"[" * MANY),
    "nested objects": pack(b'{"a":' * MANY),
    "nested in a shape": with_shape("[" * MANY),
    "nested in a text's place": with_metadata(f'{{"a":{"[" * MANY}'),
    "description twice": described('{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}'),
    "no dtype": described('{"shape":[4],"data_offsets":[0,4]}'),
    "description of another kind": described("[1,2]"),
    "unknown dtype": described('{"dtype":"Q4","shape":[4],"data_offsets":[0,4]}'),
    "dtype of another kind": described('{"dtype":["U8"],"shape":[4],"data_offsets":[0,4]}'),
    "long dtype": described(f'{{"dtype":"{"U" * MANY}","shape":[4],"data_offsets":[0,4]}}'),
    "shape of one number": with_shape("4"),
    "shape with a hole": with_shape("[,4]"),
    "shape of minus four": with_shape("[-4]"),
    "shape of a float": with_shape("[4.0]"),
    "shape of 1e400": with_shape("[1e400]"),
    "shape of true": with_shape("[true,4]"),
    "shape of a million digits": with_shape(f"[{'9' * MANY}]"),
    "product over 2^64": with_shape(f"[{2**40},{2**40}]"),
    "product of 2^64, then 0": described(f'{{"dtype":"U8","shape":[{2**32},{2**32},0],"data_offsets":[0,0]}}'),
    "a million dimensions of 9": with_shape(f"[{'9,' * MANY}9]"),
    "shape that is too small": with_shape("[3]"),
    "half a byte": described('{"dtype":"F4","shape":[3],"data_offsets":[0,2]}'),
    "offsets of floats": with_offsets("[0.0,4.0]"),
    "offsets of true": with_offsets("[false,4]"),
    "offset of 5,000 digits": with_offsets(f"[0,{DIGITS}]"),
    "negative offset": with_offsets("[-4,0]"),
    "one offset": with_offsets("[4]"),
    "reversed offsets": with_offsets("[4,0]"),
    "behind the file": with_offsets("[0,5]"),
    "overlapping": pack({"a": entry(0, 3), "b": entry(2, 4)}, b"1234"),
    "hole in the middle": pack({"a": entry(0, 1), "b": entry(2, 4)}, b"1234"),
    "hole at the end": pack({"a": entry(0, 3)}, b"1234"),
    "bytes and no tensor": pack({}, b"1234"),
    "not UTF-8 in a name": pack(b'{"\xff":%b}' % ONE.encode(), b"1234"),
    "surrogate in UTF-8": pack(b'{"\xed\xa0\x80":%b}' % ONE.encode(), b"1234"),
    "half a surrogate pair": pack(f'{{"\\ud800":{ONE}}}'.encode(), b"1234"),
    "bare NUL in a name": pack(b'{"\0":%b}' % ONE.encode(), b"1234"),
    "NaN in another key": described('{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":NaN}'),
    "metadata that is a text": with_metadata('"x"'),
    "metadata of numbers": with_metadata('{"x":1}'),
    "half a surrogate pair in metadata": with_metadata('{"x":"\\ud800"}'),
    "metadata with a tensor's description": pack({"__metadata__": entry(0, 4)}, b"1234"),
}

# What safetensors reads and we do not: nobody has a use for it, and it says two things or takes much memory.
REFUSED_BY_US_ALONE = {
    "name twice": pack(f'{{"a":{ONE},"a":{ONE}}}'.encode(), b"1234"),
    "name twice, once in escapes": pack(f'{{"a":{ONE},"\\u0061":{ONE}}}'.encode(), b"1234"),
    "key of metadata twice": with_metadata('{"x":"1","x":"2"}'),
}

# What looks strange and is read.
STRANGE: dict[str, bytes] = {
    "no tensors": pack({}),
    "no metadata": with_metadata("null"),
    "empty metadata": with_metadata("{}"),
    "space everywhere": pack(json.dumps({"__metadata__": {"a": "b"}, "x": entry(0, 4)}, indent="\t").encode(), b"1234"),
    "another order of keys": described('{"data_offsets":[0,4],"shape":[4],"dtype":"U8"}'),
    "another key": described('{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":"y"}'),
    "an empty name": pack({"": entry(0, 4)}, b"1234"),
    "escapes in a name": pack({'\0\n\x1b[31m\u202e\U0001f600"\\/': entry(0, 4)}, b"1234"),
    "name beyond ASCII": pack('{"é日😀":'.encode() + ONE.encode() + b"}", b"1234"),
    "long name": pack({"a" * MANY: entry(0, 4)}, b"1234"),
    "30,000 dimensions": with_shape(f"[{'1,' * 30_000}4]"),
    "20 dimensions": with_shape(f"[{'1,' * 20}4]"),
    "empty tensors": pack({"b": entry(4, 4, "F32", [0, 3]), "a": entry(0, 4), "c": entry(0, 0, "F64", [0])}, b"1234"),
    "tensors of 4 bits": described('{"dtype":"F4","shape":[8],"data_offsets":[0,4]}'),
    "a text of 200,000 letters": with_metadata(json.dumps({"x": "é\n" * 100_000, "y": "z"}, ensure_ascii=False)),
}


def cased(files: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("content", files.values(), ids=files)


def reads(content: bytes, reader: Callable[[Path], Any]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content)
        try:
            reader(path)
        except (CheckpointError, SafetensorError):
            return False
        return True


@cased(HOSTILE | REFUSED_BY_US_ALONE)
def test_open_safetensors_refuses_a_hostile_header_within_a_second(content: bytes) -> None:
    with within(1):
        assert not reads(content, open_safetensors)


@cased(HOSTILE)
def test_safetensors_refuses_them_too(content: bytes) -> None:
    assert not reads(content, theirs)


@cased(STRANGE)
def test_open_safetensors_reads_what_safetensors_reads(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    file = open_safetensors(tmp_path / "a")
    with safe_open(tmp_path / "a", "np") as other:
        assert {*file.entries} == {*other.keys()}
        assert (file.header.get("__metadata__") or {}) == (other.metadata() or {})
        for name in other.keys():  # noqa: SIM118 - it is no mapping
            assert [*file.entries[name].shape] == other.get_slice(name).get_shape()


def test_open_safetensors_refuses_ten_million_tensors_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write((10_000_000 * 50).to_bytes(8, "little") + b'{"a":')
        file.truncate(10_000_000 * 50 + 8)
    with within(1), pytest.raises(CheckpointError, match=f"safetensors' limit of {MAX_HEADER_BYTES:,}"):
        open_safetensors(path)
