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

__all__ = ["is_met", "run", "save", "written"]

BENCHMARKS = ("startup", "inspect", "resize", "memory", "verify", "cloning", "evaluate", "compare", "train")


def main() -> None:
    """Run what is asked for, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, None)
    said = f"these, of {', '.join(BENCHMARKS)}"
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, metavar="NAME", help=said)
    said = f"where the table goes; {OUT} if not given"
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=said)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    options = ["--folder", str(asked.folder), *(["--rounds", str(asked.rounds)] if asked.rounds else [])]
    found: list[Record] = []
    table = {"schema_version": 1, "machine": describe_machine(asked.folder), "versions": find_versions()}
    for number, name in enumerate(asked.only, 1):
        found.append(run(f"benchmarks.{name}", options, f"{number} of {len(asked.only)}: "))
        save({**table, "benchmarks": found}, asked.out)
    print((asked.out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"Written to {asked.out}.", file=sys.stderr)
    sys.exit(not is_met(found))


def save(table: Record, out: Path) -> None:
    """Write the table as Markdown and as JSON; after each benchmark, so that one stopped later costs no other."""
    (out / "table.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "table.md").write_text("\n".join(written(table)) + "\n", encoding="utf-8")


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
        subprocess.run(command, stdout=sys.stderr, check=False)
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rounds": None, "rows": []}
    failed = not found.pop("is_complete", False)
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
    taken = (
        f"{one['name']} {one['rounds']} in {one['seconds']:,.0f} s" for one in table["benchmarks"] if one["rounds"]
    )
    yield f"- rounds of each benchmark: {', '.join(taken)}\n"
    yield from markdown(row for one in table["benchmarks"] for row in one["rows"])
    for one in table["benchmarks"]:
        if one["failed"]:
            yield f"\n**{one['name']} failed**: rows of it were not measured; what it printed says why."


if __name__ == "__main__":
    main()
