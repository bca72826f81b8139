"""Print what an engine does with the cases of model types, and what `resize` says of them.

For new rules: other tests run only what has a rule.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines.cases import Case, prepare
from tests.engines.environments import ENGINES
from tests.engines.outcomes import Outcome
from tests.engines.running import RunningEngine


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--types", nargs="+", required=True)
    parser.add_argument("--positions", nargs="+", required=True)
    options = parser.parse_args(arguments)
    with RunningEngine(ENGINES[options.engine]) as running:
        for model_type in options.types:
            for positions in options.positions:
                _print_row(running, Case(model_type, positions))


def _print_row(running: RunningEngine, case: Case) -> None:
    """Print the row of a case."""
    start = time.perf_counter()
    says = "nothing"
    with TemporaryDirectory() as folder:
        try:
            prepared = prepare(case, Path(folder))
        except Exception as error:
            outcome = Outcome("no case", float("nan"), float("nan"), repr(error)[:200])
        else:
            outcome = running.run(prepared)
            if prepared.short_reference is not None:
                short = running.run_short(prepared)
                outcome = outcome._replace(note=f"short inputs {short} {outcome.note}")
            statement = prepared.statements.get(running.engine.runtime)
            if statement is not None:
                says = statement.outcome
    seconds = time.perf_counter() - start
    fields = (
        running.engine.name,
        str(case),
        outcome.name,
        says,
        f"{outcome.difference:.2g}",
        f"{outcome.others_difference:.2g}",
        f"{seconds:.1f}",
        outcome.note,
    )
    print("\t".join(fields), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
