"""Compare whole checkpoints side by side: on the same windows of one text, paired by window."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.compare import (
    Candidate,
    ComparisonInterrupted,
    check_ranked,
    measured_fields,
    with_ranking,
)
from ctxextend.comparison.comparison_result import METRICS, NDCG, CheckpointFacts, Comparison, Row
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.evaluation import eval_model, evaluate
from ctxextend.evaluation.embedding import last_states, open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, ModelFiles
from ctxextend.evaluation.evaluation_result import Estimate, estimate
from ctxextend.evaluation.losses import LossTask
from ctxextend.evaluation.retrieval import DocumentTask
from ctxextend.evaluation.search import SearchSet, read_search_set
from ctxextend.held_out import Ids
from ctxextend.models.devices import peak_memory, torch_threads
from ctxextend.models.load import token_ids
from ctxextend.plan.find_tables import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import MIN_LENGTH, CheckpointRef, Evaluate, accepts_settings, split_ref
from ctxextend.recipe_file import FINGERPRINT, BaseCheckpoint, find_base, read_provenance
from ctxextend.report.figures import public_name
from ctxextend.text_data import path_names

SPEED_SECONDS = 0.3  # minimum time of the forward passes that measure the speed
SHORT_TEXTS = 64  # maximum number of short texts that encoders embed


@accepts_settings(Evaluate)
def compare_checkpoints(
    references: Sequence[str | os.PathLike[str]],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    progress: Progress = no_progress,
    **settings: Any,
) -> Comparison:
    """Compare whole checkpoints side by side on one text.

    All read the same windows, so differences are paired. Language models are ranked by loss,
    encoders by retrieval, or by nDCG@10 in a search set. A base that all recipes name reads the
    text once, in sliding windows or chunks.

    Args:
        references: Checkpoints of one kind (causal, masked, encoder) whose tokenizers agree, each
            as in `resize`.
        data: As in `evaluate`. Of a text that any of them was trained on, only windows that all
            held out are used.
        progress: Called with the number of tokens read since the last call, the total, and the name
            of the checkpoint.
        settings: Other fields of `Evaluate`. Windows have the largest ``length``, by default the
            shortest context.

    Raises:
        CtxextendError: As `evaluate`; a checkpoint is too short, of another kind, or cuts the text
            differently.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    requested = Evaluate(path_names(data), **split_ref("", settings)[1])
    if "shift" in requested.measure:
        raise ResizeError(
            "--measure shift reads one checkpoint.",
            "Use `ctxextend evaluate MODEL --measure shift`.",
        )
    found = open_side_by_side(
        [CheckpointRef(os.fspath(reference)) for reference in references], requested
    )
    try:
        for files, name in zip(found.files, found.facts, strict=True):
            found.measure(files, name, progress)
    except KeyboardInterrupt:
        raise ComparisonInterrupted(found.report(complete=False)) from None
    return found.report(complete=True)


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
    short_costs: dict[str, Estimate | None] = field(
        default_factory=dict
    )  # of encoders, by short name
    run: evaluate.EvaluationRun | None = None  # of the last checkpoint that was measured
    references: NDArray[Any] | None = (
        None  # embeddings of short texts by the base or the first encoder, shape (n, d)
    )
    started: float = field(default_factory=time.perf_counter)

    @property
    def short_length(self) -> int:
        """The context length of short inputs: the base's, or without one the shortest that is
        measured.
        """
        return min(
            self.base.max_len if self.base else self.settings.length[0], self.settings.length[-1]
        )

    def measure(self, files: ModelFiles, name: str, progress: Progress) -> None:
        """Load a checkpoint and measure it on the same text as the others, which the base reads
        once.
        """
        started, candidate = time.perf_counter(), Candidate(name)
        model = eval_model.load_eval_model(files, self.settings.precision, self.settings.device)
        notes = (*model.notes, *(self.base.notes if self.base else ()))
        flags: dict[str, Any] = {"search_set": self.search_set, "notes": notes}
        run = evaluate.plan_evaluation(model, self.base, self.settings, self.documents, **flags)
        check_ranked(run)
        total = run.base_tokens + len(self.files) * run.tokens
        others: Sequence[Any] = self.run.tasks if self.run else ()
        for task, other in zip(
            run.tasks, others, strict=False
        ):  # `measure` drops the results of the other model
            if isinstance(task, LossTask):
                task.measured = other.measured
            elif isinstance(task, DocumentTask):
                task.embedded, task.found = other.embedded, other.found
        with torch_threads(model.model, self.settings.threads):
            if not self.run:
                run.run_base(lambda tokens: progress(tokens, total, "the base"))
            run.measure(lambda tokens: progress(tokens, total, name))
            if model.kind == ENCODER:
                self.short_costs[name] = self._short_cost(run)
        candidate.add(run)
        self.candidates.append(candidate)
        candidate.seconds = time.perf_counter() - started
        self.run = run
        self.documents = run.text.documents if self.documents is not None else None
        model.model.to("meta")

    def _short_cost(self, run: evaluate.EvaluationRun) -> Estimate | None:
        """Return 1 - cosine of an encoder's embeddings of short texts to the `references`; None if
        sizes differ.
        """
        texts: Sequence[Ids] = run.text.windows
        if not texts and self.search_set:
            texts = [
                run.model.tokenizer.encode(text) for text in self.search_set.documents[:SHORT_TEXTS]
            ]
        short = [
            text[: self.short_length - run.model.tokenizer.num_special]
            for text in texts[:SHORT_TEXTS]
        ]
        if self.references is None:
            self.references = open_embedder(self.base or run.model, self.settings.batch_size).embed(
                short
            )
        vectors = open_embedder(run.model, self.settings.batch_size).embed(short)
        if vectors.shape != self.references.shape:
            return None
        cosines = np.einsum("td,td->t", vectors, self.references, dtype=np.float64)
        return estimate(
            [*np.round(1 - cosines, 6)[:, None]], (0.0, 2.0)
        )  # embeddings are in float32

    def report(self, *, complete: bool) -> Comparison:
        """Return the results so far."""
        if self.run is None:  # interrupted before the first one was loaded
            raise KeyboardInterrupt
        kind = self.run.model.kind
        source = self.base.name if self.base else ""
        values = measured_fields(
            self.candidates, NDCG if self.search_set else METRICS[kind], self.run, self.started
        )
        rows = list[Row]()
        for row in values["rows"]:
            outcome = replace(
                row.untrained,
                short_inputs=self.short_costs.get(row.method, row.untrained.short_inputs),
            )
            rows.append(replace(row, untrained=outcome, checkpoint=self.facts[row.method]))
        values |= {"rows": tuple(rows), "warnings": (*self.warnings, *values["warnings"])}
        lengths = self.short_length, self.settings.length[-1]
        return Comparison(
            source, "", kind, "", *lengths, row_type="checkpoint", complete=complete, **values
        )


