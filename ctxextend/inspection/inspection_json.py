"""What `inspect --json` prints of an inspection: all but the values of each row and pair."""

from collections.abc import Mapping
from typing import Any

from ctxextend.inspection.inspection_result import Inspection
from ctxextend.json_output import to_json
from ctxextend.positions.table_report import MAX_LISTED

FIRST_KEYS = ("source", "folder", "model_type", "verdict", "agrees", "findings", "limits")
# What --check says of each limit; the rest of one that disagrees is in its finding.
CHECKED_KEYS = ("file", "key", "tokens", "agrees")
ROW_LISTS = ("norms", "cosines_to_next")
PAIR_LISTS = ("wavelengths", "unscaled_wavelengths")


def check_json(inspection: Inspection) -> dict[str, Any]:
    """Return the verdict, the findings and the limits."""
    values = inspection.to_json()
    checked = {key: values[key] for key in FIRST_KEYS}
    limits = list[dict[str, Any]]()
    for limit in values["limits"]:
        limits.append({key: limit[key] for key in CHECKED_KEYS})
    checked["limits"] = limits
    return checked


def summary_json(inspection: Inspection, *, with_pairs: bool = False) -> dict[str, Any]:
    """Return everything but the lists with a value per row, and per pair unless `with_pairs`."""
    values: dict[str, Any] = to_json(inspection)
    for table in values["tables"]:
        _shorten_table(table)
    for scheme in values["schemes"]:
        for layers in scheme["layers"]:
            if not with_pairs:
                for name in PAIR_LISTS:
                    del layers[name]
    first = {key: values[key] for key in FIRST_KEYS}
    return first | values


def _shorten_table(table: dict[str, Any]) -> None:
    """Remove the values of each row, and keep only the first unusual ones."""
    for name in ROW_LISTS:
        del table[name]
    table["outliers"] = table["outliers"][:MAX_LISTED]


def with_rows(values: dict[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a model with the statistics of its rows, if any were requested."""
    if not rows:
        return values
    return {**values, "rows": rows}
