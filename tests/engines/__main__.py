"""Print what an engine does with each case, as tab-separated values."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines.cases import Case, cases_of, prepare
from tests.engines.environments import ENGINES
from tests.engines.outcomes import Outcome
from tests.engines.running import RunningEngine


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--types", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", help="only these")
    options = parser.parse_args(arguments)
    with RunningEngine(ENGINES[options.engine]) as running:
        for model_type in options.types:
            for case in cases_of(model_type):
                if not options.methods or case.method in options.methods:
                    _print_row(running, case)


def _print_row(running: RunningEngine, case: Case) -> None:
    with TemporaryDirectory() as folder:
        try:
            prepared = prepare(case, Path(folder))
        except Exception as error:
            outcome = Outcome("no case", float("nan"), float("nan"), repr(error)[:200])
            seconds = 0.0
        else:
            start = time.perf_counter()
            outcome = running.run(prepared)
            seconds = time.perf_counter() - start
    fields = (
        running.engine.name,
        case.model_type,
        case.method,
        case.dialect,
        outcome.name,
        f"{outcome.difference:.2g}",
        f"{outcome.others_difference:.2g}",
        f"{seconds:.1f}",
        outcome.note,
    )
    print("\t".join(fields), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
