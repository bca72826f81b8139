"""The positions of an architecture of GGUF files, as an entry of the registry."""

from functools import cache

from ctxextend.checkpoint.features import GGUF_METHODS
from ctxextend.checkpoint.gguf_config import (
    ARCHITECTURES,
    DEFAULT_BASE,
    FULL_LAYERS,
    LENGTH,
    POSITION_TABLE,
    SLIDING_LAYERS,
    WIDTH,
)
from ctxextend.positions.facts import ConfigCondition, Family, RotaryFacts
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rows import Rows
from ctxextend.positions.unlimited import Unlimited


@cache
def gguf_family(name: str) -> Family | None:
    """Return the entry of an architecture; None if it is not known."""
    row = ARCHITECTURES.get(name)
    if row is None:
        return None
    key = f"{name}.{LENGTH}"
    tables = list[Positions]()
    note = ""
    if "positions" not in row:
        methods = tuple(row.get("methods", GGUF_METHODS))
        if "reason" in row:
            note = f"only {' and '.join(methods) or 'limits'} applies, since {row['reason']}"
        facts = RotaryFacts(methods=methods, has_dialects=False, rounding=1e-6)
        of_windows = facts._replace(
            theta=dict.fromkeys((FULL_LAYERS, SLIDING_LAYERS), DEFAULT_BASE),
            local=(SLIDING_LAYERS,),
        )
        for rope, has_window_base in ((facts, False), (of_windows, True)):
            when = ConfigCondition("has_window_base", value=has_window_base)
            tables.append(Rotary(rope=rope, config_key=key, settings_key=f"{name}.rope", when=when))
    elif row["positions"] == "learned":
        tables.append(Rows(tensor=POSITION_TABLE, config_key=key))
    else:
        when = ConfigCondition("has_table", value=True)
        tables.append(Rows(tensor=POSITION_TABLE, config_key=key, when=when))
        when = ConfigCondition("has_table", value=False)
        tables.append(Unlimited(scheme=row["positions"], config_key=key, when=when))
    return Family(name, tables=tuple(tables), width_keys=(WIDTH,), note=note)
