"""A guided demo on the bundled checkpoint.

It compares methods, trains the rows of the best one, and writes past the old end. Training needs
the extra `train`; without it, the demo ends after the comparison.
"""

import inspect
import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import filterfalse
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.atomic_output import check_output
from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint, protected_paths
from ctxextend.checkpoints.source import bundled_source, resolve_source
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_run import compare_model
from ctxextend.comparison.comparison_settings import Compare, EvaluateMethods
from ctxextend.comparison.python_text import is_held_out, python_documents, write_documents
from ctxextend.comparison.tuning_settings import tuning_settings
from ctxextend.evaluation.eval_model import CAUSAL
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.models.devices import torch_threads
from ctxextend.plan.opened_model import OpenedModel, identify_model
from ctxextend.plan.plan import Plan
from ctxextend.planned import prepare_resize
from ctxextend.progress import Progress
from ctxextend.recipe import CheckpointRef, Recipe, Resize, Train

DEMO_SOURCE = "tiny-gpt2"
DEMO_METHODS = ("copy", "linear", "stretch", "bands", "bands:keep-first=128")
DEMO_STEPS = 250  # less than a minute
DEMO_TEXT = inspect.getfullargspec  # whose documentation was not trained on
WRITTEN_TOKENS = 64


@dataclass(frozen=True)
class Demo:
    """The result of the demo; what needs training is None without it."""

    source: str
    method: str  # the method that the comparison recommends
    max_len_before: int
    max_len_after: int
    steps: int = 0  # of training the rows
    trainable: str | None = None  # which rows: ``new`` or ``positions``
    documents: int = 0  # of Python's documentation that they were trained on
    loss_before: float | None = None  # on held-out text at the new length, before training
    loss_after: float | None = None  # the same after training
    prompt: str | None = None  # text that takes all positions of the base checkpoint
    failure: str | None = None  # the error when the base checkpoint gets one token more
    text_before: str | None = None  # what the resized checkpoint writes before training
    text_after: str | None = None  # the same after training


def check_can_train() -> None:
    """Check that what training needs is installed.

    Raises:
        TrainingError: The extra `train` is not.
    """
    import_module("ctxextend.training.parallel")  # imports it, or raises


def check_demo_output(output: Path, *, force: bool) -> None:
    """Check, before anything is measured, that the trained checkpoint can be written.

    Raises:
        OutputError: It cannot.
    """
    checkpoint = _open_demo().checkpoint
    files = dict.fromkeys(checkpoint.files, 0)
    check_output(output, protected_paths(checkpoint), files, force=force)


def compare_demo(progress: Progress, threads: int | None) -> Comparison:
    """Compare methods on the bundled checkpoint, at twice its length."""
    for module in ("torch", "transformers"):  # fail before anything is measured
        import_module(module)
    evaluate = EvaluateMethods(measure=("position",), threads=threads)
    settings = Compare.from_request("2x", evaluate, DEMO_METHODS)
    comparison = compare_model(_open_demo(), settings, progress)
    return replace(comparison, notes=(), warnings=())


def train_demo(
    to: int, method: str, output: Path, force: bool, threads: int | None, progress: Progress
) -> Demo:
    """Resize the bundled checkpoint, train its rows, and continue a text past the old end.

    Args:
        to: The new context length.
        method: How rows are created.
        output: Where the trained checkpoint is written.
        force: Whether it may replace a checkpoint.
        threads: CPU threads; None: see `torch_threads`.
        progress: Called with the tokens of training.

    Raises:
        CtxextendError: The output cannot be written, or training fails.
    """
    from ctxextend.models.load import continue_text, load
    from ctxextend.training.train import train_recipe

    planned = prepare_resize(_open_demo(), Resize(to, method=method))
    plan = planned.plan
    length = plan.max_len_before
    model_class = plan.checkpoint.model_class
    with tempfile.TemporaryDirectory() as folder:
        settings, documents = _write_training_text(plan, Path(folder), threads)
        recipe = Recipe(plan.model.ref, plan.settings, settings)
        trained = train_recipe(recipe, output, planned=planned, force=force, progress=progress)
        untrained = planned.execute(Path(folder) / "untrained")
        base_model, _ = load(plan.checkpoint, model_class)
        model_before, _ = load(_open(untrained.output), model_class)
        model_after, _ = load(_open(trained.output), model_class)
    tokenizer = TextTokenizer.open(plan.checkpoint.root).tokenizer
    text = inspect.getdoc(DEMO_TEXT) or ""
    with torch_threads(base_model, threads):
        failure = _failure_at(base_model, plan.tables[0].name, length + 1)
        prompt, before = continue_text(model_before, tokenizer, text, length, WRITTEN_TOKENS)
        _, after = continue_text(model_after, tokenizer, text, length, WRITTEN_TOKENS)
    return Demo(
        source=DEMO_SOURCE,
        method=method,
        max_len_before=length,
        max_len_after=plan.max_len_after,
        steps=DEMO_STEPS,
        trainable=str(settings.trainable),
        documents=documents,
        loss_before=trained.loss_before,
        loss_after=trained.loss_after,
        prompt=prompt,
        failure=failure,
        text_before=before,
        text_after=after,
    )


def _write_training_text(plan: Plan, folder: Path, threads: int | None) -> tuple[Train, int]:
    """Write Python's documentation into a folder.

    Returns:
        The settings to train rows on it, and the number of documents.
    """
    documents = python_documents()
    held_out = filter(is_held_out, documents)
    trained_on = list(filterfalse(is_held_out, documents))
    text = write_documents(folder / "text.jsonl", trained_on)
    settings = replace(
        tuning_settings(plan, (text,), CAUSAL),
        eval_data=(write_documents(folder / "held-out.jsonl", held_out),),
        steps=DEMO_STEPS,
        eval_every=DEMO_STEPS,
        save_every=DEMO_STEPS,
        threads=threads,
    )
    return settings, len(trained_on)


def _failure_at(model: Any, table: str, length: int) -> str:
    """Return the error of a model that reads so many tokens."""
    from ctxextend.models.load import run_on_tokens

    try:
        run_on_tokens(model, table, length)
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "it did not fail"


def _open(folder: Path) -> Checkpoint:
    return open_checkpoint(resolve_source(folder))


def _open_demo() -> OpenedModel:
    """Open the bundled checkpoint, even if the current folder has a folder of the same name."""
    checkpoint = open_checkpoint(bundled_source(DEMO_SOURCE), None)
    return identify_model(checkpoint, CheckpointRef(DEMO_SOURCE))
