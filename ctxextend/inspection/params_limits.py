"""The limits in Mistral's params.json, and its rotary settings that disagree with config.json."""

from collections.abc import Iterator, Sequence

from ctxextend.families.mistral_params import (
    MAX_POSITIONS,
    MISTRAL_INFERENCE,
    UNSTATED_LENGTH,
    Disagreement,
    length_in_vllm,
)
from ctxextend.inspection.inspection_result import Limit
from ctxextend.inspection.scheme_report import PositionReport, SchemeReport
from ctxextend.limits.generation import generating_table
from ctxextend.limits.params_file import (
    ParamsFile,
    disagreeing_lengths,
    find_params,
    params_disagreements,
    readers_of_length,
)
from ctxextend.limits.statements import VLLM
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.params_edits import in_config_text, value_text

NOT_READ = "none"
# What to do about settings: only the user knows which file is right.
CORRECT = "correct the wrong file"
CORRECT_OR_REMOVE = "correct config.json, or remove Mistral's files from a copy of the folder"


def params_limits(model: OpenedModel, reports: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the lengths that a params.json states, of the positions of the language model.

    Raises:
        CheckpointError: It is malformed.
    """
    params = find_params(model.checkpoint)
    report = _language_model(model, reports)
    if params is None or report is None:
        return
    wrong = disagreeing_lengths(params, report.location, report.positions)
    in_vllm = length_in_vllm(params.values, None)
    for key, value in params.lengths.items():
        reason = ""
        remark = ""
        if key in wrong:
            reason = f"{report.location.config_key} of config.json is {report.key_value}"
            if params.is_read_first:
                reason += ", and vLLM takes the smaller one"
        elif params.is_only_config and value != in_vllm:
            remark = _why_other_length(params, in_vllm)
        yield Limit(
            file=params.name,
            key=key,
            value=value,
            tokens=value if reason or remark else report.positions,
            used_by=", ".join(readers_of_length(params, key)) or NOT_READ,
            table=report.name,
            reason=reason,
            remark=remark,
        )


def _why_other_length(params: ParamsFile, in_vllm: int) -> str:
    """Say why vLLM takes another length than a key of the only config states."""
    if MAX_POSITIONS in params.lengths:
        return f"vLLM takes the smaller length, {in_vllm}"
    return f"vLLM takes {in_vllm}, since no {MAX_POSITIONS} is stated: --fix-limits adds it"


def params_setting_limits(model: OpenedModel, reports: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield a limit for each rotary setting of a params.json that is not that of config.json.

    No resize fixes it, since only the user knows which file is right.

    Raises:
        CheckpointError: A file is malformed.
    """
    params = find_params(model.checkpoint)
    report = _language_model(model, reports)
    if params is None or report is None:
        return
    for item in params_disagreements(params, report.location):
        step = CORRECT if item.is_statable else CORRECT_OR_REMOVE
        yield Limit(
            file=params.name,
            key=item.key,
            value=_shown(item),
            tokens=None,
            used_by=VLLM if params.is_read_first else MISTRAL_INFERENCE,
            table=report.name,
            reason=f"config.json states {in_config_text(item)}, and {_who_reads(params)}: {step}",
            expected=in_config_text(item),
        )


def _who_reads(params: ParamsFile) -> str:
    """Say who reads a params.json that disagrees with config.json, as a clause."""
    if params.is_read_first:
        return f"vLLM reads {params.name} first"
    return f"{MISTRAL_INFERENCE} reads {params.name}"


def _shown(item: Disagreement) -> object:
    """Return a value of params.json to show: integers as such, others as text."""
    if item.value is None or isinstance(item.value, int):
        return item.value
    return value_text(item.value)


def params_notes(model: OpenedModel) -> Iterator[str]:
    """Yield what to know of a folder whose only config is params.json.

    Raises:
        CheckpointError: It is malformed.
    """
    params = find_params(model.checkpoint)
    if params is None or not params.is_only_config:
        return
    yield (
        f"The config is Mistral's {params.name}, read as a {model.architecture.family.model_type} "
        "model: transformers does not load this folder."
    )
    if not params.lengths:
        yield (
            f"{params.name} states no length: vLLM and {MISTRAL_INFERENCE} take "
            f"{UNSTATED_LENGTH:,} tokens."
        )


def _language_model(model: OpenedModel, reports: Sequence[PositionReport]) -> SchemeReport | None:
    """Return the report of the positions that params.json states; None if it is not selected."""
    found = generating_table(model.tables)
    for report in reports:
        if found is not None and report.name == found.name and isinstance(report, SchemeReport):
            return report
    return None
