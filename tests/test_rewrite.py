import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ctxextend.checkpoints.copy import DISK_BLOCK
from ctxextend.checkpoints.rewrite import plan_layout, rewrite
from ctxextend.checkpoints.safetensors_file import TensorFile, open_safetensors

ROW = 128  # float32 columns: 512 bytes a row, 8 rows a block


def save(path: Path, rows: int, others: tuple[int, ...] = (3000, 5, 7000)) -> TensorFile:
    """A file in which the table stands between other tensors."""
    tensors = {f"{'az'[i > 0]}{i}": np.arange(n, dtype=np.float32) + i for i, n in enumerate(others)}
    tensors["table"] = np.random.default_rng(0).normal(size=(rows, ROW)).astype(np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    return open_safetensors(path)


def write(file: TensorFile, rows: int, dropped: tuple[str, ...] = ()) -> TensorFile:
    table = np.ones((rows, ROW), dtype=np.float32)
    layout = plan_layout(file, {"table": table.shape}, dropped, {})
    destination = file.path.with_name("new.safetensors")
    rewrite(file, layout, {"table": table}.__getitem__, destination)
    assert destination.stat().st_size == layout.size
    new = open_safetensors(destination)
    old_values, new_values = load_file(file.path), load_file(destination)
    assert set(new_values) == set(old_values) - set(dropped)
    for name, value in new_values.items():
        assert np.array_equal(value, table if name == "table" else old_values[name])
    return new


def offset_in_block(file: TensorFile, name: str) -> int:
    return (file.data_start + file.entries[name].start) % DISK_BLOCK


@pytest.mark.parametrize("rows", [16, 8, 24, 4096])
def test_plan_layout_whole_blocks_keep_the_tables_place(rows: int, tmp_path: Path) -> None:
    old = save(tmp_path / "old.safetensors", 16)
    new = write(old, rows)
    order = sorted(new.entries, key=lambda name: new.entries[name].start)
    assert order == sorted(old.entries, key=lambda name: old.entries[name].start)
    for name in old.entries:
        assert offset_in_block(new, name) == offset_in_block(old, name)


@pytest.mark.parametrize("rows", [15, 17, 100])
def test_plan_layout_other_sizes_go_last(rows: int, tmp_path: Path) -> None:
    old = save(tmp_path / "old.safetensors", 16)
    new = write(old, rows)
    assert max(new.entries, key=lambda name: new.entries[name].start) == "table"
    # The old table was whole blocks, so nothing else moved within its block.
    for name in set(old.entries) - {"table"}:
        assert offset_in_block(new, name) == offset_in_block(old, name)


def test_plan_layout_keeps_most_bytes_in_place_where_it_cannot_keep_all(tmp_path: Path) -> None:
    old = save(tmp_path / "old.safetensors", 3, others=(2000, 9000))
    new = write(old, 11)  # 8 rows more are whole blocks
    for name in old.entries:
        assert offset_in_block(new, name) == offset_in_block(old, name)
    new_path = tmp_path / "new.safetensors"
    new_path.unlink()
    new = write(old, 12)  # the table leaves, and takes 3 rows from between the two
    assert offset_in_block(new, "z1") == offset_in_block(old, "z1")
    assert offset_in_block(new, "a0") != offset_in_block(old, "a0")


def test_rewrite_keeps_key_order_metadata_and_entries_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    header = {
        "b": {"shape": [2], "data_offsets": [8, 16], "dtype": "F32", "who": "\u0141", "\n": 1.5},
        "__metadata__": {"format": "pt", "who": "Łukasz"},
        "table": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + np.arange(4, dtype=np.float32).tobytes())
    file, table = open_safetensors(path), np.ones((3, 2), dtype=np.float32)
    layout = plan_layout(file, {"table": table.shape}, (), {})
    rewrite(file, layout, {"table": table}.__getitem__, tmp_path / "new.safetensors")
    new = json.loads(layout.header[8:])
    assert list(new) == ["b", "__metadata__", "table"]
    assert new["__metadata__"] == header["__metadata__"]
    # The table grows by less than a block, so it goes last.
    entry = {"shape": [2], "data_offsets": [0, 8], "dtype": "F32", "who": "\u0141", "\n": 1.5}
    assert list(new["b"].items()) == list(entry.items())
    values = load_file(tmp_path / "new.safetensors")
    assert (values["b"].tolist(), values["table"].shape) == ([2, 3], (3, 2))


SHAPES = st.lists(st.integers(0, 40), max_size=2)
DTYPES = st.sampled_from(["float64", "float32", "float16", "int64", "int8", "bool"])


@settings(deadline=None, max_examples=60)
@given(
    others=st.lists(st.tuples(SHAPES, DTYPES), max_size=8),
    rows=st.integers(1, 60),
    new_rows=st.integers(1, 60),
    dropped=st.integers(0, 8),
)
def test_rewrite_of_any_file_is_read_by_safetensors(
    others: list[tuple[list[int], str]], rows: int, new_rows: int, dropped: int
) -> None:
    random = np.random.default_rng(rows)
    values = {f"t{i}": random.integers(0, 2, shape).astype(dtype) for i, (shape, dtype) in enumerate(others)}
    values["table"] = random.normal(size=(rows, ROW)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.safetensors"
        save_file(values, path)
        write(open_safetensors(path), new_rows, tuple(f"t{i}" for i in range(min(dropped, len(others)))))
