"""A guided demo on the bundled checkpoint: compare methods, train the best one, and write past the
old end.

Training needs the extra `train`; without it, the demo ends after the comparison.
"""

import inspect
import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from ctxextend.checkpoints.folder import open_checkpoint
from ctxextend.checkpoints.source import bundled_source, resolve_source
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.quick import (
    compare_quickly,
    is_held_out,
    python_documents,
    write_documents,
)
from ctxextend.evaluation.eval_model import TextTokenizer
from ctxextend.models.devices import torch_threads
from ctxextend.plan.find_tables import OpenedModel, identify_model
from ctxextend.planned import prepare_resize
from ctxextend.progress import Progress
from ctxextend.recipe import CheckpointRef, Recipe, Resize, Train

DEMO_SOURCE = "tiny-gpt2"
DEMO_STEPS = 80  # about 20 seconds
DEMO_TEXT = inspect.getfullargspec  # whose documentation was not trained on
WRITTEN_TOKENS = 64


@dataclass(frozen=True)
class Demo:
    """The result of the demo; what needs training is None without it."""

    source: str
    method: str  # the method that the comparison recommends
    max_len_before: int
    max_len_after: int
    steps: int = 0  # of training all weights
    loss_before: float | None = None  # on held-out text at the new length, before training
    loss_after: float | None = None  # the same after training
    prompt: str | None = None  # text that takes all positions of the base checkpoint
    failure: str | None = (
        None  # the error of transformers when the base checkpoint gets one token more
    )
    text_before: str | None = (
        None  # what the resized checkpoint writes after the prompt before training
    )
    text_after: str | None = None  # the same after training


def open_training() -> None:
    """Import what training needs.

    Raises:
        TrainingError: The extra `train` is not installed.
    """
    import_module("ctxextend.training.memory")


def compare_demo(progress: Progress, threads: int | None) -> Comparison:
    """Compare methods on the bundled checkpoint as ``compare --quick`` does."""
    for module in ("torch", "transformers"):  # fail before anything is measured
        import_module(module)
    return replace(
        compare_quickly(_open_demo(), progress=progress, threads=threads), notes=(), warnings=()
    )


def train_demo(
    to: int, method: str, output: Path, force: bool, threads: int | None, progress: Progress
) -> Demo:
    """Resize the bundled checkpoint, train it on Python's documentation, and continue a text past
    the old end.
    """
    from ctxextend.models.load import continue_text, load, run_on_tokens
    from ctxextend.training.train import train_recipe

    planned = prepare_resize(_open_demo(), Resize(to, method=method))
    plan = planned.plan
    length, table = plan.max_len_before, plan.tables[0].name
    with tempfile.TemporaryDirectory() as folder:
        documents = python_documents()
        held_out = write_documents(Path(folder) / "held-out.jsonl", filter(is_held_out, documents))
        text = write_documents(
            Path(folder) / "text.jsonl", (item for item in documents if not is_held_out(item))
        )
        steps = DEMO_STEPS
        settings = Train(
            (text,),
            steps,
            trainable="all",
            eval_data=(held_out,),
            eval_every=steps,
            save_every=steps,
            threads=threads,
        )
        recipe = Recipe(plan.model.ref, plan.settings, settings)
        trained = train_recipe(recipe, output, plan=planned, force=force, progress=progress)
        untrained = planned.execute(Path(folder) / "untrained").output
        checkpoints = [
            open_checkpoint(resolve_source(path)) for path in (untrained, trained.output)
        ]
        models = [
            load(checkpoint, plan.checkpoint.model_class).model
            for checkpoint in (plan.checkpoint, *checkpoints)
        ]
    tokenizer = TextTokenizer.open(plan.checkpoint.root).tokenizer
    failure = "it did not fail"
    prompt = inspect.getdoc(DEMO_TEXT) or ""
    with torch_threads(models[0], threads):
        try:
            run_on_tokens(models[0], table, length + 1)
        except (IndexError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"
        written = [
            continue_text(model, tokenizer, prompt, length, WRITTEN_TOKENS) for model in models[1:]
        ]
    (prompt, before), (_, after) = written
    return Demo(
        source=DEMO_SOURCE,
        method=method,
        max_len_before=length,
        max_len_after=plan.max_len_after,
        steps=steps,
        loss_before=trained.loss_before,
        loss_after=trained.loss_after,
        prompt=prompt,
        failure=failure,
        text_before=before,
        text_after=after,
    )


def _open_demo() -> OpenedModel:
    """Open the bundled checkpoint, even if the current folder has a folder of the same name."""
    return identify_model(
        open_checkpoint(bundled_source(DEMO_SOURCE), None), CheckpointRef(DEMO_SOURCE)
    )
