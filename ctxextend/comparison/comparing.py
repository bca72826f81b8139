"""From a checkpoint and a text to a ranking of methods."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ctxextend.checkpoints.siblings import scratch
from ctxextend.comparison.contest import open_contest
from ctxextend.comparison.reports import Comparison
from ctxextend.comparison.settings import Compare
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.recipe import CheckpointRef
from ctxextend.text_data import TEXT_FIELD, path_names

__all__ = ["ComparisonInterrupted", "compare", "compare_model"]

# Told how many tokens were read since the last call, how many there will be, and what reads them.
Progress = Callable[[int, int, str], None]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C while methods were compared.

    Attributes:
        comparison: The methods that were measured until then, `complete` false.
    """

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


def compare(
    reference: str | os.PathLike[str],
    to: int,
    data: Paths,
    *,
    methods: Sequence[str] = (),
    steps: int = 0,
    trainable: str = "positions",
    eval_data: Paths = (),
    length: Sequence[int] = (),
    tokens: int = 65_536,
    measure: Sequence[str] = (),
    precision: str = "auto",
    seed: int = 0,
    text_field: str = TEXT_FIELD,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
    progress: Progress | None = None,
    **training: Any,
) -> Comparison:
    """Rank methods by what they are worth on one model, one text and one seed.

    The model is loaded once, and nothing but its tables changes from one method to the next; they are what `resize`
    writes, bit for bit. The original reads the same text in pieces, once. Language models are ranked by their loss on
    windows as long as the new length, encoders by the documents that they find. With `steps`, each method is measured
    as it is made and after so many steps of training, from the same weights, on the same text in the same order;
    what is measured on is never trained on.

    Args:
        reference: As in `plan_resize`.
        to: Usable token positions that each method gives, more than the model has.
        data: As in `evaluate`; with `steps` it is trained on.
        methods: Names, each with its flags where it has any: ``linear``, ``stretch:keep-first=5``; ``all`` and nothing
            are every method with its defaults.
        steps: Optimizer steps of training; 0 for none.
        trainable: What is trained: ``new`` rows, ``positions`` (the whole table) or ``all``.
        eval_data: With `steps`, the text to measure on; empty is the last twentieth of what is read of `data`, which is
            then not trained on.
        length: Contexts to measure beside `to`, in tokens; empty is doublings.
        tokens: As in `evaluate`.
        measure: Which measures to take beside what methods are ranked by; empty is all that fit.
        precision: As in `evaluate`. Where methods are trained, weights are held and measured in float32.
        seed: What masks, numbers and the order of training are drawn with.
        text_field: As in `evaluate`.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Told how many tokens were read since the last call, how many there will be, and what reads them.
        training: With `steps`, other fields of `Train` by their names: ``lr``, ``batch_size``, ``window``, …

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: The model has no learned position table, or reads one text and writes another.
        DataError: The text cannot be read, there is too little of it, or what is trained on is measured on too.
        ResizeError: A length or a measure that does not fit the model, or a method that was named and cannot be.
        TrainingError: A training that cannot be begun, or brought to its end.
        ComparisonInterrupted: Ctrl-C; it holds what was measured.
    """
    settings = Compare.of(
        to,
        path_names(data),
        methods,
        steps,
        trainable=trainable,
        eval_data=path_names(eval_data),
        length=tuple(length),
        tokens=tokens,
        measure=tuple(measure),
        precision=precision,
        seed=seed,
        text_field=text_field,
        **training,
    )
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family)
    return compare_model(open_model(ref, typed=("compare",)), settings, progress)


def compare_model(opened: OpenedModel, settings: Compare, progress: Progress | None = None) -> Comparison:
    """Compare methods on a checkpoint; see `compare`.

    Args:
        opened: The model.
        settings: How methods are compared.
        progress: As in `compare`.

    Raises:
        CtxextendError: As `compare`.
        ComparisonInterrupted: As `compare`.
    """
    with scratch() as folder:
        contest = open_contest(opened, settings, folder)
        try:
            contest.measure(progress or (lambda tokens, total, what: None))
        except KeyboardInterrupt:
            raise ComparisonInterrupted(contest.report(complete=False)) from None
        return contest.report(complete=True)
