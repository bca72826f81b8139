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

from benchmarks.checkpoints import LARGE, SMALL, TABLE, write
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


def resize_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `resize` of 498 MB with transformers, and of 6.2 GB with `cp -r`; and its memory for
    both.
    """
    output = folder / "out"
    peaks = []
    for name, shape, rows, baseline, baseline_command in (
        (
            "498 MB",
            SMALL,
            4096,
            "transformers: load, interpolate, save",
            partial(python, TRANSFORMERS),
        ),
        ("6.2 GB in shards", LARGE, 2048, "`cp -r` + sync", copy_command),
    ):
        source = folder / "source"
        write(source, shape)
        routes = {
            "ctxextend": partial(measure, resize_command(source, output, rows)),
            baseline: partial(measure, baseline_command(source, output)),
        }
        costs, baseline_costs = alternate(routes, rounds, clear_output(output))
        shutil.rmtree(source)
        peaks.append([cost.megabytes for cost in costs])
        times = (
            [cost.seconds for cost in costs],
            baseline,
            [cost.seconds for cost in baseline_costs],
        )
        if shape is SMALL:
            yield Row(f"`resize`, {name}: time", "s", *times, maximum=1 / 6)
            memory = peaks[0], baseline, [cost.megabytes for cost in baseline_costs]
            yield Row(f"`resize`, {name}: peak memory", "MB", *memory, maximum=1 / 8)
        else:
            yield Row(f"`resize`, {name}: time", "s", *times, maximum=1.25)
    yield Row(
        "`resize`, 6.2 GB: peak memory", "MB", peaks[1], "`resize`, 498 MB", peaks[0], maximum=1.5
    )


def reflink_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `resize` of 6.2 GB and 498 MB on disks that share blocks: neither time nor new blocks
    should grow.

    Raises:
        SystemExit: A disk cannot be mounted; the others are measured first.
    """
    failed = []
    for kind in KINDS:
        try:
            with mounted(folder, kind, 16 << 30) as disk:  # disk space is checked for a full copy
                output = disk / "out"
                megabytes = {"small": list[float](), "large": list[float]()}

                def resize(
                    source: Path,
                    output: Path = output,
                    megabytes: dict[str, list[float]] = megabytes,
                ) -> Cost:
                    cost = measure(resize_command(source, output))
                    megabytes[source.name].append(new_blocks(output) / 1e6)
                    return cost

                write(disk / "small", SMALL)
                write(disk / "large", LARGE)
                routes = {size: partial(resize, disk / size) for size in ("large", "small")}
                large, small = alternate(routes, rounds, clear_output(output))
                times = [cost.seconds for cost in large], "498 MB", [cost.seconds for cost in small]
                yield Row(f"`resize`, 6.2 GB on {kind}: time", "s", *times, maximum=1.5)
                blocks = megabytes["large"], "the new table", [4 * LARGE.width * 4096 / 1e6]
                yield Row(f"`resize`, 6.2 GB on {kind}: new blocks", "MB", *blocks, maximum=1.5)
        except OSError as error:
            failed.append(f"{kind} was not measured: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def inspect_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `inspect` of 6.2 GB with `inspect` of the bundled 4 MB checkpoint."""
    write(folder / "large", LARGE)
    names = {"6.2 GB": folder / "large", "4 MB": "tiny-gpt2"}
    routes = {
        name: partial(measure, [*CTXEXTEND, "inspect", source]) for name, source in names.items()
    }
    large, small = alternate(routes, rounds)
    times = [cost.seconds for cost in large], "`inspect`, 4 MB", [cost.seconds for cost in small]
    yield Row("`inspect`, 6.2 GB: time", "s", *times, maximum=1.5)


def verify_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `verify` of 6.2 GB with `cmp` of the same bytes, after a first run of both to fill
    the disk cache.
    """
    source, output = folder / "source", folder / "out"
    write(source, LARGE)
    measure([*CTXEXTEND, "resize", source, "--to", 2048, "-o", output])
    verify: list[object] = [*CTXEXTEND, "verify", output, "--base", source]
    commands: dict[str, Sequence[object]] = {"verify": verify, "cmp": cmp_command(source, output)}
    for command in commands.values():
        measure(command)
    costs, baseline_costs = alternate(
        {name: partial(measure, command) for name, command in commands.items()}, rounds
    )
    times = [cost.seconds for cost in costs], "`cmp`", [cost.seconds for cost in baseline_costs]
    yield Row("`verify`, 6.2 GB: time", "s", *times, maximum=1.0)


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
        (start, header), (new_start, new_header) = (
            read_header(file),
            read_header(output / file.name),
        )
        if TABLE not in header:
            commands.append(f"cmp {paths}")
            continue
        offsets, new_offsets = header[TABLE]["data_offsets"], new_header[TABLE]["data_offsets"]
        commands.append(f"cmp -i {start}:{new_start} -n {offsets[0]} {paths}")
        commands.append(f"cmp -i {start + offsets[1]}:{new_start + new_offsets[1]} {paths}")
    return ["sh", "-c", "\n".join(commands)]
