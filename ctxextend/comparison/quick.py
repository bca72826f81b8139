"""A first comparison within a minute, and the choice of a method by a comparison."""

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import compare_model
from ctxextend.comparison.comparison_settings import Compare, TextUse
from ctxextend.comparison.python_text import default_documents, write_documents
from ctxextend.errors import ResizeError, flag_name
from ctxextend.evaluation.evaluation_result import TEXT_LIMITS
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Resize

# Methods worth a look, with the number of learned rows for the braces. The fifth one keeps all of
# them; `formula` only applies to sinusoids.
QUICK_METHODS = ("copy", "linear", "stretch", "bands", "bands:keep-first={}", "formula")
QUICK_LENGTH = "2x"
SECONDS = 35.0  # for reading text, so that loading and all else fit a minute too
MORE_WINDOWS = 20  # to suggest if the time is enough for fewer than a choice needs
NEXT_STEPS = 200  # of training, to suggest if the base in pieces is better
# Settings of a full comparison only.
NOT_QUICK = ("steps", "methods", "length", "measure", "corpus", "tune")


def check_quick(given: Mapping[str, Any]) -> None:
    """Check that the settings, by name, are those of a quick comparison.

    Raises:
        ResizeError: One is of a full comparison.
    """
    for name in NOT_QUICK:
        if given.get(name):
            flag = "--method" if name == "methods" else flag_name(name)
            raise ResizeError(f"--quick cannot be used with {flag}.", "Remove one of them.")


def compare_quickly(
    opened: OpenedModel,
    to: int | str | None = None,
    data: Sequence[str] = (),
    progress: Progress = no_progress,
    tokens: int | None = None,
    seconds: float | None = None,
    **settings: Any,
) -> Comparison:
    """Compare the methods that apply with the base that reads in pieces, on little text.

    Args:
        opened: The checkpoint.
        to: New context length, by default twice the checkpoint's.
        data: Text, by default Python's documentation.
        progress: As in `compare`.
        tokens: Maximum number of tokens to use, by default what can be read in a time.
        seconds: This time, by default `SECONDS`.
        settings: Fields of `Evaluate` by name.

    Raises:
        CtxextendError: As `compare`.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    if to is None:
        to = QUICK_LENGTH
    if seconds is None:
        seconds = SECONDS
    plan = plan_model(opened, Resize(to))
    methods = list[str]()
    if plan.tables[0].has_rows:
        methods = [name.format(plan.max_len_before) for name in QUICK_METHODS]
    with tempfile.TemporaryDirectory() as folder:
        texts = list(data)
        if not texts:
            path = Path(folder) / "documents.jsonl"
            texts.append(write_documents(path, default_documents(opened)))
        text_use = TextUse.from_values(texts, 0, {**settings, "tokens": tokens})
        requested = Compare.from_request(
            plan.max_len_after, text_use, methods, can_skip_methods=True
        )
        requested = replace(requested, seconds=seconds if tokens is None else inf)
        comparison = compare_model(opened, requested, progress)
    notes = [*comparison.notes]
    if not data:
        notes.append("The text is Python's documentation. Pass your own with --data.")
    if comparison.has_little_text:
        notes.append(_little_text_note(comparison))
    command = comparison.next_command
    if comparison.pieces_win:
        flags_of_text = [f"--train {shlex.quote(path)}" for path in data or ["TEXT"]]
        command = " ".join([command, *flags_of_text, f"--steps {NEXT_STEPS}"])
    return replace(comparison, notes=tuple(notes), next_command=command)


def _little_text_note(comparison: Comparison) -> str:
    more = "Pass more text with --data."
    if comparison.limited_by != "text":
        more = f"Read more text with --tokens {MORE_WINDOWS * comparison.max_len_after}."
    samples = f"only {comparison.samples} windows or documents were read"
    return f"Intervals are wide: {samples}, {TEXT_LIMITS[comparison.limited_by]}. {more}"


def choose_method(
    plan: Plan,
    data: Sequence[str],
    progress: Progress = no_progress,
    seconds: float | None = None,
) -> tuple[str, Comparison]:
    """Choose the method of rotary positions by a quick comparison on a text, and return both.

    As much text is read as fits so many seconds.

    Raises:
        CtxextendError: As `compare`.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    comparison = compare_quickly(plan.model, plan.max_len_after, data, progress, seconds=seconds)
    return comparison.recommended, comparison
