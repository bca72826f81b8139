"""A guided demo on the bundled checkpoint: resize, generate past the old limit, and compare all methods."""

import os
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.folder import open_checkpoint
from ctxextend.checkpoints.source import bundled_source, resolve_source
from ctxextend.comparison.compare import Compare, compare_model
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.quick import is_held_out, python_documents, write_documents
from ctxextend.models.devices import torch_threads
from ctxextend.plan.find_tables import OpenedModel, identify_model
from ctxextend.plan.plan import plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import CheckpointRef, Resize

DEMO_SOURCE = "tiny-gpt2"
DEMO_LENGTH = 512
DEMO_PROMPT = "Return a new list containing the items of the sequence. If the optional argument is given,"
DEMO_TOKENS = 8192  # 16 windows of text to compare methods on


@dataclass(frozen=True)
class Demo:
    """The result of the demo."""

    source: str
    method: str
    max_len_before: int
    max_len_after: int
    failure_before: str  # the error of transformers for one token more than the base checkpoint's positions
    same_outputs: bool  # whether both models' logits at the old length are identical bit for bit
    tokens: int  # prompt and generated tokens
    text_within: str  # prompt and generated text up to the old length
    text_beyond: str  # generated text after the old length
    consequences: str  # effect of the resize before any training


def run_demo(output: str | os.PathLike[str], force: bool = False, threads: int | None = None) -> Demo:
    """Resize the bundled checkpoint to 512 positions, load it in transformers and generate past position 128."""
    for library in ("torch", "transformers"):  # fail before anything is written
        import_module(library)
    from ctxextend.models.load import continue_text, largest_difference, load, run_on_tokens

    plan = plan_model(_open_demo(), Resize(DEMO_LENGTH, method="copy"))
    created = open_checkpoint(resolve_source(plan.execute(output, force=force).output))
    resized, base = (load(checkpoint, plan.checkpoint.model_class).model for checkpoint in (created, plan.checkpoint))
    before, after, table = plan.max_len_before, plan.max_len_after, plan.tables[0].name
    with torch_threads(base, threads):
        outputs: list[Any] = [run_on_tokens(model, table, before) for model in (base, resized)]
        failure = "it did not fail"
        try:
            run_on_tokens(base, table, before + 1)
        except (IndexError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"
        within, beyond, tokens = continue_text(resized, DEMO_PROMPT, after, before)
    is_same = largest_difference(*outputs) == 0
    return Demo(DEMO_SOURCE, plan.method, before, after, failure, is_same, tokens, within, beyond, plan.consequences)


def compare_demo(progress: Progress = no_progress, threads: int | None = None) -> Comparison:
    """Compare every method on the bundled checkpoint at 512 positions, on held-out Python documentation."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_documents(Path(folder) / "documents.jsonl", filter(is_held_out, python_documents()))
        settings = Compare.from_flags(DEMO_LENGTH, [path], tokens=DEMO_TOKENS, threads=threads)
        return compare_model(_open_demo(), settings, progress)


def _open_demo() -> OpenedModel:
    """Open the bundled checkpoint, even if the current folder has a folder of the same name."""
    return identify_model(open_checkpoint(bundled_source(DEMO_SOURCE), None), CheckpointRef(DEMO_SOURCE))
