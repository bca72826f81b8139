"""Give a checkpoint with a learned position table another context length, and change nothing else.

    import ctxextend

    plan = ctxextend.plan_resize("gpt2", to=4096, method="linear")
    result = plan.execute("gpt2-4096")

`resize` does both at once, `extend_model` does the same to a loaded transformers model. Importing this package
imports neither torch nor numpy; what a name needs is imported when the name is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    DataError,
    OutputError,
    RecipeError,
    ResizeError,
    SourceError,
    TrainingError,
    UnsupportedModelError,
    VerificationError,
)
from ctxextend.version import __version__

if TYPE_CHECKING:
    from ctxextend.comparison.calibrate import calibrate
    from ctxextend.comparison.compare import ComparisonInterrupted, compare
    from ctxextend.comparison.comparison_result import Calibration, Comparison
    from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate
    from ctxextend.evaluation.evaluation_result import Evaluation
    from ctxextend.families.lookup import FamilyTable, list_families
    from ctxextend.inspection.inspect import inspect
    from ctxextend.inspection.stated_limits import ClientLimit, Limit
    from ctxextend.inspection.table_report import Inspection, TableReport
    from ctxextend.models.extend import extend_model
    from ctxextend.pipeline import RunInterrupted, RunResult, run
    from ctxextend.plan.edits import TablePlan
    from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_resize, resize
    from ctxextend.tables.method_facts import Method
    from ctxextend.tables.methods import list_methods
    from ctxextend.training.train import train
    from ctxextend.training.training_result import TrainingInterrupted, TrainResult
    from ctxextend.verification.checks import Check, Verification
    from ctxextend.verification.verify import verify

__all__ = [
    "Calibration",
    "Check",
    "CheckpointError",
    "ClientLimit",
    "Comparison",
    "ComparisonInterrupted",
    "CtxextendError",
    "DataError",
    "Evaluation",
    "EvaluationInterrupted",
    "FamilyTable",
    "Inspection",
    "Limit",
    "Method",
    "OutputError",
    "RecipeError",
    "ResizeError",
    "ResizePlan",
    "ResizeResult",
    "RunInterrupted",
    "RunResult",
    "SourceError",
    "TablePlan",
    "TableReport",
    "TrainResult",
    "TrainingError",
    "TrainingInterrupted",
    "UnsupportedModelError",
    "Verification",
    "VerificationError",
    "__version__",
    "calibrate",
    "compare",
    "evaluate",
    "extend_model",
    "inspect",
    "list_families",
    "list_methods",
    "plan_resize",
    "resize",
    "run",
    "train",
    "verify",
]

_HOMES = {
    "Calibration": "ctxextend.comparison.comparison_result",
    "calibrate": "ctxextend.comparison.calibrate",
    "Comparison": "ctxextend.comparison.comparison_result",
    "ComparisonInterrupted": "ctxextend.comparison.compare",
    "compare": "ctxextend.comparison.compare",
    "TrainResult": "ctxextend.training.training_result",
    "TrainingInterrupted": "ctxextend.training.training_result",
    "train": "ctxextend.training.train",
    "Evaluation": "ctxextend.evaluation.evaluation_result",
    "EvaluationInterrupted": "ctxextend.evaluation.evaluate",
    "evaluate": "ctxextend.evaluation.evaluate",
    "ClientLimit": "ctxextend.inspection.stated_limits",
    "Check": "ctxextend.verification.checks",
    "Verification": "ctxextend.verification.checks",
    "verify": "ctxextend.verification.verify",
    "Inspection": "ctxextend.inspection.table_report",
    "Limit": "ctxextend.inspection.stated_limits",
    "TableReport": "ctxextend.inspection.table_report",
    "inspect": "ctxextend.inspection.inspect",
    "FamilyTable": "ctxextend.families.lookup",
    "Method": "ctxextend.tables.method_facts",
    "list_families": "ctxextend.families.lookup",
    "list_methods": "ctxextend.tables.methods",
    "ResizePlan": "ctxextend.plan.plan",
    "ResizeResult": "ctxextend.plan.plan",
    "TablePlan": "ctxextend.plan.edits",
    "extend_model": "ctxextend.models.extend",
    "plan_resize": "ctxextend.plan.plan",
    "resize": "ctxextend.plan.plan",
    "RunInterrupted": "ctxextend.pipeline",
    "RunResult": "ctxextend.pipeline",
    "run": "ctxextend.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
