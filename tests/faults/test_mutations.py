"""Weights that were damaged at random, by their bytes and by their structure: they are read, or refused."""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from ctxextend.checkpoints.safetensors_file import TensorFile, open_safetensors
from ctxextend.errors import CheckpointError, CtxextendError
from ctxextend.plan.plan import plan_resize
from tests.faults.limits import examples
from tests.faults.weights import entry, model, pack, theirs

pytestmark = pytest.mark.usefixtures("sweep")


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Flip, cut, double and insert bytes, most of them in the header."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        end = len(data) if draw.random() < 0.2 else min(len(data), 400)
        start = draw.randrange(max(end, 1))
        stop = min(start + draw.choice((1, 1, 4, 30)), len(data))
        piece = data[start:stop]
        data[start:stop] = draw.choice(
            (
                bytes(byte ^ 1 << draw.randrange(8) for byte in piece),
                b"",
                piece + piece,
                piece + draw.randbytes(3),
                draw.choice((b'"', b"{", b"}", b"[", b"]", b",", b":", b"0", b"9" * 20, b"-", b"\\u", b"null", b" ")),
            )
        )
    return bytes(data)


JUNK = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 4, 2**31, 2**63, 2**64, 10**400, 0.5, "", "F32", "U8", "F4", "\ud800", "a\0\x1b"]
    )
    | st.integers()
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys that lead there."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = value.copy()
    copy[path[0]] = put(value[path[0]], path[1:], change)
    return copy


# What may become of a value; what does not fit it leaves it as it is.
CHANGES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "replace": lambda junk: lambda value: junk,
    "nudge": lambda junk: lambda value: value + 1 if type(value) is int else value,
    "reverse": lambda junk: lambda value: dict(reversed(value.items())) if isinstance(value, dict) else value,
    "add": lambda junk: lambda value: value | {"extra": junk} if isinstance(value, dict) else value,
    "remove": lambda junk: lambda value: value[1:] if isinstance(value, list) else value,
    "lose": lambda junk: lambda value: dict(list(value.items())[1:]) if isinstance(value, dict) else value,
    "rename": lambda junk: (
        lambda value: (
            {f"{junk}{key}"[-20:]: inner for key, inner in value.items()} if isinstance(value, dict) else value
        )
    ),
    "spell": lambda junk: lambda value: f"{value}\0\n\u202e" if isinstance(value, str) else value,
}


@st.composite
def headers(draw: Any) -> bytes:
    """A sound header in which some values were exchanged, at any depth, and its bytes."""
    header: Any = {
        "__metadata__": {"format": "pt"},
        "wpe.weight": entry(0, 64, "F32", [4, 4]),
        "b": entry(64, 72, "F16", [2, 2]),
        "c": entry(72, 72, "I64", [0]),
    }
    for _ in range(draw(st.integers(1, 3))):
        path, junk = draw(st.sampled_from(places(header))), draw(JUNK)
        header = put(header, path, CHANGES[draw(st.sampled_from(list(CHANGES)))](junk))
    text = json.dumps(header, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return pack(text.encode("utf-8", "surrogatepass"), bytes(draw(st.sampled_from([72, 72, 72, 71, 80]))))


SOUND = pack(
    {"__metadata__": {"format": "pt"}, "wpe.weight": entry(0, 64, "F32", [4, 4]), "b": entry(64, 72, "F16", [2, 2])},
    bytes(72),
)


def check_both(content: bytes) -> None:
    """Open a file; what we read safetensors must read, and say the same of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content)
        try:
            file = open_safetensors(path)
        except CheckpointError:
            return
        assert isinstance(file, TensorFile)
        assert file.tensor_bytes == path.stat().st_size - file.data_start
        with safe_open(path, "np") as other:
            assert {*file.entries} == {*other.keys()}
            assert (file.metadata or {}) == (other.metadata() or {})


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_open_safetensors_of_damaged_bytes_reads_no_more_than_safetensors(draw: random.Random) -> None:
    check_both(damaged(SOUND, draw))


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(headers())
def test_open_safetensors_of_another_structure_reads_no_more_than_safetensors(content: bytes) -> None:
    check_both(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose weights are damaged in place."""
    return model(tmp_path_factory.mktemp("whole"), SOUND)


def resized_or_refused(folder: Path, content: bytes) -> None:
    """Resize a checkpoint with these weights: it succeeds, and safetensors reads the output, or is refused."""
    (folder / "model.safetensors").write_bytes(content)
    output = Path("output")
    try:
        plan_resize(folder, 8).execute(output)
    except CtxextendError:
        assert not output.exists()
        return
    theirs(output / "model.safetensors")
    shutil.rmtree(output)


IN_A_FOLDER = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@IN_A_FOLDER
@given(st.randoms(use_true_random=False))
def test_resize_of_damaged_weights_succeeds_or_refuses(whole: Path, draw: random.Random) -> None:
    resized_or_refused(whole, damaged(SOUND, draw))


@IN_A_FOLDER
@given(headers())
def test_resize_of_a_header_of_another_structure_succeeds_or_refuses(whole: Path, content: bytes) -> None:
    resized_or_refused(whole, content)
