"""A comparison of methods on one loaded model."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from ctxextend.comparison.candidates import Candidate, MethodPlans, method_recipes, plan_methods
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.comparison_settings import evaluate_for
from ctxextend.comparison.in_memory import InMemoryResizer, open_resizer
from ctxextend.comparison.metrics import choose_metric
from ctxextend.comparison.python_text import default_documents
from ctxextend.comparison.ranking import check_ranked, measured_comparison
from ctxextend.errors import MethodError
from ctxextend.lab.eval_model import ResizableFiles, load_eval_model, open_files
from ctxextend.lab.evaluate import check_start
from ctxextend.lab.evaluation_run import (
    EvaluationRun,
    applicable_measures,
    plan_evaluation,
)
from ctxextend.lab.search_set import read_search_set
from ctxextend.held_out import Ids
from ctxextend.models.devices import torch_threads
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.change import ShortInputs
from ctxextend.progress import Progress, no_progress
from ctxextend.settings import Compare

PYTHON_TEXT = "The text is Python's documentation. Pass your own with --data."


def compare_model(
    opened: OpenedModel, settings: Compare, progress: Progress = no_progress
) -> Comparison:
    """Compare methods on an opened checkpoint.

    Raises:
        CtxextendError: As `compare`.
    """
    if settings.to is None:
        raise MethodError("--to is missing.", "Pass a longer context length, such as --to 4x.")
    run = open_comparison(opened, settings)
    with torch_threads(run.resizer.model.model, settings.threads):
        run.measure(progress)
    return run.report()


@dataclass
class ComparisonRun:
    """Methods, and the results of those that were measured."""

    files: ResizableFiles
    settings: Compare
    methods: MethodPlans
    resizer: InMemoryResizer
    evaluation: EvaluationRun
    candidates: list[Candidate] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def measure(self, progress: Progress) -> None:
        """Run the base, then evaluate each method."""
        plans = self.methods.plans
        total = self.evaluation.base_tokens + len(plans) * self.evaluation.tokens

        def measured(name: str, tokens: int) -> None:
            progress(tokens, total, name)

        self.evaluation.run_base(partial(measured, "the base"))
        recipes = method_recipes(self.methods)
        for name, plan in plans.items():
            started = time.perf_counter()
            self.resizer.set_positions(plan)
            self.evaluation.measure(partial(measured, name))
            candidate = Candidate(
                name=name,
                evaluation=self.evaluation.report(),
                scores=self.evaluation.scores,
                seconds=time.perf_counter() - started,
                keeps_learned_rows=plan.short_inputs is ShortInputs.IDENTICAL,
                recipe=recipes[name],
            )
            self.candidates.append(candidate)

    def report(self) -> Comparison:
        """Return the results."""
        model = self.resizer.model
        settings = self.settings
        comparison = measured_comparison(
            self.candidates,
            choose_metric(model.kind, settings),
            self.evaluation,
            self.started,
            source=self.files.name,
            model_type=model.model_type,
            table=self.files.table_name,
            max_len_before=self.files.max_len,
            max_len_after=model.max_len,
        )
        comparison = replace(comparison, auto=self.methods.auto, skipped=self.methods.skipped)
        next_command = self.files.ref.resize_command(
            to=self.methods.max_len, method=comparison.recommended
        )
        return replace(comparison, next_command=next_command)


def open_comparison(opened: OpenedModel, settings: Compare) -> ComparisonRun:
    """Plan each method, load the model, and cut the text.

    Raises:
        CtxextendError: As `compare`.
    """
    check_start(settings)
    search_set = read_search_set(settings)
    files = open_files(opened)
    methods = plan_methods(files, settings)

    base = load_eval_model(files, settings.precision, settings.device)
    evaluate = evaluate_for(settings, base.kind, methods.max_len)
    applicable_measures(base, evaluate)
    resizer = open_resizer(base, methods.first)
    notes = base.notes
    documents: Iterable[Ids] | None = None
    if not evaluate.data and search_set is None:
        documents = map(files.tokenizer.encode, default_documents(opened))
        notes = (*notes, PYTHON_TEXT)
    advice = f"Too little text to choose; auto takes {methods.auto}."
    evaluation = plan_evaluation(
        resizer.model,
        base,
        evaluate,
        documents,
        search_set=search_set,
        short_hint=f"Pass more text with --data, or use a smaller --to. {advice}",
        notes=notes,
    )
    check_ranked(evaluation, advice)
    return ComparisonRun(
        files=files,
        settings=settings,
        methods=methods,
        resizer=resizer,
        evaluation=evaluation,
    )
