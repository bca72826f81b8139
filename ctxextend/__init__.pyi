"""The public names, as editors and type checkers see them; written by `python -m tests.stubs`."""

from collections.abc import Callable, Collection, Sequence
from os import PathLike
from typing import Any

from torch.nn import Module

from ctxextend.comparison.compare import ComparisonInterrupted
from ctxextend.comparison.comparison_result import Calibration, Comparison
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
from ctxextend.evaluation.evaluate import EvaluationInterrupted
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.families.lookup import FamilyTable
from ctxextend.inspection.table_report import Inspection, LibraryLimit, Limit, TableReport
from ctxextend.pipeline import RunInterrupted, RunResult
from ctxextend.plan.edits import TablePlan
from ctxextend.plan.plan import ResizePlan, ResizeResult
from ctxextend.progress import Progress
from ctxextend.recipe import Recipe
from ctxextend.tables.method_facts import Method
from ctxextend.training.training_run import TrainingInterrupted, TrainResult
from ctxextend.verification.checks import Check
from ctxextend.verification.verify import Verification
from ctxextend.version import __version__

__all__ = [
    "Calibration",
    "Check",
    "CheckpointError",
    "Comparison",
    "ComparisonInterrupted",
    "CtxextendError",
    "DataError",
    "Evaluation",
    "EvaluationInterrupted",
    "FamilyTable",
    "Inspection",
    "LibraryLimit",
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
    "register_method",
    "resize",
    "run",
    "train",
    "verify",
]

def calibrate(
    reference: str | PathLike[str],
    to: int | str,
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    method: str = "bands",
    tokens: int = 65536,
    precision: str = "auto",
    seed: int = 0,
    text_field: str = "text",
    progress: Progress = ...,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tokenizer: str | None = None,
    keep_first: int | None = None,
    drop_last: int = 0,
    part: str | None = None,
    fix_limits: bool = False,
    copy_code: bool = False,
) -> Calibration:
    """Tune the settings of `bands` on a text."""

def compare(
    reference: str | PathLike[str],
    to: int | str,
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    methods: str | Sequence[str] = (),
    steps: int = 0,
    progress: Progress = ...,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tokenizer: str | None = None,
    length: int | Sequence[int] = (),
    tokens: int = 65536,
    batch_size: int = 8,
    precision: str = "auto",
    seed: int = 0,
    measure: str | Sequence[str] = (),
    text_field: str = "text",
    device: str | None = None,
    threads: int | None = None,
    seq_len: int | None = None,
    window: int | None = None,
    window_skip: bool = False,
    trainable: str = "positions",
    lr: float | None = None,
    weight_decay: float = 0.0,
    per_device_batch_size: int | None = None,
    eval_data: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
) -> Comparison:
    """Rank methods on one model, one text and one seed."""

def evaluate(
    reference: str | PathLike[str],
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    progress: Progress = ...,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tokenizer: str | None = None,
    base: str | PathLike[str] | None = None,
    no_base: bool = False,
    length: int | Sequence[int] = (),
    tokens: int = 65536,
    batch_size: int | None = None,
    precision: str = "auto",
    seed: int = 0,
    measure: str | Sequence[str] = (),
    text_field: str = "text",
    device: str | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Measure how much a checkpoint's context length helps on a text."""

def list_families(model_types: Collection[str] | None = None) -> list[FamilyTable]:
    """Return the position tables of model types, sorted by model type."""

def inspect(
    reference: str | PathLike[str],
    *,
    part: str | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tensor: str | None = None,
    config_key: str | None = None,
    reserved_rows: int = 0,
    tokenizer: str | None = None,
) -> Inspection:
    """Inspect the position tables and length limits of a checkpoint."""

def extend_model(
    model: Module,
    to: int | str,
    method: str | None = None,
    *,
    keep_first: int | None = None,
    drop_last: int = 0,
    part: str | None = None,
) -> None:
    """Resize the position tables of a loaded transformers model in place."""

def run(
    recipe: str | PathLike[str] | Recipe,
    output: str | PathLike[str] | None = None,
    *,
    changes: Sequence[str] = (),
    force: bool = False,
    resume: bool = False,
) -> RunResult:
    """Run the steps of a recipe: resize, train, evaluate."""

def plan_resize(
    reference: str | PathLike[str],
    to: int | str,
    method: str | None = None,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tensor: str | None = None,
    config_key: str | None = None,
    reserved_rows: int = 0,
    tokenizer: str | None = None,
    keep_first: int | None = None,
    drop_last: int = 0,
    part: str | None = None,
    fix_limits: bool = False,
    copy_code: bool = False,
) -> ResizePlan:
    """Plan a resize from a checkpoint's config and headers, without reading weights or writing anything."""

def resize(
    reference: str | PathLike[str],
    to: int | str,
    method: str | None = None,
    *,
    output: str | PathLike[str] | None = None,
    force: bool = False,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tensor: str | None = None,
    config_key: str | None = None,
    reserved_rows: int = 0,
    tokenizer: str | None = None,
    keep_first: int | None = None,
    drop_last: int = 0,
    part: str | None = None,
    fix_limits: bool = False,
    copy_code: bool = False,
) -> ResizeResult:
    """Resize the position table of a checkpoint and save the result as a new checkpoint."""

def list_methods() -> list[Method]:
    """Return all methods, the default first."""

def register_method(name: str, function: Callable[..., Any]) -> None:
    """Register a function as a method that `resize`, `extend_model` and `compare` accept by name."""

def train(
    reference: str | PathLike[str],
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    steps: int,
    *,
    output: str | PathLike[str] | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = ...,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tokenizer: str | None = None,
    text_field: str = "text",
    seq_len: int | None = None,
    window: int | None = None,
    window_skip: bool = False,
    trainable: str = "positions",
    lr: float | None = None,
    weight_decay: float = 0.0,
    batch_size: int = 8,
    per_device_batch_size: int | None = None,
    precision: str = "auto",
    seed: int = 0,
    eval_data: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    eval_every: int | None = None,
    save_every: int | None = None,
    save: str = "best",
    report_to: str = "none",
    base: str | PathLike[str] | None = None,
    dtype: str | None = None,
    copy_code: bool = False,
    device: str | None = None,
    threads: int | None = None,
) -> TrainResult:
    """Fine-tune a checkpoint on text, and save it as a new checkpoint."""

def verify(
    reference: str | PathLike[str],
    base: str | PathLike[str] | None = None,
    *,
    deep: bool = False,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    model_type: str | None = None,
    tensor: str | None = None,
    config_key: str | None = None,
    reserved_rows: int = 0,
    tokenizer: str | None = None,
) -> Verification:
    """Verify that a resized checkpoint differs from its base only in its position tables."""
