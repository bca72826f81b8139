"""What `ctxextend resize` costs against what it is given: models of 0.1 to 12 GB, tables of 1,000 to 1,000,000 rows.

Models are of real bytes, in shards of 0.5 GB, 768 wide, and go from 1,024 to 4,096 positions, beside `cp -r` of the
model with a sync. Tables are 128 wide, in a model of 12 MB with 512 positions, beside `cp -r` of the result. What the
disk has no room for twice is left out, and said so. Writes `costs.json` and `costs.svg` into `--out`.

    python -m benchmarks.costs [--rounds 3] [--folder DIR] [--out DIR] [--sizes GB ...] [--rows N ...]
    python -m benchmarks.costs --draw FILE.json [--out DIR]
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import bound
from benchmarks.machine import describe_machine, find_versions
from benchmarks.measuring import alternate, apart, measure, measured, megabytes, seconds
from benchmarks.resize import cleared, copy_and_sync, resizing
from benchmarks.sources import Shape, shape_of, write
from benchmarks.table import OUT, Record, add_options, folder_in, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "measure_costs"]

ROUNDS = 3
SIZES = (0.1, 0.5, 1.0, 3.0, 6.0, 12.0)
ROWS = (1_000, 10_000, 100_000, 1_000_000)

# Of the disk, beyond a source and its output.
SPARE = 2e9
WIDTH, AFTER = 768, 4096
NARROW = Shape(128, 12, 5000, 512)

OURS, PEER = "ctxextend", "cp -r + sync"


def main() -> None:
    """Measure what is asked for, or read it again; and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the figure goes; {OUT} if not given")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES, metavar="GB")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, metavar="N")
    parser.add_argument("--draw", type=Path, default=None, help="draw a costs.json of before")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.draw:
        found = json.loads(asked.draw.read_text(encoding="utf-8"))
    else:
        with folder_in(asked.folder) as folder:
            found = measure_costs(folder, asked.rounds, asked.sizes, asked.rows)
        text = json.dumps(found, indent=1, ensure_ascii=False)
        (asked.out / "costs.json").write_text(f"{text}\n", encoding="utf-8")
    draw(found, asked.out / "costs.svg")


def measure_costs(folder: Path, rounds: int, sizes: Sequence[float], rows: Sequence[int]) -> Record:
    """Return what was measured, as JSON has it: a record for each size and for each number of rows."""
    machine, versions = describe_machine(folder), find_versions()
    return {
        **{"schema_version": 1, "machine": machine, "versions": versions, "rounds": rounds},
        "sizes": list(_by_size(folder, rounds, sizes)),
        "rows": list(_by_rows(folder, rounds, rows)),
    }


def _by_size(folder: Path, rounds: int, sizes: Sequence[float]) -> Iterator[Record]:
    source, output = folder / "source", folder / "out"
    for size in sizes:
        if not _has_room(folder, size * 1e9):
            yield {"gigabytes": size, "left_out": "no room on the disk"}
            continue
        print(f"{size:g} GB", file=sys.stderr, flush=True)
        apart(write, source, shape_of(size * 1e9, WIDTH))
        costs = _costs(resizing(source, AFTER, output), source, output, rounds)
        shutil.rmtree(source)
        yield {"gigabytes": size, "promised_megabytes": bound(0, AFTER, WIDTH), **costs}


def _by_rows(folder: Path, rounds: int, rows: Sequence[int]) -> Iterator[Record]:
    source, result, output = folder / "source", folder / "result", folder / "out"
    apart(write, source, NARROW)
    for count in rows:
        print(f"{count:,} rows", file=sys.stderr, flush=True)
        measure(resizing(source, count, result))
        costs = _costs(resizing(source, count, output), result, output, rounds)
        shutil.rmtree(result)
        yield {"rows": count, "promised_megabytes": bound(0, count, NARROW.width), **costs}
    shutil.rmtree(source)


def _has_room(folder: Path, size: float) -> bool:
    has_room = shutil.disk_usage(folder).free >= 2 * size + SPARE
    if not has_room:
        print(f"{size / 1e9:g} GB left out: there is no room for it twice", file=sys.stderr, flush=True)
    return has_room


def _costs(command: list[str], copied: Path, output: Path, rounds: int) -> Record:
    """Return what a command that writes `output` takes, and how long a copy to the same place takes."""
    routes = {OURS: measured(command), PEER: measured(copy_and_sync(copied, output))}
    found = alternate(routes, rounds, cleared(output))
    cleared(output)()
    ours = {"seconds": summary(seconds(found[OURS])), "megabytes": summary(megabytes(found[OURS]))}
    return {OURS: ours, PEER: {"seconds": summary(seconds(found[PEER]))}}


def draw(found: Record, path: Path) -> None:
    """Write the figure: seconds and peak memory, by the model's size above and by the table's rows below."""
    from ctxextend.report.drawing import write as write_figure

    write_figure(path, lambda: _figure(found))


def _figure(found: Record) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), layout="constrained")
    figure.suptitle(_title(found), fontsize=9)
    above, below = figure.subplots(2, 2)
    _draw_time(above[0], found["sizes"], "gigabytes", "model (GB)")
    _draw_memory(above[1], found["sizes"], "gigabytes", "model (GB)")
    # Memory is flat above, which a logarithm would hide.
    above[1].set_yscale("linear")
    above[1].margins(y=0.2)
    above[1].set_ylim(bottom=0)
    _draw_time(below[0], found["rows"], "rows", "new table (rows of 128 numbers)")
    _draw_memory(below[1], found["rows"], "rows", "new table (rows of 128 numbers)")
    return figure


def _draw_time(axes: "Axes", points: Sequence[Record], key: str, label: str) -> None:
    measured_points = [point for point in points if PEER in point]
    lines = {name: [point[name]["seconds"]["median"] for point in measured_points] for name in (OURS, PEER)}
    axes.set(title="Time", xlabel=label, ylabel="seconds, median")
    _draw_lines(axes, [point[key] for point in measured_points], lines)


def _draw_memory(axes: "Axes", points: Sequence[Record], key: str, label: str) -> None:
    measured_points = [point for point in points if PEER in point]
    lines = {OURS: [point[OURS]["megabytes"]["median"] for point in measured_points]}
    lines["promised at most"] = [point["promised_megabytes"] for point in measured_points]
    axes.set(title="Peak memory", xlabel=label, ylabel="MB, median")
    _draw_lines(axes, [point[key] for point in measured_points], lines)


def _title(found: Record) -> str:
    machine = ", ".join(filter(None, (found["machine"].get(name) for name in ("CPU", "disk", "kernel"))))
    left_out = ", ".join(f"{point['gigabytes']:g} GB" for point in found["sizes"] if "left_out" in point)
    title = f"ctxextend resize {found['versions']['ctxextend']}: cost against size\n{machine}"
    return f"{title}\nno room on the disk for {left_out}" if left_out else title


def _draw_lines(axes: "Axes", places: Sequence[float], lines: dict[str, list[float]]) -> None:
    from matplotlib.ticker import LogLocator

    from ctxextend.report.drawing import COLOURS, MARKERS

    for number, (name, values) in enumerate(lines.items()):
        axes.plot(places, values, color=COLOURS[number], marker=MARKERS[number], label=name)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(places, [f"{place:,.10g}" for place in places])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    axes.legend()


if __name__ == "__main__":
    main()
