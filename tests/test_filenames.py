"""Names of files against patterns: ours beside the standard library's."""

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctxextend.checkpoints.filenames import CODE, KNOWN, STALE, first_match, fits

NAMES = st.text("ab.*?[]-", max_size=8)


@given(NAMES, NAMES)
@example("a", "a*a")  # what begins and ends it may not be the same character
@example("aa", "a*a")
@example("a.index.b", "*.index*.b")
@example("model-1.bin", "model-?.bin")
def test_fits_is_fnmatchcase(name: str, pattern: str) -> None:
    assert fits(name, pattern) == fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("README.md", "README.md"),
        ("readme.MD", "README.md"),
        ("docs/README.md", None),
        ("runs/a/b", "runs/*"),
        ("runs", None),
        ("LICENSE.txt", "LICENSE.*"),
        ("model-00001-of-00002.safetensors", "model-?????-of-?????.safetensors"),
    ],
)
def test_first_match_of_known_names(path: str, pattern: str | None) -> None:
    assert first_match(PurePosixPath(path), KNOWN) == pattern


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("deep/er/Model.ONNX", "**/*.onnx"),
        ("onnx/model.json", "onnx/*"),
        ("pytorch_model-1.bin.index.json", "pytorch_model*.bin.index*.json"),
        ("deep/pytorch_model.bin", None),
    ],
)
def test_first_match_of_stale_names(path: str, pattern: str | None) -> None:
    assert first_match(PurePosixPath(path), STALE) == pattern
    assert first_match(PurePosixPath(path), CODE) is None
