import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.checkpoint.json_edit import delete, edit, load_object
from ctxextend.errors import CheckpointError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=5)
INDENTS = st.sampled_from([None, 0, 2, "\t"])


def test_edit_changes_only_the_value() -> None:
    text = '{\r\n\t"z": [1,  2], "n" :512 ,\n "a": {"n": "}"}}\n\n'
    longer = edit(text, {("n",): 4096})
    assert longer == text.replace("512", "4096")
    nested = edit(text, {("a", "n"): 7})
    assert nested == text.replace('"}"', "7")


def test_edit_appends_a_missing_key_in_the_same_style() -> None:
    assert edit('{\n  "a": 1\n}\n', {("b",): 2}) == '{\n  "a": 1,\n  "b": 2\n}\n'
    assert edit('{"a": 1}', {("b",): 2}) == '{"a": 1, "b": 2}'
    assert edit('{"a":1}', {("b",): 2}) == '{"a":1,"b":2}'
    assert edit("{}", {("b",): 2}) == '{"b": 2}'


@given(value=OBJECTS, new=VALUES, indent=INDENTS, data=st.data())
def test_edit_equals_editing_the_parsed_object(
    value: dict[str, Any], new: Any, indent: Any, data: Any
) -> None:
    known = st.sampled_from(sorted(value))
    key = data.draw(known | st.text(max_size=4))
    for ascii_only in (True, False):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        edited = edit(text, {(key,): new})
        parsed = json.loads(edited)
        expected = value | {key: new}
        assert parsed == expected
        assert list(parsed) == list(expected)


@given(value=OBJECTS, indent=INDENTS, data=st.data())
def test_delete_equals_deleting_from_the_parsed_object(
    value: dict[str, Any], indent: Any, data: Any
) -> None:
    some = st.sets(st.sampled_from(sorted(value)))
    names = data.draw(some)
    text = json.dumps({"x": value, "y": 1}, indent=indent)
    edited = delete(text, "x", names)
    remaining = json.loads(edited)
    kept = {key: item for key, item in value.items() if key not in names}
    assert remaining == {"x": kept, "y": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1, 2]", "a JSON list, not an object"),
        (b'{"a": 1, "a": 2}', "duplicate key 'a'"),
        (b'{"a": ' * 150 + b"1" + b"}" * 150, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"a": "\xff"}', r"not UTF-8 text \(byte 7\)"),
        (None, "is missing"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_load_object_reports_the_problem(text: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text)
    problem = f"{path} .*{message}"
    with pytest.raises(CheckpointError, match=problem):
        load_object(path)
