"""The command that makes the limits of a checkpoint agree."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ctxextend.errors import not_an_option
from ctxextend.inspection.inspection_result import Limit
from ctxextend.limits.statements import may_lack_scaling, may_state_trained_length
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import resizable_ref
from ctxextend.positions.position_report import PositionReport
from ctxextend.settings import CheckpointRef


def with_fixes(
    model: OpenedModel, reports: Mapping[str, PositionReport], limits: Sequence[Limit]
) -> Iterator[Limit]:
    """Yield the limits; add to each that disagrees the command that fixes it.

    A rotary model may have been trained at another length than it states: the remark then has the
    command for this case.

    Args:
        model: The model.
        reports: All its positions, by name.
        limits: The limits of the positions that are selected.
    """
    ref = resizable_ref(model)
    for limit in limits:
        report = reports[limit.table]
        if limit.agrees or _shares_key_with_other_lengths(report, reports):
            yield limit
            continue
        length = _agreed_length(report, limits)
        part = _part(report, reports)
        fix = _command(model, ref, part, length, "--fix-limits")
        remark = ""
        if may_lack_scaling(report.location, model.checkpoint):
            lower = _lower_length(report, limits)
            if lower is not None:
                length = report.positions
                # It says at which length the model was trained.
                known = replace(ref, trained_length=length)
                fix = _command(model, known, part, length, "--fix-limits")
                scaling = replace(ref, trained_length=lower)
                command = _command(model, scaling, part, length)
                remark = f"if the model was trained at {lower} tokens, scale it: {command}"
            elif limit.tokens and limit.tokens > length and limit.file == report.location.file:
                command = _command(model, ref, part, limit.tokens, "--method", "limits")
                remark = f"if the model was trained at {limit.tokens} tokens: {command}"
        yield replace(limit, fix=fix, remark=remark)


def _command(model: OpenedModel, ref: CheckpointRef, part: str | None, to: int, *flags: str) -> str:
    """Return the command that writes a checkpoint of a length next to this one."""
    words = [ref.resize_command(part=part, to=to), *flags]
    output = output_next_to(model, to)
    # By default, `resize` writes to the current folder.
    if output is not None and Path(output).parent.resolve() != Path.cwd():
        words.append(shlex.join(["--output", output]))
    return " ".join(words)


def output_next_to(model: OpenedModel, length: int) -> str | None:
    """Return the output of a resize that is next to the checkpoint.

    None if the checkpoint is not the user's own folder or file.
    """
    source = model.checkpoint.source
    path = os.path.normpath(os.path.expanduser(model.ref.source))  # noqa: PTH111 - as it is read
    if source.kind not in ("folder", "file") or model.ref.subfolder is not None:
        return None
    suffix = model.checkpoint.file_suffix
    if source.kind == "file" and not suffix:
        return None  # the checkpoint is the folder of the file
    name = f"{source.name}-{length}{suffix}"
    folder = Path(path).parent
    if Path(path).name in ("", ".."):
        folder = Path(path, "..")
    return not_an_option(str(folder / name))


def _lower_length(report: PositionReport, limits: Sequence[Limit]) -> int | None:
    """Return the largest length below the positions that may be the one of the training.

    A limit states it, and disagrees. Those that only cut texts do not count.
    """
    lower = list[int]()
    for limit in limits:
        is_of_table = limit.table == report.name and not limit.agrees
        if not is_of_table or not may_state_trained_length(limit.file):
            continue
        if limit.tokens is not None and 0 < limit.tokens < report.positions:
            lower.append(limit.tokens)
    return max(lower, default=None)


def _agreed_length(table: PositionReport, limits: Sequence[Limit]) -> int:
    """Return the length on which all limits can agree, in tokens.

    It is the number of rows that were trained, if a limit states it: such limits keep texts from
    rows that were not. Else it is the largest length that a limit states and the positions serve.
    """
    stated = list[int]()
    for limit in limits:
        if limit.table == table.name and limit.tokens is not None:
            stated.append(limit.tokens)
    if table.trained_positions in stated:
        return table.trained_positions
    served = table.location.lengths.served
    return max(length for length in (table.positions, *stated) if length <= served)


def _shares_key_with_other_lengths(
    table: PositionReport, reports: Mapping[str, PositionReport]
) -> bool:
    """Whether tables of other lengths share the config key, so that no command fixes it."""
    key_values = set[int]()
    for other in reports.values():
        if other.config_key == table.config_key:
            key_values.add(other.key_value)
    return len(key_values) > 1


def _part(table: PositionReport, reports: Mapping[str, PositionReport]) -> str | None:
    """Return the part that a command has to name; None if all have the same length."""
    if len({other.positions for other in reports.values()}) > 1:
        return table.part or None
    return None