def open_side_by_side(refs: Sequence[CheckpointRef], settings: Evaluate) -> SideBySide:
    """Check that checkpoints can be compared on a text, measure their speed and memory, and load
    their common base.
    """
    files = [eval_model.open_files(open_model(ref)) for ref in refs]
    search_set = read_search_set(settings)
    first = files[0]
    documents = None
    warnings = list[str]()
    longest = max(settings.length, default=max(min(one.max_len for one in files), MIN_LENGTH))
    sample = first.tokenizer.encode(search_set.documents[0] if search_set else "")
    if settings.data:
        read, warnings = evaluate.read_unseen(files, settings, longest)
        sample = next(read, sample)
        documents = chain([sample], read)
    for one in files:
        evaluate.check_length(one, longest)
        eval_model.check_same_tokens(
            one, first, sample, "Compare checkpoints that share a tokenizer."
        )
    facts = dict[str, CheckpointFacts]()
    kind = ""
    names = [public_name(one.name) for one in files]
    for number, one in enumerate(files):
        same = f" ({names[: number + 1].count(names[number])})" * (names.count(names[number]) > 1)
        own, facts[names[number] + same] = _measure_cost(one, settings, longest)
        if own != (kind := kind or own):
            message = (
                f"{one.name} is {evaluate.KINDS[own]}, but {first.name} is {evaluate.KINDS[kind]}."
            )
            raise CheckpointError(message, "Compare checkpoints of one kind.")
    base, failures = evaluate.open_base(_common_base(files, settings), settings, first.name, kind)
    lengths = settings.length or evaluate.context_lengths(longest, base.max_len if base else None)
    settings = with_ranking(replace(settings, length=tuple(sorted(lengths))), kind)
    return SideBySide(files, facts, settings, base, documents, search_set, (*warnings, *failures))


def _measure_cost(
    files: ModelFiles, settings: Evaluate, length: int
) -> tuple[str, CheckpointFacts]:
    """Return the kind and the facts of a checkpoint, which reads inputs of this length."""
    import torch

    model = eval_model.load_eval_model(files, settings.precision, settings.device)
    peak = peak_memory(model.model.device)
    passes = list[float]()
    device = model.model.device
    ids = (
        token_ids(model.model.config, length)
        .repeat(max(eval_model.TOKENS_PER_BATCH // length, 1), 1)
        .to(device)
    )
    with torch_threads(model.model, settings.threads), torch.inference_mode():
        while sum(passes[1:]) <= SPEED_SECONDS:  # the first one warms up
            started = time.perf_counter()
            last_states(model, ids)[0, 0, 0].item()  # waits for the device
            passes.append(time.perf_counter() - started)
    size = sum(entry.size for entry in files.checkpoint.entries.values())
    costs = model.model.num_parameters(), size, peak(), round(ids.numel() / min(passes[1:]), 1)
    model.model.to("meta")  # frees its weights, whatever still refers to it
    return model.kind, CheckpointFacts(
        files.name, model.model_type, files.scheme, files.max_len, *costs
    )


def _common_base(opened: Sequence[ModelFiles], settings: Evaluate) -> BaseCheckpoint | None:
    """Return the base that all recipes name, if they name one; a checkpoint without a recipe is its
    own base.
    """
    bases = dict[str, BaseCheckpoint]()
    for files in opened:
        base = find_base(read_provenance(files.checkpoint), settings.base, files.ref.tokenizer)
        base = base or BaseCheckpoint(
            files.ref, {FINGERPRINT: files.checkpoint.weights.fingerprint()}
        )
        bases[base.hashes.get(FINGERPRINT, base.ref.source)] = base
    return next(iter(bases.values())) if len(bases) == 1 and not settings.no_base else None
