"""The one table of what was measured: as Markdown for people, as JSON for machines."""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.measuring import Row

__all__ = ["Benchmark", "markdown", "run_alone"]

# Measures in a folder, so many rounds, and yields rows as they are known.
Benchmark = Callable[[Path, int], Iterable[Row]]

HEAD = """\
| measure | ours, median (min - max) | peer | its median (min - max) | must reach | reached | |
|---|---:|---|---:|---:|---:|---|"""


def markdown(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the table line by line."""
    yield HEAD
    for row in rows:
        reached = f"{row.reached:.2f} {row.target.unit}"
        mark = "met" if row.is_met else "**missed**"
        sides = (_spread(row.ours, row.unit), row.peer, _spread(row.theirs, row.unit))
        yield f"| {' | '.join((row.measure, *sides, row.target.said, reached, mark))} |"


def _spread(values: Iterable[float], unit: str) -> str:
    found = list(values)
    if not found:
        return ""
    middle, least, most = (f"{pick(found):.{3 if unit == 's' else 0}f}" for pick in (statistics.median, min, max))
    return f"{middle} {unit} ({least} - {most})"


def run_alone(benchmark: Benchmark, described: str, rounds: int) -> None:
    """Run one benchmark as a program: `--rounds N`, `--folder DIR`; exit 1 where a row is missed."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--folder", type=Path, default=None, help="where the files go that are measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        rows = list(benchmark(Path(temporary), arguments.rounds))
    print("\n".join(markdown(rows)))
    sys.exit(not all(row.is_met for row in rows))
