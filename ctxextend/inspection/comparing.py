"""Several inspections beside each other: what each is called, and which tables belong together."""

from collections.abc import Sequence

from ctxextend.inspection.reports import Inspection, TableReport

__all__ = ["Shown", "short_names", "tables_by_part"]

# A table of one model, and the model.
Shown = tuple[Inspection, TableReport]


def short_names(inspections: Sequence[Inspection]) -> dict[int, str]:
    """Return what each model is called, by its `id`: the end of its path, where that tells them apart."""
    short = [inspection.source.rstrip("/").rpartition("/")[2] for inspection in inspections]
    unique = len(set(short)) == len(short)
    return {
        id(inspection): name if unique else inspection.source
        for inspection, name in zip(inspections, short, strict=True)
    }


def tables_by_part(inspections: Sequence[Inspection]) -> list[list[Shown]]:
    """Return the tables, those of several models that are the same part together."""
    groups: dict[str, list[Shown]] = {}
    for inspection in inspections:
        for table in inspection.tables:
            groups.setdefault(table.part, []).append((inspection, table))
    return list(groups.values())
