import errno
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ctxextend.checkpoint.copy import DISK_BLOCK, copy_range, write_all
from ctxextend.checkpoint.safetensors_file import TensorFile, open_safetensors
from ctxextend.checkpoint.source import bundled_source
from ctxextend.checkpoint.writing import plan_layout, write_layout
from ctxextend.errors import CheckpointError
from ctxextend.planned import plan_resize

ROW = 128  # float32 columns: 512 bytes a row, 8 rows a block


def save(path: Path, rows: int, others: tuple[int, ...] = (3000, 5, 7000)) -> TensorFile:
    """Save a file with the table between other tensors."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(rows, ROW))
    tensors = {"table": table.astype(np.float32)}
    for number, size in enumerate(others):
        # One name before "table", the others after it.
        name = "a0" if number == 0 else f"z{number}"
        tensors[name] = np.arange(size, dtype=np.float32) + number
    save_file(tensors, path, metadata={"format": "pt"})
    return open_safetensors(path)


def write(file: TensorFile, rows: int, dropped: tuple[str, ...] = ()) -> TensorFile:
    table = np.ones((rows, ROW), dtype=np.float32)
    layout = plan_layout(file, {"table": table.shape}, dropped, {})
    destination = file.path.with_name("new.safetensors")
    tables = {"table": table}
    with file.path.open("rb", buffering=0) as source, destination.open("xb", buffering=0) as output:
        write_layout(file, source, layout, tables.__getitem__, output, lambda *_: None)
    assert destination.stat().st_size == layout.size
    new = open_safetensors(destination)
    old_values = load_file(file.path)
    new_values = load_file(destination)
    kept = set(old_values) - set(dropped)
    assert set(new_values) == kept
    for name, value in new_values.items():
        expected = table if name == "table" else old_values[name]
        assert np.array_equal(value, expected)
    return new


def offset_in_block(file: TensorFile, name: str) -> int:
    start = file.data_start + file.entries[name].start
    return start % DISK_BLOCK


def names_by_offset(file: TensorFile) -> list[str]:
    return sorted(file.entries, key=lambda name: file.entries[name].start)


@pytest.mark.parametrize(
    ("rows", "goes_last"),
    [(16, False), (8, False), (24, False), (4096, False), (15, True), (17, True), (100, True)],
)
def test_plan_layout_keeps_the_order_if_the_size_changes_by_whole_blocks(
    rows: int, goes_last: bool, tmp_path: Path
) -> None:
    old = save(tmp_path / "old.safetensors", 16)
    new = write(old, rows)
    expected = names_by_offset(old)
    if goes_last:
        expected.remove("table")
        expected.append("table")
    assert names_by_offset(new) == expected
    # The old table fills whole blocks, so the other tensors keep their alignment.
    for name in old.entries:
        is_moved = goes_last and name == "table"
        assert is_moved or offset_in_block(new, name) == offset_in_block(old, name)


def test_plan_layout_keeps_the_alignment_of_most_bytes(tmp_path: Path) -> None:
    old = save(tmp_path / "old.safetensors", 3, others=(2000, 9000))
    new = write(old, 11)  # 8 more rows are whole blocks
    for name in old.entries:
        assert offset_in_block(new, name) == offset_in_block(old, name)
    new_path = tmp_path / "new.safetensors"
    new_path.unlink()
    new = write(old, 12)  # the table moves to the end, which shifts the next tensor by 3 rows
    assert offset_in_block(new, "z1") == offset_in_block(old, "z1")
    assert offset_in_block(new, "a0") != offset_in_block(old, "a0")


def test_rewrite_keeps_key_order_metadata_and_extra_keys(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    header = {
        "b": {"shape": [2], "data_offsets": [8, 16], "dtype": "F32", "who": "\u0141", "\n": 1.5},
        "__metadata__": {"format": "pt", "who": "Łukasz"},
        "table": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    data = np.arange(4, dtype=np.float32)
    length = len(text).to_bytes(8, "little")
    path.write_bytes(length + text + data.tobytes())
    file = open_safetensors(path)
    table = np.ones((3, 2), dtype=np.float32)
    layout = plan_layout(file, {"table": table.shape}, (), {})
    tables = {"table": table}
    with (
        path.open("rb", buffering=0) as source,
        (tmp_path / "new.safetensors").open("xb", 0) as output,
    ):
        write_layout(file, source, layout, tables.__getitem__, output, lambda *_: None)

    new = json.loads(layout.header[8:])
    assert list(new) == ["b", "__metadata__", "table"]
    assert new["__metadata__"] == header["__metadata__"]
    # The table grows by less than a block, so it is moved to the end.
    entry = {"shape": [2], "data_offsets": [0, 8], "dtype": "F32", "who": "\u0141", "\n": 1.5}
    assert list(new["b"].items()) == list(entry.items())
    values = load_file(tmp_path / "new.safetensors")
    assert values["b"].tolist() == [2, 3]
    assert values["table"].shape == (3, 2)


SHAPES = st.lists(st.integers(0, 40), max_size=2)
DTYPES = st.sampled_from(["float64", "float32", "float16", "int64", "int8", "bool"])


@settings(deadline=None, max_examples=60)
@given(
    others=st.lists(st.tuples(SHAPES, DTYPES), max_size=8),
    rows=st.integers(1, 60),
    new_rows=st.integers(1, 60),
    dropped=st.integers(0, 8),
)
def test_rewrite_writes_files_that_safetensors_reads(
    others: list[tuple[list[int], str]], rows: int, new_rows: int, dropped: int
) -> None:
    random = np.random.default_rng(rows)
    values = {}
    for number, (shape, dtype) in enumerate(others):
        ones = random.integers(0, 2, shape)
        values[f"t{number}"] = ones.astype(dtype)
    names = tuple(values)
    table = random.normal(size=(rows, ROW))
    values["table"] = table.astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.safetensors"
        save_file(values, path)
        write(open_safetensors(path), new_rows, names[:dropped])


# ---- copying bytes

DATA = bytes(range(256)) * 20_000


def raising(number: int) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def copied(tmp_path: Path, start: int = 3, length: int = 5_000_001) -> bytes:
    (tmp_path / "from").write_bytes(DATA)
    counts: list[int] = []
    with (
        (tmp_path / "from").open("rb", buffering=0) as source,
        (tmp_path / "to").open("wb", buffering=0) as output,
    ):
        output.write(b"head")
        copy_range(source, output, start, length, lambda file, count: counts.append(count))
        output.write(b"tail")
    assert sum(counts) == length
    return (tmp_path / "to").read_bytes()


EXPECTED = b"head" + DATA[3:5_000_004] + b"tail"


def short_copy(source: int, destination: int, count: int, offset_src: int) -> int:
    return COPY_FILE_RANGE(source, destination, min(count, 1_000_003), offset_src=offset_src)


COPY_FILE_RANGE: Callable[..., int] = getattr(os, "copy_file_range", None) or raising(errno.ENOSYS)
MODES = {
    "full": COPY_FILE_RANGE,
    "short": short_copy,
    "unsupported": raising(errno.EXDEV),
    "broken": raising(errno.EIO),
}


@pytest.mark.parametrize("mode", [*MODES, "missing"])
def test_copy_range_appends_the_range_in_every_mode(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode in MODES:
        monkeypatch.setattr(os, "copy_file_range", MODES[mode], raising=False)
    else:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    assert copied(tmp_path) == EXPECTED


def test_copy_range_raises_for_a_file_that_became_shorter(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="became shorter"):
        copied(tmp_path, length=len(DATA))


def test_copied_files_keep_bytes_and_mode(tmp_path: Path) -> None:
    source = tmp_path / "from"
    shutil.copytree(bundled_source("tiny-gpt2").folder, source)
    (source / "config.json").chmod(0o604)
    planned = plan_resize(source, to=128)
    new = planned.execute(tmp_path / "to").output
    for name in planned.output.files.copied:
        assert (new / name).read_bytes() == (source / name).read_bytes()
    assert (new / "config.json").stat().st_mode & 0o777 == 0o604
    (source / "config.json").unlink()
    with pytest.raises(CheckpointError, match="changed while it was read"):
        planned.execute(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_write_all_continues_after_short_writes() -> None:
    class ShortWriter(io.RawIOBase):
        written = b""

        def write(self, data: Any) -> int:
            part = data[:3]
            self.written += bytes(part)
            return len(part)

    file = ShortWriter()
    write_all(cast(BinaryIO, file), memoryview(b"0123456789"))
    assert file.written == b"0123456789"
