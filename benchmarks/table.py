"""The one table of what was measured: as Markdown for people, as JSON for machines."""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import SHOWN, Row

__all__ = [
    "BUILD",
    "OUT",
    "Benchmark",
    "Record",
    "add_options",
    "folder_in",
    "markdown",
    "record",
    "run_alone",
    "summary",
]

# Measures in a folder, so many rounds, and yields rows as they are known.
Benchmark = Callable[[Path, int], Iterable[Row]]

# Of the checkout: on a disk, where temporary folders often are not. It has the results too that nobody chose a place
# for; those of the reference run are in benchmarks/results.
BUILD = Path("build")
OUT = BUILD / "benchmarks"

# A row as JSON has it.
Record = Mapping[str, Any]

HEAD = """\
| measure | ours, median (min - max) | peer | its median (min - max) | must reach | reached | |
|---|---:|---|---:|---:|---:|---|"""

# Digits behind the point of a value, by its unit; the others have none.
DIGITS = {"s": 3, "x": 2}


def record(row: Row) -> Record:
    """Return a row as JSON has it: every value of both sides, their medians and spread, and what was reached."""
    return {
        "measure": row.measure,
        "unit": row.unit,
        "ours": summary(row.ours),
        "peer": {"name": row.peer, **summary(row.theirs)} if row.theirs else None,
        "target": {"said": row.target.said, "limit": row.target.limit, "unit": row.target.unit},
        "reached": row.reached,
        "is_met": row.is_met,
    }


def summary(values: Sequence[float]) -> Record:
    """Return values as JSON has them: their median, their spread, and all of them."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": list(values)}


def markdown(records: Iterable[Record]) -> Iterator[str]:
    """Yield the table line by line."""
    yield HEAD
    for row in records:
        target, peer = row["target"], row["peer"]
        reached = f"{row['reached']:.{DIGITS.get(target['unit'], 0)}f} {target['unit']}"
        sides = (_spread(row["ours"], row["unit"]), peer["name"] if peer else "", _spread(peer, row["unit"]))
        mark = "" if target["said"] == SHOWN else "met" if row["is_met"] else "**missed**"
        yield f"| {' | '.join((row['measure'], *sides, target['said'], reached, mark))} |"


def _spread(summary: Record | None, unit: str) -> str:
    if summary is None:
        return ""
    middle, least, most = (f"{summary[name]:,.{DIGITS.get(unit, 0)}f}" for name in ("median", "min", "max"))
    return f"{middle} {unit} ({least} - {most})"


def add_options(parser: argparse.ArgumentParser, rounds: int | None) -> None:
    """Add the options that every benchmark has."""
    said = f"where the files go that are measured; {BUILD} if not given"
    parser.add_argument("--rounds", type=_rounds, default=rounds, metavar="N", help="how often each route runs")
    parser.add_argument("--folder", type=_folder, default=str(BUILD), metavar="DIR", help=said)


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 up")
    return int(text)


def _folder(text: str) -> Path:
    if Path(text) == BUILD:
        BUILD.mkdir(exist_ok=True)
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)


@contextlib.contextmanager
def folder_in(place: Path) -> Iterator[Path]:
    """Give a new folder for what is measured; it is deleted at the end."""
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        yield Path(temporary).resolve()


def run_alone(benchmark: Benchmark, described: str, rounds: int) -> None:
    """Run one benchmark as a program, and print its rows as Markdown; exit 1 where one is missed.

    Options: `--rounds N`, `--folder DIR`, and `--json FILE`, which gets the rows too, those of a failed run included.
    """
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds)
    parser.add_argument("--json", type=Path, default=None, help="a file for the rows")
    arguments = parser.parse_args()
    records: list[Record] = []
    is_complete = False
    try:
        with folder_in(arguments.folder) as folder:
            for row in benchmark(folder, arguments.rounds):
                records.append(record(row))
        is_complete = True
    finally:
        if arguments.json:
            told = {"rounds": arguments.rounds, "is_complete": is_complete, "rows": records}
            arguments.json.write_text(json.dumps(told))
        print("\n".join(markdown(records)), flush=True)
    sys.exit(not all(row["is_met"] for row in records))
