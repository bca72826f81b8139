"""Compare `resize`, `inspect` and `verify` with transformers, `cp` and `cmp`.

`resize` syncs its files and their folder, so `cp` is followed by a sync of its files and folder;
transformers does not sync. Before each run, the last output is deleted and all writes are synced.
`cmp` stops at the first difference, so for the shard with the table it compares the bytes before
the table and those after it.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.checkpoints import LARGE, SMALL, TABLE, Shape, write
from benchmarks.disks import KINDS, mounted, new_blocks
from benchmarks.measure import CTXEXTEND, Cost, Row, alternate, measure, python

__all__ = ["inspect_rows", "reflink_rows", "resize_rows", "verify_rows"]

TRANSFORMERS = """
import sys, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1])
old, rows = model.transformer.wpe.weight.data, 4096
new = torch.nn.Embedding(rows, old.shape[1])
new.weight.data[:] = torch.nn.functional.interpolate(
    old.T.unsqueeze(0), size=rows, mode="linear", align_corners=True)[0].T
model.transformer.wpe = new
model.config.n_positions = rows
model.save_pretrained(sys.argv[2])
"""


def resize_command(source: Path, output: Path, rows: int = 4096) -> list[object]:
    """Return the `ctxextend resize` command, with the method that the transformers code uses."""
    return [
        *CTXEXTEND,
        "resize",
        source,
        "--to",
        rows,
        "--method",
        "linear",
        "-o",
        output,
        "--quiet",
    ]


def copy_command(source: Path, output: Path) -> list[object]:
    """Return a command that copies a folder and syncs the new files and the new folder."""
    old, new = shlex.quote(str(source)), shlex.quote(str(output))
    return ["sh", "-c", f"cp -r {old} {new} && sync {new}/* {new}"]


def clear_output(output: Path) -> Callable[[], None]:
    """Return a function that deletes the last output and syncs all writes."""

    def clear() -> None:
        shutil.rmtree(output, ignore_errors=True)
        os.sync()

    return clear


def seconds(costs: Sequence[Cost]) -> list[float]:
    """Return the wall times of all rounds."""
    return [cost.seconds for cost in costs]


def megabytes(costs: Sequence[Cost]) -> list[float]:
    """Return the peak memory of all rounds."""
    return [cost.megabytes for cost in costs]


def resize_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `resize` of 498 MB with transformers, and of 6.2 GB with `cp -r`; and its memory."""
    source = folder / "source"
    output = folder / "out"
    transformers = python(TRANSFORMERS, source, output)
    baseline = "transformers: load, interpolate, save"
    small, loaded = _alternate_resize(folder, SMALL, 4096, transformers, rounds)
    yield Row(
        measure="`resize`, 498 MB: time",
        unit="s",
        values=seconds(small),
        baseline=baseline,
        baseline_values=seconds(loaded),
        maximum=1 / 6,
    )
    yield Row(
        measure="`resize`, 498 MB: peak memory",
        unit="MB",
        values=megabytes(small),
        baseline=baseline,
        baseline_values=megabytes(loaded),
        maximum=1 / 8,
    )
    copy = copy_command(source, output)
    large, copied = _alternate_resize(folder, LARGE, 2048, copy, rounds)
    yield Row(
        measure="`resize`, 6.2 GB in shards: time",
        unit="s",
        values=seconds(large),
        baseline="`cp -r` + sync",
        baseline_values=seconds(copied),
        maximum=1.25,
    )
    yield Row(
        measure="`resize`, 6.2 GB: peak memory",
        unit="MB",
        values=megabytes(large),
        baseline="`resize`, 498 MB",
        baseline_values=megabytes(small),
        maximum=1.5,
    )


def _alternate_resize(
    folder: Path, shape: Shape, rows: int, baseline: Sequence[object], rounds: int
) -> tuple[list[Cost], list[Cost]]:
    """Return the costs of `resize` and of a baseline on a new checkpoint."""
    source = folder / "source"
    output = folder / "out"
    write(source, shape)
    routes = {
        "ctxextend": partial(measure, resize_command(source, output, rows)),
        "baseline": partial(measure, baseline),
    }
    costs, baseline_costs = alternate(routes, rounds, clear_output(output))
    shutil.rmtree(source)
    return costs, baseline_costs


