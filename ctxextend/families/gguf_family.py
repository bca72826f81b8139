"""The positions of an architecture of GGUF files, as an entry of the registry."""

from functools import cache

from ctxextend.checkpoint.features import GGUF_METHODS
from ctxextend.checkpoint.gguf_config import ARCHITECTURES, DEFAULT_BASE, POSITION_TABLE
from ctxextend.positions.facts import ConfigCondition, Family, RotaryFacts
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rows import Rows
from ctxextend.positions.unlimited import Unlimited
from ctxextend.tables.rope_types import FULL_LAYERS, SLIDING_LAYERS


@cache
def gguf_family(name: str) -> Family:
    """Return the entry of an architecture.

    Raises:
        KeyError: It is not known.
    """
    row = ARCHITECTURES[name]
    key = f"{name}.context_length"
    has_table = ConfigCondition("has_table", value=True)
    rows = Rows(tensor=POSITION_TABLE, config_key=key, when=has_table)
    tables: tuple[Positions, ...] = (rows,)
    note = ""
    if "positions" not in row:
        methods = tuple(row.get("methods", GGUF_METHODS))
        facts = RotaryFacts(methods=methods, has_dialects=False, rounding=1e-6)
        of_windows = facts._replace(
            theta=dict.fromkeys((FULL_LAYERS, SLIDING_LAYERS), DEFAULT_BASE),
            local=(SLIDING_LAYERS,),
        )
        tables = tuple(
            Rotary(
                rope=rope,
                config_key=key,
                settings_key=f"{name}.rope",
                when=ConfigCondition("has_window_base", value=rope is of_windows),
            )
            for rope in (facts, of_windows)
        )
        if "reason" in row:
            note = f"it is scaled by {' and '.join(methods) or 'no method'}, since {row['reason']}"
    elif row["positions"] != "learned":
        has_none = has_table._replace(value=False)
        tables = (rows, Unlimited(scheme=row["positions"], config_key=key, when=has_none))
    return Family(name, tables=tables, note=note)
