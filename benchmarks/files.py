"""`resize`, `inspect` and `verify` beside transformers, `cp` and `cmp`.

`resize` waits until its files and their folder are on the disk, so `cp` is followed by a sync of its own files and
folder; transformers waits for no disk. Before each run the last output is deleted and the disk is at rest. `cmp` stops
at the first byte that differs, so of the shard with the table it reads what lies before the table and after it.
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
    """Our command, with the method that the transformers route has too."""
    return [*CTXEXTEND, "resize", source, "--to", rows, "--method", "linear", "-o", output, "--quiet"]


def copy_command(source: Path, output: Path) -> list[object]:
    """Copy a folder, then wait until its files and the folder itself are on the disk."""
    one, other = shlex.quote(str(source)), shlex.quote(str(output))
    return ["sh", "-c", f"cp -r {one} {other} && sync {other}/* {other}"]


def cleared(output: Path) -> Callable[[], None]:
    """What is done before each run: nothing of the last one is left, not even to be written."""

    def clear() -> None:
        shutil.rmtree(output, ignore_errors=True)
        os.sync()

    return clear


def resize_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield `resize` of 498 MB beside transformers, and of 6.2 GB beside `cp -r`; and its memory for both."""
    output = folder / "out"
    peaks = []
    for name, shape, rows, peer, peer_command in (
        ("498 MB", SMALL, 4096, "transformers: load, interpolate, save", partial(python, TRANSFORMERS)),
        ("6.2 GB in shards", LARGE, 2048, "`cp -r` + sync", copy_command),
    ):
        source = folder / "source"
        write(source, shape)
        routes = {
            "ctxextend": partial(measure, resize_command(source, output, rows)),
            peer: partial(measure, peer_command(source, output)),
        }
        ours, theirs = alternate(routes, rounds, cleared(output))
        shutil.rmtree(source)
        peaks.append([cost.megabytes for cost in ours])
        times = [cost.seconds for cost in ours], peer, [cost.seconds for cost in theirs]
        if shape is SMALL:
            yield Row(f"`resize`, {name}: time", "s", *times, maximum=1 / 6)
            memory = peaks[0], peer, [cost.megabytes for cost in theirs]
            yield Row(f"`resize`, {name}: peak memory", "MB", *memory, maximum=1 / 8)
        else:
            yield Row(f"`resize`, {name}: time", "s", *times, maximum=1.25)
    yield Row("`resize`, 6.2 GB: peak memory", "MB", peaks[1], "`resize`, 498 MB", peaks[0], maximum=1.5)


def reflink_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield `resize` of 6.2 GB beside 498 MB on disks that share blocks: neither time nor new blocks grow.

    Raises:
        SystemExit: A disk could not be mounted; the others are measured first.
    """
    failed = []
    for kind in KINDS:
        try:
            with mounted(folder, kind, 16 << 30) as disk:  # room for a copy, which is asked for though it is shared
                output, taken = disk / "out", {"small": [0.0], "large": [0.0]}

                def resize(source: Path, output: Path = output, taken: dict[str, list[float]] = taken) -> Cost:
                    cost = measure(resize_command(source, output))
                    taken[source.name].append(new_blocks(output) / 1e6)
                    return cost

                write(disk / "small", SMALL)
                write(disk / "large", LARGE)
                routes = {size: partial(resize, disk / size) for size in ("large", "small")}
                large, small = alternate(routes, rounds, cleared(output))
                times = [cost.seconds for cost in large], "498 MB", [cost.seconds for cost in small]
                yield Row(f"`resize`, 6.2 GB on {kind}: time", "s", *times, maximum=1.5)
                blocks = taken["large"][1:], "its new table", [4 * LARGE.width * 4096 / 1e6]
                yield Row(f"`resize`, 6.2 GB on {kind}: new blocks", "MB", *blocks, maximum=1.5)
        except OSError as error:
            failed.append(f"{kind} was not measured: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def inspect_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield `inspect` of 6.2 GB beside that of the bundled checkpoint of 4 MB."""
    write(folder / "large", LARGE)
    names = {"6.2 GB": folder / "large", "4 MB": "tiny-gpt2"}
    routes = {name: partial(measure, [*CTXEXTEND, "inspect", source]) for name, source in names.items()}
    large, small = alternate(routes, rounds)
    times = [cost.seconds for cost in large], "`inspect`, 4 MB", [cost.seconds for cost in small]
    yield Row("`inspect`, 6.2 GB: time", "s", *times, maximum=1.5)


def verify_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield `verify` of 6.2 GB beside `cmp` of the same bytes, both once before to fill the disk cache."""
    source, output = folder / "source", folder / "out"
    write(source, LARGE)
    measure([*CTXEXTEND, "resize", source, "--to", 2048, "-o", output])
    verify: list[object] = [*CTXEXTEND, "verify", output, "--base", source]
    commands: dict[str, Sequence[object]] = {"verify": verify, "cmp": cmp_command(source, output)}
    for command in commands.values():
        measure(command)
    ours, theirs = alternate({name: partial(measure, command) for name, command in commands.items()}, rounds)
    times = [cost.seconds for cost in ours], "`cmp`", [cost.seconds for cost in theirs]
    yield Row("`verify`, 6.2 GB: time", "s", *times, maximum=1.0)


def header_of(file: Path) -> tuple[int, dict[str, dict[str, list[int]]]]:
    """Return where a safetensors file's first tensor starts, and what its header says of each."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return 8 + length, json.loads(opened.read(length))


def cmp_command(source: Path, output: Path) -> list[str]:
    """Let `cmp` read all tensors but the table: of its shard, what lies before the table and what lies after it."""
    commands = ["set -e"]
    for file in sorted(source.glob("*.safetensors")):
        paths = " ".join(shlex.quote(str(path)) for path in (file, output / file.name))
        (ours, before), (theirs, after) = header_of(file), header_of(output / file.name)
        if TABLE not in before:
            commands.append(f"cmp {paths}")
            continue
        offsets, moved = before[TABLE]["data_offsets"], after[TABLE]["data_offsets"]
        commands.append(f"cmp -i {ours}:{theirs} -n {offsets[0]} {paths}")
        commands.append(f"cmp -i {ours + offsets[1]}:{theirs + moved[1]} {paths}")
    return ["sh", "-c", "\n".join(commands)]