def reflink_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `resize` of 6.2 GB and 498 MB on disks that share blocks.

    Neither time nor new blocks should grow.

    Raises:
        SystemExit: A disk cannot be mounted; the others are measured first.
    """
    failed = []
    for kind in KINDS:
        try:
            with mounted(folder, kind, 16 << 30) as disk:  # disk space is checked for a full copy
                yield from _reflink_rows_of(kind, disk, rounds)
        except OSError as error:
            failed.append(f"{kind} was not measured: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def _reflink_rows_of(kind: str, disk: Path, rounds: int) -> Iterator[Row]:
    output = disk / "out"
    blocks: dict[str, list[float]] = {"small": [], "large": []}  # new ones, in MB

    def resize(source: Path) -> Cost:
        cost = measure(resize_command(source, output))
        blocks[source.name].append(new_blocks(output) / 1e6)
        return cost

    write(disk / "small", SMALL)
    write(disk / "large", LARGE)
    routes = {size: partial(resize, disk / size) for size in ("large", "small")}
    large, small = alternate(routes, rounds, clear_output(output))
    yield Row(
        measure=f"`resize`, 6.2 GB on {kind}: time",
        unit="s",
        values=seconds(large),
        baseline="498 MB",
        baseline_values=seconds(small),
        maximum=1.5,
    )
    yield Row(
        measure=f"`resize`, 6.2 GB on {kind}: new blocks",
        unit="MB",
        values=blocks["large"],
        baseline="the new table",
        baseline_values=[4 * LARGE.width * 4096 / 1e6],
        maximum=1.5,
    )


def inspect_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `inspect` of 6.2 GB with `inspect` of the bundled 4 MB checkpoint."""
    write(folder / "large", LARGE)
    routes = {
        "6.2 GB": partial(measure, [*CTXEXTEND, "inspect", folder / "large"]),
        "4 MB": partial(measure, [*CTXEXTEND, "inspect", "tiny-gpt2"]),
    }
    large, small = alternate(routes, rounds)
    yield Row(
        measure="`inspect`, 6.2 GB: time",
        unit="s",
        values=seconds(large),
        baseline="`inspect`, 4 MB",
        baseline_values=seconds(small),
        maximum=1.5,
    )


def verify_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `verify` of 6.2 GB with `cmp` of the same bytes.

    A first run of both fills the disk cache.
    """
    source = folder / "source"
    output = folder / "out"
    write(source, LARGE)
    measure([*CTXEXTEND, "resize", source, "--to", 2048, "-o", output])
    commands: dict[str, Sequence[object]] = {
        "verify": [*CTXEXTEND, "verify", output, "--base", source],
        "cmp": cmp_command(source, output),
    }
    for command in commands.values():
        measure(command)
    routes = {name: partial(measure, command) for name, command in commands.items()}
    verified, compared = alternate(routes, rounds)
    yield Row(
        measure="`verify`, 6.2 GB: time",
        unit="s",
        values=seconds(verified),
        baseline="`cmp`",
        baseline_values=seconds(compared),
        maximum=1.0,
    )


def read_header(file: Path) -> tuple[int, dict[str, dict[str, list[int]]]]:
    """Return the offset of the first tensor of a safetensors file, and the header."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        return 8 + length, json.loads(stream.read(length))


def cmp_command(source: Path, output: Path) -> list[str]:
    """Return a command that compares all tensors except the table with `cmp`."""
    commands = ["set -e"]
    for file in sorted(source.glob("*.safetensors")):
        paths = " ".join(shlex.quote(str(path)) for path in (file, output / file.name))
        start, header = read_header(file)
        new_start, new_header = read_header(output / file.name)
        if TABLE not in header:
            commands.append(f"cmp {paths}")
            continue
        table_start, table_stop = header[TABLE]["data_offsets"]
        _, new_table_stop = new_header[TABLE]["data_offsets"]
        commands.append(f"cmp -i {start}:{new_start} -n {table_start} {paths}")
        commands.append(f"cmp -i {start + table_stop}:{new_start + new_table_stop} {paths}")
    return ["sh", "-c", "\n".join(commands)]
