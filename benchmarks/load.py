"""`ctxextend resize` of checkpoints that are large in one way each: bytes, shards, tensors, or rows of the table.

No checkpoint takes much of the disk: what is not written is a hole in a file. Each is resized in a process of its own.
Reported are wall time and peak resident memory, beside what is promised: 90 MB, three times the new table counted in
float64, and three times the headers.

    python -m benchmarks.load [--folder DIR] [CASE ...]
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from benchmarks.measuring import PROGRAM, measure

# MB of the bound that no checkpoint adds to.
BASE = 90

TABLE = "wpe.weight"

# Name, rows and columns of a tensor of float32.
Tensor = tuple[str, int, int]


def tensors(count: int, size: int, first: int = 0) -> Iterator[Tensor]:
    """Yield so many tensors of so many bytes."""
    for number in range(first, first + count):
        yield f"h.{number // 10}.extra.block.attention.self.query.weight_{number % 10}", 1, size // 4


def write_sparse(path: Path, held: Iterable[Tensor]) -> int:
    """Write a safetensors file whose tensors are a hole; return its header's bytes."""
    end = 0
    with path.open("wb") as file:
        file.write(bytes(8))
        for name, rows, width in held:
            start, end = end, end + 4 * rows * width
            described = f'{{"dtype":"F32","shape":[{rows},{width}],"data_offsets":[{start},{end}]}}'
            file.write(f'{"," if start else "{"}"{name}":{described}'.encode())
        file.write(b"}")
        length = file.tell() - 8
        file.seek(0)
        file.write(length.to_bytes(8, "little"))
        file.truncate(8 + length + end)
    return length


def write_checkpoint(folder: Path, *shards: Iterable[Tensor], rows: int = 16, width: int = 8) -> int:
    """Write a GPT-2, its table in front of the first shard; return the headers' bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": rows}))
    first: Iterable[Tensor] = [(TABLE, rows, width)]
    if len(shards) < 2:
        return write_sparse(folder / "model.safetensors", chain(first, *shards))
    held = [list(chain(first, shards[0])), *map(list, shards[1:])]
    files = {f"model-{number:05d}-of-{len(held):05d}.safetensors": shard for number, shard in enumerate(held, 1)}
    index = {"metadata": {}, "weight_map": {name: file for file, shard in files.items() for name, *_ in shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(write_sparse(folder / file, shard) for file, shard in files.items())


def shards(count: int, each: int, size: int) -> Iterator[Iterable[Tensor]]:
    """Yield so many shards of so many tensors each."""
    return (tensors(each, size, number * each) for number in range(count))


def resizing(folder: Path, rows: int, output: Path) -> list[str]:
    """The command that resizes a checkpoint."""
    return [*PROGRAM, "resize", str(folder), "--to", str(rows), "-o", str(output), "--quiet"]


def bound(headers: int, rows: int, width: int = 8) -> float:
    """MB that a resize may take."""
    return BASE + 3 * (8 * rows * width + headers) / 1e6


CASES: dict[str, tuple[Callable[[Path], int], int, int]] = {
    "plain": (lambda folder: write_checkpoint(folder, tensors(50, 4000)), 32, 8),
    "12 GB in 12 shards": (lambda folder: write_checkpoint(folder, *shards(12, 10, 100_000_000)), 32, 8),
    "2,000 shards": (lambda folder: write_checkpoint(folder, *shards(2_000, 5, 400)), 32, 8),
    "10,000 tensors": (lambda folder: write_checkpoint(folder, tensors(10_000, 16)), 32, 8),
    "100,000 tensors": (lambda folder: write_checkpoint(folder, tensors(100_000, 16)), 32, 8),
    "800,000 tensors": (lambda folder: write_checkpoint(folder, tensors(800_000, 16)), 32, 8),
    "100,000 x 768 rows": (lambda folder: write_checkpoint(folder, rows=50_000, width=768), 100_000, 768),
    "1,000,000 x 768 rows": (lambda folder: write_checkpoint(folder, rows=500_000, width=768), 1_000_000, 768),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES)[:-1])
    arguments = parser.parse_args()
    print("| case | headers, MB | bound, MB | peak memory, MB | seconds |")
    print("|---|---:|---:|---:|---:|")
    for name in arguments.cases:
        make, rows, width = CASES[name]
        with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
            source, output = Path(temporary) / "source", Path(temporary) / "out"
            headers = make(source)
            cost = measure(resizing(source, rows, output))
            shutil.rmtree(output)
        promised = bound(headers, rows, width)
        print(
            f"| {name} | {headers / 1e6:.1f} | {promised:.0f} | {cost.megabytes:.0f} | {cost.seconds:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
