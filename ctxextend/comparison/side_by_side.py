"""Compare whole checkpoints side by side: on the same windows of one text, paired by window."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.source import public_name
from ctxextend.comparison.candidates import Candidate
from ctxextend.comparison.comparison_result import CheckpointFacts, Comparison
from ctxextend.comparison.comparison_settings import with_ranking
from ctxextend.comparison.costs import measure_cost
from ctxextend.comparison.metrics import choose_metric
from ctxextend.comparison.ranking import check_ranked, measured_comparison
from ctxextend.errors import CheckpointError, joined
from ctxextend.lab import eval_model
from ctxextend.lab.effective import EffectiveTask, effective_lengths
from ctxextend.lab.embedding import open_embedder
from ctxextend.lab.eval_model import ENCODER, EvalModel, ModelFiles
from ctxextend.lab.evaluate import check_start, open_base
from ctxextend.lab.evaluation_result import Estimate, estimate
from ctxextend.lab.evaluation_run import (
    KIND_NAMES,
    EvaluationRun,
    check_length,
    plan_evaluation,
)
from ctxextend.lab.losses import LossTask
from ctxextend.lab.retrieval import DocumentTask
from ctxextend.lab.search_set import SearchSet, read_search_set
from ctxextend.lab.stated_files import StatedFiles, length_errors, open_to_evaluate
from ctxextend.lab.unseen_text import read_unseen
from ctxextend.lab.windows import context_lengths
from ctxextend.held_out import Ids
from ctxextend.keywords import keyword_arguments
from ctxextend.models.devices import torch_threads
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import BaseCheckpoint, find_base, read_provenance
from ctxextend.settings import MIN_WINDOW, CheckpointRef, Compare, Evaluate

SHORT_TEXTS = 64  # maximum number of short texts that encoders embed
COSINE_COST_BOUNDS = (0.0, 2.0)  # of 1 - cosine


@keyword_arguments(Compare, without=("to", "method", "base", "no_base"))
def compare_checkpoints(settings: Compare, progress: Progress = no_progress) -> Comparison:
    """Compare whole checkpoints side by side on one text.

    All read the same windows, so differences are paired. Language models are ranked by loss,
    encoders by retrieval, or by nDCG@10 in a search set. A base that all recipes name reads the
    text once, in sliding windows or chunks.

    They must be of one kind (causal, masked, encoder), and their tokenizers agree. Of a text that
    any of them was trained on, only windows that all held out are used. Windows have the largest
    ``length``, by default the shortest context.

    Raises:
        CtxextendError: As `evaluate`; a checkpoint is too short, of another kind, or cuts the text
            differently.
    """
    refs = [CheckpointRef(model) for model in settings.models]
    return compare_side_by_side(refs, settings, progress)


def compare_side_by_side(
    refs: Sequence[CheckpointRef], settings: Evaluate, progress: Progress
) -> Comparison:
    """Compare whole checkpoints; see `compare_checkpoints`."""
    run = open_side_by_side(refs, settings)
    for files, name in zip(run.files, run.facts, strict=True):
        run.measure(files, name, progress)
    return run.report()


@dataclass
class SideBySide:
    """Checkpoints of one kind, and their results so far."""

    files: Sequence[ModelFiles]
    facts: Mapping[str, CheckpointFacts]  # of each, by short name
    settings: Evaluate  # with the context lengths that all of them read
    base: EvalModel | None  # None if they have different ones
    documents: Iterable[Ids] | None  # that none of them was trained on; None without text
    search_set: SearchSet | None
    warnings: Sequence[str]
    candidates: list[Candidate] = field(default_factory=list)  # that were measured
    # of encoders, by short name
    short_costs: dict[str, Estimate | None] = field(default_factory=dict)
    run: EvaluationRun | None = None  # of the last checkpoint that was measured
    # embeddings of short texts by the base or the first encoder, shape (n, d)
    references: NDArray[Any] | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def longest(self) -> int:
        """The number of tokens of a window."""
        return self.settings.length[-1]

    @property
    def short_length(self) -> int:
        """The context length of short inputs: the base's, or without one the shortest measured."""
        length = self.settings.length[0] if self.base is None else self.base.max_len
        return min(length, self.longest)

    def measure(self, files: ModelFiles, name: str, progress: Progress) -> None:
        """Load a checkpoint and measure it on the text, which the base reads only once.

        Raises:
            CtxextendError: The checkpoint cannot be loaded, or the text is too short to rank it.
        """
        started = time.perf_counter()
        model = eval_model.load_eval_model(files, self.settings.precision, self.settings.device)
        notes = model.notes
        if self.base is not None:
            notes = (*notes, *self.base.notes)
        with length_errors(files, self.longest):
            run = plan_evaluation(
                model,
                self.base,
                self.settings,
                self.documents,
                search_set=self.search_set,
                notes=notes,
            )
            check_ranked(run)
        total = run.base_tokens + len(self.files) * run.tokens
        threads = torch_threads(model.model, self.settings.threads)
        with threads, length_errors(files, self.longest):
            if self.run is None:
                run.run_base(lambda tokens: progress(tokens, total, "the base"))
            else:  # of the base, and which texts the budget sufficed for
                for task, measured in zip(run.tasks, self.run.tasks, strict=False):
                    if isinstance(task, LossTask) and isinstance(measured, LossTask):
                        task.losses_by_mode = measured.losses_by_mode
                    elif isinstance(task, DocumentTask) and isinstance(measured, DocumentTask):
                        task.base_reading = measured.base_reading
                    elif isinstance(task, EffectiveTask) and isinstance(measured, EffectiveTask):
                        task.schedule = measured.schedule
                        task.scheduled_groups = measured.scheduled_groups
            run.measure(lambda tokens: progress(tokens, total, name))
            if model.kind == ENCODER:
                self.short_costs[name] = self._short_cost(run)
        seconds = time.perf_counter() - started
        self.candidates.append(Candidate(name, run.report(), run.scores, seconds))
        self.run = run
        if self.documents is not None:
            self.documents = run.text.documents
        model.model.to("meta")

    def _short_cost(self, run: EvaluationRun) -> Estimate | None:
        """Return 1 - cosine of embeddings of short texts to references; None if sizes differ."""
        tokenizer = run.model.tokenizer
        texts: Sequence[Ids] = run.text.windows
        if not texts and self.search_set is not None:
            texts = [tokenizer.encode(text) for text in self.search_set.documents[:SHORT_TEXTS]]
        size = self.short_length - tokenizer.num_special
        short = [text[:size] for text in texts[:SHORT_TEXTS]]
        batch_size = self.settings.batch_size
        if self.references is None:
            self.references = open_embedder(self.base or run.model, batch_size).embed(short)
        vectors = open_embedder(run.model, batch_size).embed(short)
        if vectors.shape != self.references.shape:
            return None
        cosines = np.einsum("td,td->t", vectors, self.references, dtype=np.float64)
        costs = np.round(1 - cosines, 6)  # embeddings are in float32
        return estimate([*costs[:, None]], COSINE_COST_BOUNDS)

    def report(self) -> Comparison:
        """Return the results."""
        assert self.run is not None
        found = measured_comparison(
            self.candidates,
            choose_metric(self.run.model.kind, self.settings),
            self.run,
            self.started,
            source="" if self.base is None else self.base.name,
            max_len_before=self.short_length,
            max_len_after=self.longest,
        )
        rows = []
        for row in found.rows:
            short_inputs = self.short_costs.get(row.method, row.short_inputs)
            rows.append(replace(row, short_inputs=short_inputs, checkpoint=self.facts[row.method]))
        return replace(
            found,
            row_type="checkpoint",
            rows=tuple(rows),
            warnings=(*self.warnings, *found.warnings),
        )


