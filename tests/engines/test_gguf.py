"""llama.cpp computes from a resized GGUF file what transformers computes from the resized folder.

A model of 256 positions is converted to a GGUF file, which is resized to 1,024; its values beyond
the old length are compared with those of transformers for the folder that `resize` writes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ctxextend import inspect, resize, verify
from ctxextend.checkpoint.gguf_config import DEFAULT_BASE
from ctxextend.checkpoint.gguf_header import RECIPE_KEY, GgufFile, open_gguf
from ctxextend.errors import ResizeError
from tests.engines import cases, models
from tests.engines.cases import Case, Prepared, make_folder, method_of, prepare
from tests.engines.environments import ENGINES, is_selected
from tests.engines.models import NEW, OLD
from tests.engines.running import RunningEngine
from tests.engines.test_engines import SELECTED

LLAMA_CPP = ENGINES["llama_cpp"]

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not is_selected(LLAMA_CPP.name, LLAMA_CPP.environment, SELECTED),
        reason="llama_cpp is not selected",
    ),
]

# Settings that the converter of llama.cpp writes for the resized folder too.
CONVERTED = (
    Case("llama", "yarn"),
    Case("llama", "linear"),
    Case("llama", "theta"),
    Case("gemma3_text", "yarn"),
    Case("phi3", "theta"),
    Case("bert", "learned"),
    Case("roberta", "learned"),
    Case("gpt2", "learned"),
    Case("bloom", "ALiBi"),
)
# Settings that it drops, and the file can state.
DROPPED = (
    Case("phi", "yarn"),
    Case("gpt_neox", "yarn"),
    Case("stablelm", "yarn"),
    Case("gemma2", "yarn"),
    Case("modernbert", "yarn"),
    Case("nemotron", "yarn"),
    Case("olmo3", "yarn"),
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningEngine]:
    with RunningEngine(LLAMA_CPP) as engine:
        yield engine


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


def resized_file(case: Case, folder: Path, running: RunningEngine) -> Path:
    """Return the resized GGUF file of the base of a case."""
    if case.model_type == "gpt2":  # as in released files: the converter asks for it
        config = folder / "base" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"n_ctx": OLD}))
    base = folder / "base.gguf"
    running.convert(folder / "base", base)
    output = folder / "resized.gguf"
    resize(base, NEW, method_of(case), output=output, verify=True)
    return output


def run(case: Case, folder: Path, running: RunningEngine) -> tuple[Prepared, Path]:
    """Resize a file, check what llama.cpp computes from it, and return the file."""
    prepared = prepare(case, folder)
    path = resized_file(case, folder, running)
    measured = running.run(prepared, gguf=str(path))
    assert measured.name == "right", measured
    assert f"n_ctx_train {NEW}" in measured.note
    return prepared, path


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_resized_file_is_the_converted_folder(
    case: Case, folder: Path, running: RunningEngine
) -> None:
    prepared, path = run(case, folder, running)
    converted = folder / "converted.gguf"
    running.convert(prepared.folder, converted)
    ours = open_gguf(path)
    theirs = open_gguf(converted)
    assert metadata(ours) == metadata(theirs)
    assert {name: form(ours, name) for name in ours.entries} == {
        name: form(theirs, name) for name in theirs.entries
    }
    for name in ours.entries:
        assert ours.read_bytes(name).tobytes() == theirs.read_bytes(name).tobytes(), name


def metadata(file: GgufFile) -> dict[str, object]:
    """Return what a file states, but for its names, its recipe, and what only linear ones have."""
    values = file.values
    ignored = [RECIPE_KEY]
    ignored += [key for key in values if key.startswith("general.")]
    if "linear" in values.values():
        ignored += [key for key in values if key.endswith("original_context_length")]
    return {key: value for key, value in values.items() if key not in ignored}


def form(file: GgufFile, name: str) -> tuple[str, tuple[int, ...]]:
    entry = file.entries[name]
    return entry.dtype, entry.shape


@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_resized_file_states_what_the_converter_drops(
    case: Case, folder: Path, running: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It drops the base of rotary positions too, so the one of released models is given.
    monkeypatch.setattr(models, "THETA", DEFAULT_BASE)
    monkeypatch.setattr(cases, "THETA", DEFAULT_BASE)
    _, path = run(case, folder, running)
    assert verify(path)


def test_tensors_of_factors_are_refused(folder: Path, running: RunningEngine) -> None:
    for case in (Case("llama", "llama3"), Case("phi3", "longrope")):
        make_folder(case, folder / case.model_type)
        base = folder / f"{case.model_type}.gguf"
        running.convert(folder / case.model_type / "base", base)
        assert inspect(base).schemes[0].positions >= OLD
        with pytest.raises(ResizeError, match=r"rope_f\w+\.weight applies too"):
            resize(base, 4 * NEW, output=folder / "out.gguf")
        assert not (folder / "out.gguf").exists()
