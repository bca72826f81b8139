"""Print what an engine does with each case, as tab-separated values."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines.cases import (
    CONVERT_PREFIX,
    NOTHING,
    Case,
    Prepared,
    cases_of,
    full_attention_settings,
    prepare,
)
from tests.engines.environments import ENGINES
from tests.engines.llama_flags import flags_of
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
            _print_rows(running, model_type, options.methods)


def _print_rows(running: RunningEngine, model_type: str, methods: Sequence[str] | None) -> None:
    """Print the rows of a model type; only the first if the engine does not read an unresized one.

    Some engines need a key next to the settings for that; such cases are run anyway.
    """
    is_read = True
    for case in cases_of(model_type):
        if methods and case.method not in methods:
            continue
        if not is_read and "+" not in case.method and not case.method.startswith(CONVERT_PREFIX):
            continue
        name = _print_row(running, case)
        if case.method == NOTHING and name in ("refused", "wrong", "no case"):
            is_read = False


def _print_row(running: RunningEngine, case: Case) -> str:
    """Print the row of a case, and return the outcome."""
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
            if running.engine.name == "llama_cpp" and outcome.name not in ("right", "refused"):
                _print_with_flags(running, case, prepared, outcome)
    _print_fields(running, case, outcome, seconds)
    return outcome.name


def _print_with_flags(
    running: RunningEngine, case: Case, prepared: Prepared, plain: Outcome
) -> None:
    """Print the row of a case with the flags of llama-server that state its rotary settings."""
    settings = full_attention_settings(prepared.folder)
    if settings is None or case.method == NOTHING:
        return
    _, _, architecture = plain.note.partition("architecture ")
    flags = flags_of(settings, architecture)
    if flags is None:
        return
    start = time.perf_counter()
    outcome = running.run(prepared, flags=flags.arguments)
    outcome = outcome._replace(note=flags.text)
    with_flags = replace(case, method=f"{case.method}+flags")
    _print_fields(running, with_flags, outcome, time.perf_counter() - start)


def _print_fields(running: RunningEngine, case: Case, outcome: Outcome, seconds: float) -> None:
    fields = (
        running.engine.name,
        running.engine.version,
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
