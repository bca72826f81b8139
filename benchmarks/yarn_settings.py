"""Search the settings that YaRN leaves open for a small Llama, and judge them on other windows.

    python recipes/from_scratch/rotary_lm.py MODEL --seed 52
    python -m benchmarks.yarn_settings MODEL

Scores on code of Python's standard library that is held out of the training of the model: every
other window searches, and the others judge. Prints a part of docs/results.md.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import ctxextend
from benchmarks.rotary import write_texts
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.report.numbers import NumberFormat
from ctxextend.report.tuning import describe_search

# Larger values of beta-slow are what LongRoPE2's smaller critical dimension means for yarn.
METHODS = ("yarn", "yarn:beta-slow=2", "yarn:beta-slow=4", "yarn:attention-factor=1", "switch")
TIMES = (2, 4)
TOKENS = 196_608  # more than the held-out text has
SECONDS = 600  # enough for all candidates and windows
NUMBERS = NumberFormat()


def compare(model: str, times: int, data: Sequence[str]) -> Comparison:
    """Compare the methods at a multiple of the trained length."""
    return ctxextend.compare(
        model,
        f"{times}x",
        data,
        methods=METHODS,
        tune=True,
        budget=SECONDS,
        tokens=TOKENS,
        measure=("position", "context"),
    )


def lines(comparison: Comparison) -> Iterator[str]:
    """Yield a table of a comparison, as Markdown, and what the searches have found."""
    lengths = f"{comparison.max_len_before} → {comparison.max_len_after}"
    text = f"{lengths}, {comparison.samples} windows"
    yield f"| {text} | perplexity | against the best | short texts |"
    yield "|---|---:|---:|---:|"
    for row in comparison.rows:
        yield _table_line(row)
    yield ""
    for search in comparison.searches:
        yield f"- {describe_search(search)}"
    yield ""


def _table_line(row: Row) -> str:
    """Return a line of the table; differences are in nats per token."""
    outcome = row.untrained
    against_best = "best"
    if outcome.delta is not None:
        against_best = NUMBERS.change(outcome.delta)
    short = "-"
    if outcome.short_inputs is not None:
        short = NUMBERS.change(outcome.short_inputs)
    cells = (f"`{row.method}`", NUMBERS.perplexity(outcome.score), against_best, short)
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.yarn_settings", description=__doc__)
    parser.add_argument("model")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        _, held_out = write_texts(Path(folder))
        for times in TIMES:
            print("\n".join(lines(compare(options.model, times, held_out))), flush=True)


if __name__ == "__main__":
    main()
