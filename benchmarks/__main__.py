"""Every promise of cost as a ratio, measured side by side, and one table of them.

    python -m benchmarks [--only NAME ...] [--rounds N] [--folder DIR] [--out DIR]

Prints progress on stderr, writes `table.md` and `table.json` into `--out` after each benchmark, and exits 1 where a row
misses its target or a benchmark fails; the others run all the same.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.files import inspect_rows, reflink_rows, resize_rows, verify_rows
from benchmarks.machine import describe_machine, find_versions
from benchmarks.measure import Row
from benchmarks.models import compare_rows, evaluate_rows, train_rows

__all__ = ["BENCHMARKS", "main", "markdown"]

# Each with its usual number of rounds.
BENCHMARKS = {
    "resize": (resize_rows, 5),
    "reflink": (reflink_rows, 5),
    "inspect": (inspect_rows, 9),
    "verify": (verify_rows, 5),
    "evaluate": (evaluate_rows, 3),
    "train": (train_rows, 2),
    "compare": (compare_rows, 3),
}

# Of the checkout: on a disk, where temporary folders often are not.
BUILD = Path("build")


def main() -> None:
    """Run what is asked for, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each side runs")
    parser.add_argument("--folder", type=Path, default=BUILD, metavar="DIR", help="where the measured files go")
    parser.add_argument("--out", type=Path, default=BUILD / "benchmarks", metavar="DIR", help="where the table goes")
    asked = parser.parse_args()
    for folder in (asked.folder, asked.out):
        folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, Any] = {"machine": describe_machine(asked.folder), "versions": find_versions(), "failed": []}
    rows: list[Row] = []
    for name in asked.only:
        print(name, file=sys.stderr, flush=True)
        benchmark, rounds = BENCHMARKS[name]
        with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
            try:
                rows.extend(benchmark(Path(temporary).resolve(), asked.rounds or rounds))
            except SystemExit as error:
                print(error, file=sys.stderr)
                table["failed"].append(name)
        table["rows"] = [row.to_json() for row in rows]
        (asked.out / "table.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (asked.out / "table.md").write_text("\n".join(markdown(table, rows)) + "\n", "utf-8")
    print((asked.out / "table.md").read_text("utf-8"), end="")
    sys.exit(bool(table["failed"]) or not all(row.is_met for row in rows))


def markdown(table: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """Yield the page line by line: the machine, the versions, the rows, and what failed."""
    yield "# Measured\n"
    for what in ("machine", "versions"):
        yield f"- {what}: {', '.join(f'{name} {value}' for name, value in table[what].items())}"
    yield "\n| measure | ours, median (min - max) | peer | its median (min - max) | target | ratio | |"
    yield "|---|---:|---|---:|---:|---:|---|"
    for row in rows:
        sides = []
        for values in (row.ours, row.theirs):
            digits = 2 if row.unit == "s" else 0
            spread = f"{min(values):,.{digits}f} - {max(values):,.{digits}f}"
            sides.append(f"{statistics.median(values):,.{digits}f} {row.unit} ({spread})")
        verdict = "met" if row.is_met else "**missed**"
        yield f"| {row.measure} | {sides[0]} | {row.peer} | {sides[1]} | {row.target} | {row.ratio:.2f} x | {verdict} |"
    for name in table["failed"]:
        yield f"\n**{name} failed**: rows of it were not measured; stderr says why."


if __name__ == "__main__":
    main()
