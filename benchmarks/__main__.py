"""Measure time and memory against alternatives, as ratios with targets.

    python -m benchmarks [--only NAME ...] [--rounds N] [--folder DIR] [--out DIR]

Prints progress to stderr, writes `table.md` and `table.json` to `--out` after each benchmark, and
exits with 1 if a row misses its target or a benchmark fails; the other benchmarks still run.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import inspect_rows, reflink_rows, resize_rows, verify_rows
from benchmarks.machine import describe_machine, find_versions
from benchmarks.measure import Row
from benchmarks.models import evaluate_rows, methods_rows, train_rows
from benchmarks.start_up import start_up_rows

__all__ = ["BENCHMARKS", "main", "markdown"]

# Each with its default number of rounds.
BENCHMARKS = {
    "start-up": (start_up_rows, 9),
    "resize": (resize_rows, 5),
    "reflink": (reflink_rows, 5),
    "inspect": (inspect_rows, 9),
    "verify": (verify_rows, 5),
    "evaluate": (evaluate_rows, 3),
    "train": (train_rows, 2),
    "methods": (methods_rows, 3),
}

# In the checkout, because the temporary folder is often in memory.
BUILD = Path("build")


def main() -> None:
    """Run the requested benchmarks and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of each side")
    parser.add_argument(
        "--folder", type=Path, default=BUILD, metavar="DIR", help="folder for the measured files"
    )
    parser.add_argument(
        "--out", type=Path, default=BUILD / "benchmarks", metavar="DIR", help="folder for the table"
    )
    arguments = parser.parse_args()
    for folder in (arguments.folder, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, Any] = {
        "machine": describe_machine(arguments.folder),
        "versions": find_versions(),
        "failed": [],
    }
    rows: list[Row] = []
    for name in arguments.only:
        print(name, file=sys.stderr, flush=True)
        benchmark, rounds = BENCHMARKS[name]
        with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
            try:
                rows.extend(benchmark(Path(temporary).resolve(), arguments.rounds or rounds))
            except SystemExit as error:
                print(error, file=sys.stderr)
                table["failed"].append(name)
        table["rows"] = [row.to_json() for row in rows]
        data = json.dumps(table, indent=1, ensure_ascii=False) + "\n"
        (arguments.out / "table.json").write_text(data, "utf-8")
        page = "\n".join(markdown(table, rows)) + "\n"
        (arguments.out / "table.md").write_text(page, "utf-8")
    print((arguments.out / "table.md").read_text("utf-8"), end="")
    sys.exit(bool(table["failed"]) or not all(row.is_met for row in rows))


def markdown(table: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the Markdown page: machine, versions, rows and failed benchmarks."""
    yield "# Results\n"
    for key in ("machine", "versions"):
        facts = [f"{name} {value}" for name, value in table[key].items()]
        yield f"- {key}: {', '.join(facts)}"
    yield (
        "\n| measure | ctxextend, median (min - max) | baseline | baseline, median (min - max) | "
        "target | ratio | |"
    )
    yield "|---|---:|---|---:|---:|---:|---|"
    for row in rows:
        verdict = "met" if row.is_met else "**missed**"
        cells = [
            row.measure,
            spread(row.values, row.unit),
            row.baseline,
            spread(row.baseline_values, row.unit),
            row.target,
            f"{row.ratio:.2f} x",
            verdict,
        ]
        yield f"| {' | '.join(cells)} |"
    for name in table["failed"]:
        yield f"\n**{name} failed** and some of its rows are missing; see stderr."


def spread(values: Sequence[float], unit: str) -> str:
    """Return the median of values, and the lowest and highest; seconds have two decimals."""
    digits = 2 if unit == "s" else 0
    median = statistics.median(values)
    lowest = f"{min(values):,.{digits}f}"
    highest = f"{max(values):,.{digits}f}"
    return f"{median:,.{digits}f} {unit} ({lowest} - {highest})"


if __name__ == "__main__":
    main()