def open_side_by_side(refs: Sequence[CheckpointRef], settings: Evaluate) -> SideBySide:
    """Open checkpoints, measure their speed and memory, and load their common base.

    Raises:
        CtxextendError: A checkpoint or the text cannot be read, or they cannot be compared.
    """
    check_start(settings)
    files = [open_to_evaluate(ref, settings.length) for ref in refs]
    search_set = read_search_set(settings)
    first = files[0]
    shortest = min(one.max_len for one in files)
    longest = max(settings.length, default=max(shortest, MIN_WINDOW))
    for one in files:
        check_length(one, longest)
    documents: Iterable[Ids] | None = None
    warnings = list[str]()
    sample = first.tokenizer.encode(search_set.documents[0] if search_set else "")
    if settings.data:
        unseen, warnings = read_unseen(files, settings, longest)
        sample = next(unseen, sample)
        documents = chain([sample], unseen)
    longer = [f"{one.name} ({one.max_len:,})" for one in files if one.max_len > longest]
    if longer:
        warning = (
            f"All read up to {longest:,} tokens; longer contexts have {joined(longer)}. To measure "
            "each at its full length, use ctxextend evaluate."
        )
        warnings = [*warnings, warning]
    for one in files:
        hint = "Compare checkpoints that share a tokenizer."
        eval_model.check_same_tokens(one, first, sample, hint)

    kind, facts = _measure_costs(files, settings, longest)
    stated = _common_base(files, settings)
    base, failures = open_base(stated, settings, first.name, kind)
    lengths = settings.length
    if not lengths and settings.measures_effective_only:
        lengths = effective_lengths(longest)
    elif not lengths:
        lengths = context_lengths(longest, None if base is None else base.max_len)
    settings = with_ranking(replace(settings, length=tuple(sorted(lengths))), kind)
    return SideBySide(
        files=files,
        facts=facts,
        settings=settings,
        base=base,
        documents=documents,
        search_set=search_set,
        warnings=(*warnings, *failures),
    )


def _measure_costs(
    files: Sequence[ModelFiles], settings: Evaluate, length: int
) -> tuple[str, dict[str, CheckpointFacts]]:
    facts = dict[str, CheckpointFacts]()
    kind = ""
    names = [public_name(one.name) for one in files]
    for index, one in enumerate(files):
        name = names[index]
        if names.count(name) > 1:
            name = f"{name} ({names[: index + 1].count(name)})"
        with length_errors(one, length):
            own, facts[name] = measure_cost(one, settings, length)
        kind = kind or own
        if own != kind:
            message = f"{one.name} is {KIND_NAMES[own]}, but {files[0].name} is {KIND_NAMES[kind]}."
            raise CheckpointError(message, "Compare checkpoints of one kind.")
    return kind, facts


def _common_base(opened: Sequence[ModelFiles], settings: Evaluate) -> BaseCheckpoint | None:
    """Return the base that all recipes name; a checkpoint without a recipe is its own base."""
    if settings.no_base or settings.measures_effective_only:
        return None
    bases = dict[str, BaseCheckpoint]()
    for files in opened:
        base = find_base(read_provenance(files.checkpoint), settings.base, files.ref.tokenizer)
        if base is None and isinstance(files, StatedFiles):
            return None
        if base is None:
            base = BaseCheckpoint(files.ref, files.checkpoint.weights.fingerprint())
        bases[base.fingerprint or base.ref.source] = base
    return next(iter(bases.values())) if len(bases) == 1 else None
