"""Every benchmark that takes less than ten minutes, and one table of them.

    python -m benchmarks [--only NAME ...] [--rounds N] [--folder DIR] [--out DIR]

Writes `table.md` and `table.json` into `--out`. Each benchmark runs in a process of its own: what this one held would
count as the peak of those that it starts. Exits 1 where a row misses its target or a benchmark fails; the others run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, find_versions
from benchmarks.table import OUT, Record, add_options, markdown

__all__ = ["is_met", "run", "written"]

BENCHMARKS = ("startup", "inspect", "resize", "memory", "verify", "cloning", "evaluate", "compare", "train")


def main() -> None:
    """Run what is asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, None)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the table goes; {OUT} if not given")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.gettempdir())
    options = ["--folder", str(folder), *(["--rounds", str(asked.rounds)] if asked.rounds else [])]
    machine = describe_machine(folder)
    count = len(asked.only)
    found = [run(f"benchmarks.{name}", options, f"{at} of {count}: ") for at, name in enumerate(asked.only, 1)]
    table = {"schema_version": 1, "machine": machine, "versions": find_versions(), "benchmarks": found}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "table.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (asked.out / "table.md").write_text("\n".join(written(table)) + "\n", encoding="utf-8")
    print((asked.out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"Written to {asked.out}.", file=sys.stderr)
    sys.exit(not is_met(found))


def run(module: str, options: Sequence[str], place: str = "") -> Record:
    """Run one benchmark to its end, with progress on stderr.

    Args:
        module: It, such as benchmarks.resize.
        options: Of its command line.
        place: Put in front of its name, to say how far all of them are.

    Returns:
        Its `name`, `seconds`, `failed` (whether it ended without its last row), `rounds` and `rows`.
    """
    print(f"{place}{module}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "rows.json"
        command = [sys.executable, "-m", module, "--json", str(file), *options]
        status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rounds": None, "rows": []}
    # A failure and a missed row both exit 1: only the second has every row, and one of them missed.
    failed = status not in (0, 1) or not found["rows"] or (status == 1 and all(row["is_met"] for row in found["rows"]))
    seconds = time.perf_counter() - began
    return {"name": module.rpartition(".")[2], "seconds": round(seconds, 1), "failed": failed, **found}


def is_met(found: Sequence[Record]) -> bool:
    """Whether every benchmark ended, and every row reached its target."""
    return not any(one["failed"] for one in found) and all(row["is_met"] for one in found for row in one["rows"])


def written(table: Record) -> Iterator[str]:
    """Yield the page line by line: the machine, the versions, the rows, and what failed."""
    yield "# What was measured\n"
    for what in ("machine", "versions"):
        yield f"- {what}: {', '.join(f'{name} {value}' for name, value in table[what].items())}"
    taken = (f"{one['name']} {one['rounds']} in {one['seconds']:,.0f} s" for one in table["benchmarks"])
    yield f"- rounds of each benchmark: {', '.join(taken)}\n"
    yield from markdown(row for one in table["benchmarks"] for row in one["rows"])
    for one in table["benchmarks"]:
        if one["failed"]:
            yield f"\n**{one['name']} failed**: it ended before its last row."


if __name__ == "__main__":
    main()
