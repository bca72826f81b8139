from pathlib import PurePosixPath

import pytest

from ctxextend.checkpoints.filenames import CODE, KNOWN, STALE, first_match


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
