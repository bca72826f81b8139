"""Threads, devices, time estimates, and commands without torch or transformers."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ctxextend import TrainingError, resize, train
from ctxextend.cli.app import build_app
from ctxextend.errors import EXTRAS, install_command
from ctxextend.models import devices
from tests.helpers.parameters import slow
from tests.helpers.repository import ROOT
from tests.helpers.trainings import write_book

MODEL = torch.nn.Linear(1000, 1000)
TINY = torch.nn.Linear(10, 10)


# ---- threads


@pytest.fixture
def five_threads() -> Iterator[None]:
    """Set the threads of torch to five during a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("five_threads")
@pytest.mark.parametrize(
    ("threads", "module", "variables", "expected"),
    [
        (None, MODEL, (), 5),
        (None, TINY, (), 1),
        (2, MODEL, (), 2),
        (None, MODEL, ("OMP_NUM_THREADS",), 5),
    ],
)
def test_torch_threads_prefers_the_flag_then_the_environment_then_the_default(
    threads: int | None,
    module: torch.nn.Module,
    variables: tuple[str, ...],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    for name in variables:
        monkeypatch.setenv(name, "5")
    model: Any = SimpleNamespace(parameters=module.parameters, device=torch.device("cpu"))

    with devices.torch_threads(model, threads):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 5


@pytest.mark.parametrize(
    "arguments",
    [
        "evaluate tiny-gpt2 --tokens 256 --measure position",
        "evaluate tiny-gpt2 --to 256 --method copy --tokens 256 --measure position",
        "train tiny-gpt2 --steps 1 --batch-size 1",
    ],
)
def test_threads_flag_sets_torch_threads(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    write_book()
    command = f"{arguments} --data book.txt --threads 3"
    done = CliRunner().invoke(build_app(), command.split())
    assert done.exit_code == 0, done.output
    assert threads == [3, torch.get_num_threads()]


# Prints two variables after a command has run.
PRINT_VARIABLES = """
import os, sys
from ctxextend.__main__ import main
sys.argv[1:] = ["methods"]
try:
    main()
except SystemExit:
    print(os.getenv("OMP_WAIT_POLICY"), os.getenv("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "PASSIVE 1"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 1")]
)
def test_command_line_sets_omp_wait_policy_by_default(given: dict[str, str], expected: str) -> None:
    environment = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS"):
        environment.pop(name, None)
    command = [sys.executable, "-c", PRINT_VARIABLES]
    done = subprocess.run(
        command, env=environment | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize(
    "arguments",
    ["evaluate tiny-gpt2", "train tiny-gpt2 --steps 1", "evaluate tiny-gpt2 --to 256"],
)
def test_commands_reject_unavailable_devices(arguments: str) -> None:
    write_book()
    command = f"{arguments} --data book.txt --device xpu"
    done = CliRunner().invoke(build_app(), command.split())
    assert done.exit_code == 1
    assert done.stderr.endswith("Error: Device 'xpu' is not available.\nUse cpu.\n")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report two devices of CUDA."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1")],
)
def test_open_device_prefers_an_accelerator(name: str | None, expected: str) -> None:
    assert str(devices.open_device(name)) == expected


# ---- devices


@pytest.mark.usefixtures("two_gpus")
def test_train_rejects_a_numbered_device() -> None:
    write_book()
    with pytest.raises(TrainingError, match=r"Set CUDA_VISIBLE_DEVICES=1\."):
        train("tiny-gpt2", "book.txt", 1, device="cuda:1")


def test_recipe_of_an_output_omits_device_and_threads() -> None:
    write_book()
    resize("tiny-gpt2", 256, output="longer")
    train("longer", "book.txt", 1, batch_size=1, device="cpu", threads=1, output="trained")
    text = Path("trained/ctxextend.yaml").read_text()
    settings, _, provenance = text.partition("\nprovenance:")
    assert "\n  steps: 1\n" in settings
    assert "threads" not in settings
    assert "device:" not in settings
    assert "\n    threads: 1\n" in provenance  # with which `run` trains again


# ---- without torch or transformers

# Makes imports of some libraries fail, and find_spec return None.
BLOCK = """
import os, sys

for name in os.environ["BLOCKED"].split():
    sys.modules[name] = None
"""


def run_without(blocked: str, arguments: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in an interpreter in which importing some libraries fails.

    With `options`, they replace the module and the command.
    """
    folder = Path("blocked")
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(BLOCK)
    paths = (str(folder.resolve()), str(ROOT))
    changes = {"BLOCKED": blocked, "PYTHONPATH": os.pathsep.join(paths)}
    program = options or ("-m", "ctxextend")
    command = [sys.executable, *program, *arguments.split()]
    return subprocess.run(
        command, env=os.environ | changes, capture_output=True, text=True, check=False
    )


def test_file_commands_run_without_torch() -> None:
    for arguments in (
        "resize tiny-gpt2 --to 256 --method bands --verify -o longer",
        "run longer/ctxextend.yaml -o again",
        "inspect longer",
        "verify longer",
        "families bert",
        "methods",
        "--help",
    ):
        done = run_without("torch transformers accelerate", arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        ("torch", "evaluate tiny-gpt2 --data book.txt"),
        ("transformers", "evaluate tiny-gpt2 --data book.txt"),
        slow("torch", "train tiny-gpt2 --data book.txt --steps 1"),
        ("torch", "verify longer --base tiny-gpt2 --deep"),
        ("torch", "inspect old.bin"),
        slow("torch", "demo"),
    ],
)
def test_missing_library_is_reported_with_an_install_command(blocked: str, arguments: str) -> None:
    write_book()
    torch.save({"wpe.weight": torch.zeros(4, 4)}, "old.bin")
    resize("tiny-gpt2", to=256, output="longer")
    done = run_without(blocked, arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"Error: This needs {blocked}: pip install {blocked}\n"


@pytest.mark.parametrize(
    ("blocked", "arguments", "extra"),
    [
        ("datasets", "run gpt2-4096 --dry-run", "train"),
        ("jinja2", "inspect tiny-gpt2 --report a.html", "plot"),
    ],
)
def test_command_without_an_extra_names_the_pip_command_with_it(
    blocked: str, arguments: str, extra: str
) -> None:
    done = run_without(blocked, arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"pip install 'ctxextend[{extra}]'" in done.stderr


def names_of(requirements: list[str]) -> set[str]:
    """Return the libraries of requirements, without versions."""
    return {re.split(r"[^\w-]", text)[0].lower() for text in requirements}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_those_of_the_metadata(extra: str) -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = metadata["project"]
    plain = names_of(project["dependencies"])
    in_extra = names_of(project["optional-dependencies"][extra]) - plain
    libraries = EXTRAS[extra]
    assert {name.replace("_", "-") for name in libraries} == in_extra
    for name in libraries:
        assert install_command(name) == f"pip install 'ctxextend[{extra}]'"


def test_missing_library_is_reported_as_json() -> None:
    write_book()
    done = run_without("torch", "evaluate tiny-gpt2 --data book.txt --json")
    error = {
        "type": "ModuleNotFoundError",
        "message": "This needs torch: pip install torch",
        "hint": None,
    }
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": error}
