import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend.checkpoints.copy import check_unchanged
from ctxextend.checkpoints.safetensors_file import numpy_dtype, open_safetensors, read_floats
from ctxextend.errors import CheckpointError

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_read_floats_gives_what_safetensors_gives(name: str, tmp_path: Path) -> None:
    values = torch.randn(5, 3).to(TORCH_DTYPES[name])
    save_file({"other": torch.ones(7), "table": values}, tmp_path / "a.safetensors")
    table = read_floats(open_safetensors(tmp_path / "a.safetensors"), "table")
    assert (table.shape, table.dtype) == ((5, 3), numpy_dtype(name))
    theirs = load_file(tmp_path / "a.safetensors")["table"]
    assert table.tobytes() == theirs.view(torch.uint8).numpy().tobytes()


def test_open_safetensors_keeps_header_order_and_metadata(tmp_path: Path) -> None:
    header = {"b": entry(2, 3), "__metadata__": {"format": "pt"}, "a": entry(0, 2)}
    file = open_safetensors(write(tmp_path / "a", header, b"xyz"))
    assert list(file.header) == ["b", "__metadata__", "a"]
    assert list(file.entries) == ["b", "a"]
    assert (file.entries["b"].start, file.entries["b"].size) == (2, 1)


def test_open_safetensors_takes_a_header_padded_with_spaces_and_empty_tensors(tmp_path: Path) -> None:
    text = json.dumps({"empty": entry(0, 0, "F32", [0, 3]), "a": entry(0, 4, "F32", [])}).encode() + b" " * 4000
    file = open_safetensors(write(tmp_path / "a", text, b"1234"))
    assert file.data_start == 8 + len(text)
    assert file.entries["a"].shape == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header should be 0 bytes, and the whole file is 0"),
        (b"1234567", "header should be"),
        (bytes(8), "not valid JSON"),
        ((2**63).to_bytes(8, "little") + b"{}", "header should be"),
        ((99).to_bytes(8, "little") + b"{}", "the whole file is 10"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "not valid JSON"),
        ((2).to_bytes(8, "little") + b"[]", "not an object"),
        ((2).to_bytes(8, "little") + b"{{", "not valid JSON"),
    ],
)
def test_open_safetensors_refuses_a_broken_header(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(tmp_path / "a")


def test_open_safetensors_refuses_a_header_over_100_mb_before_it_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(CheckpointError, match="over safetensors' limit"):
        open_safetensors(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(0, 2), "b": entry(3, 4)}, "leaves a hole"),
        ({"a": entry(1, 4)}, "leaves a hole"),
        ({"a": entry(0, 3), "b": entry(2, 4)}, "overlaps"),
        ({"a": entry(0, 9)}, "truncated"),
        ({"a": entry(0, 3)}, "too long: 3 bytes of tensors are described, not 4"),
        ({"a": entry(0, 4, "F32", [2])}, "does not fill"),
        ({"a": entry(0, 4, "Q4")}, "unknown dtype"),
        ({"a": entry(4, 0, "U8", [-4])}, "cannot be read"),
        ({"a": entry(0, 4, "U8", [2**62, 2**62])}, "does not fill"),
        ({"a": {"dtype": "U8"}}, "cannot be read"),
        ({"a": [1, 2]}, "cannot be read"),
        ({"a": entry(0, 4), "__metadata__": {"x": 1}}, "__metadata__"),
        ({"a": entry(0, 4), "__metadata__": {"x": "\ud800"}}, "not valid JSON"),
        ({"a": entry(0, 4), "__metadata__": "x"}, "__metadata__"),
        ({"a": entry(0, 4) | {"dtype": ["U8"]}}, "cannot be read"),
        ({"a": entry(0, 4) | {"dtype": {}}}, "cannot be read"),
        ({"a": entry(0, 4) | {"shape": [True, 4]}}, "cannot be read"),
    ],
)
def test_open_safetensors_refuses_what_does_not_add_up(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(write(tmp_path / "a", header, b"1234"))


def test_open_safetensors_refuses_a_name_twice(tmp_path: Path) -> None:
    one = json.dumps(entry(0, 4))
    with pytest.raises(CheckpointError, match="stands twice"):
        open_safetensors(write(tmp_path / "a", f'{{"a": {one}, "a": {one}}}'.encode(), b"1234"))


def test_open_safetensors_refuses_names_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_safetensors(write(tmp_path / "a", b'{"\\ud800": ' + json.dumps(entry(0, 4)).encode() + b"}", b"1234"))


def test_read_floats_refuses_integers(tmp_path: Path) -> None:
    save_file({"table": torch.ones(4, 2, dtype=torch.int8)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="stored as I8"):
        read_floats(open_safetensors(tmp_path / "a"), "table")


def test_check_unchanged_notices_another_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_file({"table": torch.ones(4, 2)}, path)
    file = open_safetensors(path)
    check_unchanged(file.path, file.fingerprint)
    save_file({"table": torch.ones(5, 2)}, path)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        check_unchanged(file.path, file.fingerprint)
    path.unlink()
    with pytest.raises(CheckpointError, match="changed while it was read"):
        check_unchanged(file.path, file.fingerprint)
