"""Resize the position embeddings of a checkpoint; everything else stays byte-identical.

    import ctxextend

    planned = ctxextend.plan_resize("gpt2", to=4096, method="linear")
    print(planned.plan.changes, planned.notes)
    result = planned.execute("gpt2-4096")

`resize` does both in one call; `extend_model` resizes a loaded transformers model. Importing this
package imports neither torch nor numpy: modules are loaded on first use of a name.
"""

import importlib
from typing import Any

from ctxextend.version import __version__ as __version__

# Public names by module, imported on first use; __init__.pyi lists the same for type checkers and
# editors.
_MODULES = {
    "errors": (
        "CheckpointError",
        "CtxextendError",
        "DataError",
        "MethodError",
        "OutputError",
        "RecipeError",
        "ResizeError",
        "SourceError",
        "TrainingError",
        "TrainingInterrupted",
        "UnsupportedModelError",
        "VerificationError",
    ),
    "lab.evaluate": ("evaluate",),
    "lab.evaluation": ("Evaluation",),
    "lab.scores": ("Score",),
    "families.listing": ("FamilyTable", "list_families"),
    "inspection.inspect": ("inspect",),
    "positions.position_report": ("RopeReport", "SchemeReport"),
    "inspection.inspection_result": ("Inspection", "Limit"),
    "positions.table_report": ("TableReport",),
    "models.extend": ("extend_model",),
    "pipeline": ("RunResult",),
    "notes": ("Note",),
    "plan": ("Plan",),
    "positions.change": ("Change",),
    "planned": ("Planned", "ResizeResult", "plan_resize"),
    "resizing": ("convert", "resize"),
    "running": ("run",),
    "tables.method_facts": ("Method",),
    "tables.methods": ("list_methods", "register_method"),
    "training.start": ("plan_training", "train"),
    "training.train_result": ("TrainResult", "TrainingPlan"),
    "verification.checks": ("Check",),
    "verification.conclusion": ("Verification",),
    "verification.verify": ("verify",),
}
_MODULE_OF = {name: f"ctxextend.{module}" for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
