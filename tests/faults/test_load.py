"""Checkpoints that are large in one dimension: memory grows only with the new table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.helpers.pico import read_json, write_json
from tests.helpers.repository import ROOT

TABLE = "wpe.weight"
SOURCE = Path("source")
OUTPUT = Path("out")

# Measure in a separate process: the peak memory of a child includes that of its parent, here
# pytest.
MEASURE = (
    "import sys; from benchmarks.measure import measure; print(measure(sys.argv[1:]).megabytes)"
)


def write_sparse(*shards: int, size: int = 400, rows: int = 16, width: int = 8) -> None:
    """Write a GPT-2 of sparse files: its shards contain so many tensors of `size` bytes."""
    SOURCE.mkdir()
    write_json(SOURCE / "config.json", {"model_type": "gpt2", "n_positions": rows})
    weight_map = {}
    for number, count in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        shapes = {}
        if number == 0:
            shapes[TABLE] = [rows, width]
        for other in range(count):
            shapes[f"h.{number}.weight_{other}"] = [1, size // 4]
        header = {}
        end = 0
        for tensor, (height, columns) in shapes.items():
            start = end
            end = end + 4 * height * columns
            header[tensor] = {
                "dtype": "F32",
                "shape": [height, columns],
                "data_offsets": [start, end],
            }
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with (SOURCE / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            file.truncate(8 + len(text) + end)
    write_json(SOURCE / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def resize_command(rows: int) -> list[str]:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    arguments = ["resize", "source", "--to", str(rows), "-o", "out", "--quiet"]
    return [sys.executable, "-m", "ctxextend", *arguments]


def peak_memory(command: list[str]) -> float:
    """Return the peak memory of a process in MB."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    measured = [sys.executable, "-c", MEASURE, *command]
    done = subprocess.run(measured, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def rows_of_output() -> int:
    index = read_json(OUTPUT / "model.safetensors.index.json")
    shard = OUTPUT / index["weight_map"][TABLE]
    with safe_open(shard, "np") as file:
        return int(file.get_slice(TABLE).get_shape()[0])


@pytest.fixture(scope="module")
def minimum() -> float:
    """Peak memory of `resize` for a tiny checkpoint, in MB."""
    command = [sys.executable, "-m", "ctxextend", "resize", "tiny-gpt2", "--to", "160", "--dry-run"]
    return peak_memory(command)


@pytest.mark.parametrize(
    ("shards", "size", "rows", "width", "more"),
    [
        ([10_000], 16, 32, 8, 60),
        ([40] * 100, 400, 32, 8, 40),
        ([1], 400, 60_000, 64, 3 * 8 * 60_000 * 64 / 1e6 + 20),
    ],
    ids=["10,000 tensors", "100 shards", "60,000 rows"],
)
def test_resize_needs_memory_only_for_headers_and_the_new_table(
    minimum: float, shards: list[int], size: int, rows: int, width: int, more: float
) -> None:
    old_rows = rows // 2
    write_sparse(*shards, size=size, rows=old_rows, width=width)
    assert peak_memory(resize_command(rows)) < minimum + more
    assert rows_of_output() == rows


def size_of_weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_resize_needs_no_memory_for_the_model(minimum: float) -> None:
    write_sparse(2, 2, size=100_000_000)
    assert peak_memory(resize_command(32)) < minimum + 40
    before = size_of_weights(SOURCE)
    after = size_of_weights(OUTPUT)
    assert 400_000_000 < before < after < before + 10_000


def test_resize_opens_few_files_at_once() -> None:
    write_sparse(*[2] * 100)
    limited = ["bash", "-c", 'ulimit -n 40; exec "$@"', "bash", *resize_command(32)]
    subprocess.run(limited, check=True, capture_output=True)
    assert len(list(OUTPUT.glob("*.safetensors"))) == 100
