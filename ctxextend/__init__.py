"""Give a checkpoint with a learned position table another context length, and change nothing else.

    import ctxextend

    plan = ctxextend.plan_resize("gpt2", to=4096, method="linear")
    result = plan.execute("gpt2-4096")

`resize` does both at once, `extend_model` does the same to a loaded transformers model. Importing this package
imports neither torch nor numpy; what a name needs is imported when the name is used.
"""

import importlib
from typing import Any

from ctxextend.version import __version__ as __version__

# The modules that names come from, which are imported when a name is used; type checkers and editors read the same
# in __init__.pyi.
_MODULES = {
    "comparison.calibrate": "calibrate",
    "comparison.compare": "ComparisonInterrupted compare",
    "comparison.comparison_result": "Calibration Comparison",
    "errors": "CheckpointError CtxextendError DataError OutputError RecipeError ResizeError SourceError TrainingError "
    "UnsupportedModelError VerificationError",
    "evaluation.evaluate": "EvaluationInterrupted evaluate",
    "evaluation.evaluation_result": "Evaluation",
    "families.lookup": "FamilyTable list_families",
    "inspection.inspect": "inspect",
    "inspection.table_report": "Inspection LibraryLimit Limit TableReport",
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
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
