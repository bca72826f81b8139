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
    from ctxextend.inspection.table_report import ClientLimit, Inspection, Limit, TableReport
    from ctxextend.models.extend import extend_model
    from ctxextend.pipeline import RunInterrupted, RunResult, run
    from ctxextend.plan.edits import TablePlan
    from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_resize, resize
    from ctxextend.tables.method_facts import Method
    from ctxextend.tables.methods import list_methods, register_method
    from ctxextend.training.train import train
    from ctxextend.training.training_run import TrainingInterrupted, TrainResult
    from ctxextend.verification.checks import Check
    from ctxextend.verification.verify import Verification, verify

__all__ = ["__version__", "calibrate", "compare", "evaluate", "extend_model", "inspect", "list_families"]
__all__ += ["list_methods", "plan_resize", "register_method", "resize", "run", "train", "verify"]
# What they return.
__all__ += ["Calibration", "Check", "ClientLimit", "Comparison", "Evaluation", "FamilyTable", "Inspection"]
__all__ += ["Limit", "Method", "ResizePlan", "ResizeResult", "RunResult", "TablePlan", "TableReport"]
__all__ += ["TrainResult", "Verification"]
# What they raise.
__all__ += ["CheckpointError", "CtxextendError", "DataError", "OutputError", "RecipeError", "ResizeError"]
__all__ += ["SourceError", "TrainingError", "UnsupportedModelError", "VerificationError"]
__all__ += ["ComparisonInterrupted", "EvaluationInterrupted", "RunInterrupted", "TrainingInterrupted"]

# The modules that names come from, which are imported when a name is used.
_MODULES = {
    "comparison.calibrate": "calibrate",
    "comparison.compare": "ComparisonInterrupted compare",
    "comparison.comparison_result": "Calibration Comparison",
    "evaluation.evaluate": "EvaluationInterrupted evaluate",
    "evaluation.evaluation_result": "Evaluation",
    "families.lookup": "FamilyTable list_families",
    "inspection.inspect": "inspect",
    "inspection.table_report": "ClientLimit Inspection Limit TableReport",
    "models.extend": "extend_model",
    "pipeline": "RunInterrupted RunResult run",
    "plan.edits": "TablePlan",
    "plan.plan": "ResizePlan ResizeResult plan_resize resize",
    "tables.method_facts": "Method",
    "tables.methods": "list_methods register_method",
    "training.train": "train",
    "training.training_run": "TrainResult TrainingInterrupted",
    "verification.checks": "Check",
    "verification.verify": "Verification verify",
}
_HOMES = {name: f"ctxextend.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
