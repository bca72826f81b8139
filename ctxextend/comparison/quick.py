"""A first comparison within a minute: few methods and windows, by default on text that comes with
Python.
"""

import ast
import hashlib
import inspect
import json
import shlex
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from ctxextend.comparison.compare import Compare, compare_model
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.errors import ResizeError
from ctxextend.evaluation.evaluation_result import TEXT_LIMITS
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Resize

# The last one keeps all learned rows; `formula` only applies to sinusoids.
METHODS = ("copy", "linear", "stretch", "bands", "bands:keep-first={}", "formula")
SECONDS = 35.0  # for reading text, so that loading and all else fit a minute too
MORE_WINDOWS = 20  # to suggest if the time is enough for fewer than a choice needs

# The bundled model was not trained on documents whose SHA-256 starts with a byte below this; see
# its model card.
HELD_OUT_BELOW = 256 / 20
MIN_CHARACTERS = 40
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def compare_quickly(
    opened: OpenedModel,
    to: int | str | None = None,
    data: Sequence[str] = (),
    progress: Progress = no_progress,
    tokens: int | None = None,
    **flags: Any,
) -> Comparison:
    """Compare the methods that apply with the base that reads in pieces, at twice its context
    length by default.

    `data` defaults to Python's documentation, `tokens` to what can be read within `SECONDS`; see
    `Compare.from_flags`.
    """
    plan = plan_model(opened, Resize("2x" if to is None else to))
    methods = [name.format(plan.max_len_before) for name in METHODS if plan.tables[0].has_rows]
    with tempfile.TemporaryDirectory() as folder:
        texts = data or [
            write_documents(Path(folder) / "documents.jsonl", default_documents(opened))
        ]
        settings = Compare.from_flags(
            plan.max_len_after, texts, methods, tokens=tokens, is_named=False, **flags
        )
        settings = replace(settings, seconds=SECONDS if tokens is None else inf)
        comparison = compare_model(opened, settings, progress)
    notes = [*comparison.notes]
    if not data:
        notes.append("The text is Python's documentation. Pass your own with --data.")
    if comparison.has_little_text:
        more = "Pass more text with --data."
        if comparison.limited_by != "text":
            more = f"Read more text with --tokens {MORE_WINDOWS * comparison.max_len_after}."
        samples = f"only {comparison.samples} windows or documents were read"
        notes.append(f"Intervals are wide: {samples}, {TEXT_LIMITS[comparison.limited_by]}. {more}")
    command = comparison.next_command
    if comparison.pieces_win:
        texts = "".join(f" --train {shlex.quote(path)}" for path in data or ["TEXT"])
        command += f"{texts} --steps 200"
    return replace(comparison, notes=tuple(notes), next_command=command)


def choose_method(
    plan: Plan, data: Sequence[str], hold_out: int | None, progress: Progress = no_progress
) -> tuple[str, Comparison]:
    """Choose the method of a resize with held-out rows, at the same factor if the table is long
    enough.

    Without held-out rows, choose among the methods of rotary positions by a quick comparison.
    """
    before = plan.max_len_before
    if hold_out is None:
        comparison = compare_quickly(plan.model, plan.max_len_after, data, progress)
        return comparison.recommended, comparison
    if not plan.creates_rows:
        message = (
            f"{plan.model.ref.source} has a context length of {before}, so --to {plan.max_len_after} "
            "needs no method."
        )
        raise ResizeError(message, "Use a larger --to, or remove --hold-out.")
    to = min(-(-hold_out * plan.max_len_after // before), before)
    names = {name.format(hold_out): name.format(before) for name in METHODS}
    settings = Compare.from_flags(to, data, [*names], hold_out=hold_out, is_named=False)
    comparison = compare_model(plan.model, settings, progress)
    recommended = comparison.recommended
    return names.get(recommended, recommended), comparison


def default_documents(opened: OpenedModel) -> list[str]:
    """Return documents that the bundled model was not trained on or, for other models, long ones
    first.
    """
    if opened.checkpoint.source.kind == "bundled":
        return [text for text in python_documents() if is_held_out(text)]
    return sorted(map("\n\n".join, _python_texts()), key=len, reverse=True)


def python_documents() -> list[str]:
    """Return the documents that the bundled model was trained on or evaluated on, as far as this
    Python has them.
    """
    documents = dict.fromkeys(text for texts in _python_texts() for text in texts)
    return [text for text in documents if len(text) >= MIN_CHARACTERS]


def is_held_out(document: str) -> bool:
    """Whether the bundled model was not trained on a document."""
    return hashlib.sha256(document.encode()).digest()[0] < HELD_OUT_BELOW


def _python_texts() -> Iterator[list[str]]:
    yield from ([topic] for topic in topics.values())
    for path in sorted(
        Path(sysconfig.get_paths()["stdlib"]).glob("*.py")
    ):  # packages would take too long
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        yield [
            inspect.cleandoc(ast.get_docstring(node) or "")
            for node in nodes
            if isinstance(node, DOCUMENTED)
        ]


def write_documents(path: Path, documents: Iterable[str]) -> str:
    """Write documents as .jsonl, and return its path."""
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in documents), "utf-8")
    return str(path)
