"""Every fault that `tests/faults` tries in part, tried in full; then mutated files and large ones.

    python -m benchmarks.soak [--seconds S] [--only faults fuzz load]

`faults` runs the tests with every system call in place of some: kills, stops, failures and changes of the source, of
resize, train, run, compare and what writes figures. `fuzz` and `load` are the benchmarks of those names. Printed is a
Markdown table: cases tried, faults injected, survived. Exits 1 where anything did not survive.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    """What became of the cases of one kind."""

    what: str
    cases: int
    faults: Counter[str]
    failed: int
    seconds: float

    def __str__(self) -> str:
        injected = ", ".join(f"{count:,} {fault}" for fault, count in sorted(self.faults.items())) or "-"
        survived = "all" if not self.failed else f"all but {self.failed}"
        return f"| {self.what} | {self.cases:,} | {injected} | {survived} | {self.seconds:,.0f} |"


def run_faults() -> list[Outcome]:
    """Run the tests of faults in full; one outcome a file."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/faults", "-q", "-n", "2", "--dist", "loadfile"]
        subprocess.run(
            [*command, f"--junitxml={report}"], cwd=REPOSITORY, env=os.environ | {"CTXEXTEND_SOAK": "1"}, check=False
        )
        cases = [case for case in ElementTree.parse(report).iter("testcase") if "classname" in case.attrib]
    files = dict.fromkeys(case.attrib["classname"] for case in cases)
    return [_outcome(file, [case for case in cases if case.attrib["classname"] == file]) for file in files]


def _outcome(file: str, cases: list[ElementTree.Element]) -> Outcome:
    faults: Counter[str] = Counter()
    for noted in (noted for case in cases for noted in case.iter("property")):
        found = re.match(r"\('(.+)', (\d+)\)", noted.attrib["value"])
        if noted.attrib["name"] == "faults injected" and found:
            faults[found[1]] += int(found[2])
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    return Outcome(file, len(cases), faults, failed, sum(float(case.attrib["time"]) for case in cases))


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["faults", "fuzz", "load"], default=["faults", "fuzz", "load"])
    parser.add_argument("--seconds", type=int, default=300, help="how long files are mutated")
    asked = parser.parse_args()
    failed = False
    if "faults" in asked.only:
        outcomes = run_faults()
        print("| what | cases | faults injected | survived | seconds |\n|---|---|---|---|---|")
        print("\n".join(map(str, outcomes)))
        total = sum((outcome.faults for outcome in outcomes), Counter[str]())
        print(f"\n{sum(outcome.cases for outcome in outcomes):,} cases, {total.total():,} faults injected.\n")
        failed = any(outcome.failed for outcome in outcomes)
    for name in ("fuzz", "load"):
        if name in asked.only:
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=REPOSITORY, check=False)
            print(f"\n{name}: {time.perf_counter() - began:,.0f} s\n", flush=True)
            failed |= done.returncode != 0
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
