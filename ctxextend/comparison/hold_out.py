"""Held-out rows: the lengths of tables that are cut to their first rows and extended back."""

from ctxextend.errors import MethodError, ResizeError
from ctxextend.evaluation.eval_model import ResizableFiles
from ctxextend.plan.plan import plan_model
from ctxextend.recipe import Resize
from ctxextend.tables.method_facts import FORMULA


def read_hold_out_length(files: ResizableFiles, to: int | str | None, hold_out: int) -> int:
    """Return the length to which cut tables are extended, by default the checkpoint's own.

    Raises:
        MethodError: The checkpoint has no rows to hold out.
        ResizeError: The length is not between the first held-out row and the last reference row,
            or the rows follow a formula.
    """
    name = files.name
    if not files.has_rows:
        scheme = files.tables[0].location.scheme
        message = (
            f"--hold-out {hold_out}: {name} has {scheme} positions, which have no rows to hold out."
        )
        hint = "Remove --hold-out: methods are then compared with the base, which reads in pieces."
        raise MethodError(message, hint)
    tables = plan_model(files.opened, Resize(files.max_len)).tables
    length = min(table.max_len_before for table in tables)
    if hold_out >= length:
        message = (
            f"--hold-out {hold_out}: {name} has a context length of {length}, so no rows would "
            "be held out."
        )
        raise ResizeError(message, f"Use fewer rows, such as --hold-out {length // 2}.")
    if to is None:
        to = length
    plan = plan_model(files.opened, Resize(to), cut=hold_out)
    if not hold_out < plan.max_len_after <= length:
        message = (
            f"--to {plan.max_len_after} with --hold-out {hold_out}: {name} has reference rows up "
            f"to {length}."
        )
        hint = f"Remove --to, or use a length from {hold_out + 1} to {length}."
        raise ResizeError(message, hint)
    for table, choice in plan.choices.items():
        if choice.name == FORMULA:
            message = (
                f"The rows of {table} follow a formula, so the rows beyond any length are "
                "known exactly."
            )
            raise ResizeError(message, "Resize it without --method: there is nothing to compare.")
    return plan.max_len_after


def whole_length(files: ResizableFiles, to: int, hold_out: int) -> int | str:
    """Return the length that extends the whole tables by the same factor as the cut ones."""
    times, rest = divmod(to, hold_out)
    if rest == 0:
        return f"{times}x"
    return files.max_len * to // hold_out
