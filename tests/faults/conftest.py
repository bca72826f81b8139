"""A small checkpoint with every kind of output file, and a fork server to resize it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import pico, tracing
from tests.helpers.fork_server import ForkServer, open_fork_server


def pytest_configure(config: pytest.Config) -> None:
    """Try every fault when the slow tests run."""
    tracing.is_full_sweep = config.option.markexpr == "slow"


@pytest.fixture(scope="module", params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def sweep(request: pytest.FixtureRequest) -> str:
    """Run a test on a sample of its faults, and in `make test-slow` on all of them."""
    return str(request.param)


@pytest.fixture(scope="session")
def server(base_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has already resized a checkpoint."""
    first = tmp_path_factory.mktemp("server") / "first"
    with open_fork_server("resize", base_checkpoint, "--to", 20, "-o", first, "--quiet") as server:
        yield server


@pytest.fixture(scope="session")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in two shards, with a tokenizer limit to edit and a module's folder."""
    folder = pico.make(tmp_path_factory.mktemp("base") / "source", "gpt2").folder
    pico.shard(folder, "8KB")
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=16)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def source(base_checkpoint: Path, _empty_folder: None) -> Path:
    """The checkpoint, copied to ``source`` in the test's folder."""
    return Path(shutil.copytree(base_checkpoint, "source"))
