"""A small checkpoint that uses all that an output can have, and processes to resize it in."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import pico
from tests.faults import tracing
from tests.faults.nursery import Nursery, open_nursery


def pytest_configure(config: pytest.Config) -> None:
    """Try every fault where the slow tests run."""
    tracing.is_full_sweep = config.option.markexpr == "slow"


@pytest.fixture(scope="module", params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def sweep(request: pytest.FixtureRequest) -> str:
    """Run a test on a sample of the faults that it knows and, in `make test-slow`, on all of them."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _counted(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Note how many faults a test injects."""
    before = tracing.injected.copy()
    yield
    for fault, count in (tracing.injected - before).items():
        record_property("faults injected", (fault, count))


@pytest.fixture(scope="session")
def resizing(_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes that have resized a checkpoint before."""
    first = tmp_path_factory.mktemp("nursery") / "first"
    with open_nursery("resize", _made, "--to", 20, "-o", first, "--quiet") as nursery:
        yield nursery


@pytest.fixture(scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in two shards, with a tokenizer's limit, a text that is edited, and a module's folder."""
    folder = pico.make(tmp_path_factory.mktemp("made") / "source", "gpt2").folder
    pico.shard(folder, "8KB")
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=16)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def source(_made: Path, _empty_folder: None) -> Path:
    """The checkpoint, in the test's folder as ``source``."""
    return Path(shutil.copytree(_made, "source"))
