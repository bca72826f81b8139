"""From a checkpoint and a text to an evaluation."""

import os
from collections.abc import Callable, Sequence

from ctxextend.evaluation.opening import prepare
from ctxextend.evaluation.reports import Evaluation
from ctxextend.evaluation.run import open_run
from ctxextend.recipe import CheckpointRef, Evaluate
from ctxextend.text_data import TEXT_FIELD, path_names

__all__ = ["EvaluationInterrupted", "evaluate", "evaluate_subject"]

# Told how many tokens were read since the last call, and how many there are to read in all.
Progress = Callable[[int, int], None]


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C while an evaluation ran.

    Attributes:
        evaluation: What was measured until then, `complete` false.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("interrupted")
        self.evaluation = evaluation


def evaluate(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    original: str | os.PathLike[str] | None = None,
    alone: bool = False,
    length: Sequence[int] = (),
    tokens: int = 65_536,
    batch_size: int | None = None,
    precision: str = "auto",
    seed: int = 0,
    measure: Sequence[str] = (),
    text_field: str = TEXT_FIELD,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure what a checkpoint's context length is worth, on a text.

    Of language models: the loss by position and by available context, and whether a number that stands far back is
    found again; of encoders: the latter, and whether documents are found. Where the original is known, it reads the
    same tokens in pieces, as a user would have to do without the longer context.

    Args:
        reference: As in `plan_resize`.
        data: Files and folders that hold the text: .txt and its like are a document each, of .jsonl each line is one,
            of .parquet each row; or data sets of the Hub, ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``.
        original: What the checkpoint was made of; None is what the recipe beside it says, if there is one.
        alone: Whether nothing is compared with the original.
        length: Contexts to measure, in tokens; empty is doublings up to the model's own.
        tokens: Tokens of the text to use, at most; every one is read several times.
        batch_size: Windows that are read at once; None is as many as hold 4,096 tokens.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
        seed: What masks and numbers are drawn with.
        measure: Which measures to take: ``position``, ``context``, ``passkey``, ``retrieval``; empty is all that fit.
        text_field: The key of a line of .jsonl, or the column, that holds the text.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Told how many tokens were read since the last call, and how many there are to read in all.

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, transformers cannot load it, or the original does not fit.
        UnsupportedModelError: The model has no learned position table, or reads one text and writes another.
        DataError: The text cannot be read, or is shorter than one window.
        ResizeError: A length that the model does not read, or a measure that does not fit it.
        EvaluationInterrupted: Ctrl-C; it holds what was measured.
    """
    settings = Evaluate(
        data=path_names(data),
        original=None if original is None else os.fspath(original),
        alone=alone,
        length=tuple(length),
        tokens=tokens,
        batch_size=batch_size,
        precision=precision,
        seed=seed,
        measure=tuple(measure),
        text_field=text_field,
    )
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family)
    return evaluate_subject(ref, settings, progress)


def evaluate_subject(ref: CheckpointRef, settings: Evaluate, progress: Progress | None = None) -> Evaluation:
    """Measure what a command names; see `evaluate`.

    Raises:
        CtxextendError: As `evaluate`.
        EvaluationInterrupted: As `evaluate`.
    """
    run = open_run(prepare(ref, settings), settings)
    try:
        run.measure(lambda tokens: progress(tokens, run.tokens_to_read) if progress is not None else None)
    except KeyboardInterrupt:
        raise EvaluationInterrupted(run.report(complete=False)) from None
    return run.report(complete=True)
