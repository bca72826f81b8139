"""The file of model types states what the classes of `positions` have, each type once."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend.families import registry
from ctxextend.families.registry import ENTRIES, FAMILIES, POSITION_SCHEMES, find_family

DATA = Path(registry.__file__).with_name(registry.DATA_FILE)


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(names) == len({*names}), f"one of {names} is stated twice"
    return dict(pairs)


def names_in(value: Any) -> set[str]:
    """Return all texts in a value, except for readers."""
    if isinstance(value, str):
        return {value}
    items = value if isinstance(value, list) else []
    if isinstance(value, dict):
        items = [item for key, item in value.items() if key not in ("why", "about")]
    return set[str]().union(*map(names_in, items))


def test_file_states_each_type_once_and_nothing_unused() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"), object_pairs_hook=strict)
    assert data.keys() == {"shared", "groups", "unsupported"}
    types = list[str]()
    for group in data["groups"]:
        assert group.keys() <= {"about", "facts", "types"}
        types += group["types"]
    for group in data["unsupported"]:
        assert group.keys() == {"instead", "types"}
        types += group["types"]
    assert len(types) == len({*types})

    shared = {name for names in data["shared"].values() for name in names}
    assert shared <= names_in(data)


def test_every_type_can_be_read() -> None:
    for model_type in ENTRIES:
        assert FAMILIES[model_type].model_type == model_type
    assert not ENTRIES.keys() & POSITION_SCHEMES.keys()
    assert not all(family.has_causal_mask for family in FAMILIES.values())
    assert any(family.unrelated_keys for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"lenght": 512}, "Family.* unexpected .*'lenght'"),
        ({"rope": {}, "positions": [{"like": "BERT"}]}, "Family.* unexpected .*'rope'"),
        ({"positions": [{"kind": "row"}]}, "positions have kind 'row', not one of rows, "),
    ],
)
def test_find_family_names_what_no_type_has(
    facts: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENTRIES, "new_type", facts)
    with pytest.raises(ValueError, match=f"model_types.json: new_type: .*{problem}"):
        find_family("new_type")
