"""`ctxextend doctor`: what is installed, missing or broken, and that the report has no names."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ctxextend
from ctxextend import environment
from ctxextend.environment import REQUIRED, USES, Environment, doctor
from tests.helpers.json_schemas import check
from tests.helpers.repository import ROOT
from tests.helpers.trainings import invoke
from tests.project.test_release import link_distributions

TOKEN = f"hf_{'a' * 34}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    """Return the libraries that requirements name, as pip spells them."""
    return {re.split(r"[^\w-]", text)[0].lower().replace("_", "-") for text in requirements}


def state_of(found: Environment, name: str) -> str:
    (library,) = (library for library in found.libraries if library.name == name)
    return library.state


def messages(found: Environment, level: str) -> list[str]:
    return [problem.message for problem in found.problems if problem.level == level]


def has_version(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Make some libraries seem to have other versions, or none."""
    installed = importlib.metadata.version

    def version(name: str) -> str:
        stated = versions.get(name.replace("-", "_"), installed(name))
        if stated is None:
            raise PackageNotFoundError(name)
        return stated

    monkeypatch.setattr(environment, "version", version)


# What is looked at


def test_doctor_knows_all_libraries_of_the_project() -> None:
    assert names(PROJECT["dependencies"]) == set(REQUIRED)
    for extra, uses in USES.items():
        assert names(PROJECT["optional-dependencies"][extra]) - set(REQUIRED) == set(uses)
    others = PROJECT["optional-dependencies"].keys() - USES.keys()
    assert others == {"dev", "docs"}


def test_doctor_states_the_versions_of_the_project() -> None:
    found = ctxextend.doctor()
    assert found.passed
    assert found.version == ctxextend.__version__
    stated = {library.name: library.required for library in found.libraries}
    assert stated["torch"] == ">=2.7"
    assert stated["peft"] == ">=0.18"
    (library,) = (library for library in found.libraries if library.name == "torch")
    assert library.version == version("torch")


def test_doctor_prints_a_report() -> None:
    done = invoke("doctor")
    assert done.exit_code == 0
    for label in ("ctxextend", "Python", "devices", "  torch", "  Hub cache", "  temporary files"):
        assert f"\n{label} " in f"\n{done.stdout}"
    as_json = json.loads(invoke("doctor", "--json").stdout)
    check(as_json, "doctor")
    assert as_json["passed"] is True


def test_doctor_is_done_when_its_libraries_are_imported() -> None:
    libraries = [sys.executable, "-c", "import torch, transformers"]
    report = [sys.executable, "-m", "ctxextend", "doctor"]
    seconds = dict[str, float]()
    for _ in range(2):  # the first time, files are read from the disk
        for name, command in (("libraries", libraries), ("report", report)):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name] = time.perf_counter() - start
    assert seconds["report"] < 2 * seconds["libraries"] + 1


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/tmp/hub-home"},
        {"XDG_CACHE_HOME": "/tmp/caches"},
        {"HF_HOME": "$BASE/home", "BASE": "/tmp/base"},
        {"HF_HUB_CACHE": "~/cache", "HUGGINGFACE_HUB_CACHE": "/tmp/old"},
        {"HUGGINGFACE_HUB_CACHE": "/tmp/old", "HF_TOKEN_PATH": "~/token"},
        {"TRANSFORMERS_OFFLINE": "yes"},
    ],
)
def test_doctor_finds_what_huggingface_hub_uses(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = (
        "from huggingface_hub import constants as c; "
        "print(c.HF_HUB_CACHE, c.HF_HUB_OFFLINE, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    folder, offline = done.stdout.splitlines()
    hub = doctor().hub
    assert hub.folder == folder.replace(str(tmp_path), "~")
    assert str(hub.is_offline) == offline


def test_doctor_counts_the_files_of_the_cache_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "c"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "d").write_bytes(bytes(1000))
    (snapshot / "model.safetensors").symlink_to(blobs / "d")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub = doctor().hub
    assert (hub.bytes, hub.is_complete) == (1000, True)
    monkeypatch.setattr(environment, "MAX_FILES", 0)
    assert not doctor().hub.is_complete


# What is wrong


def test_doctor_names_the_command_that_needs_a_missing_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_version(monkeypatch, accelerate=None)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    found = doctor()
    assert found.passed
    assert state_of(found, "accelerate") == "missing"
    (problem,) = found.problems
    assert problem.message.startswith("accelerate is not installed. It is for: train, ")
    assert problem.fix == "pip install 'ctxextend[train]'"
    screen = invoke("doctor")
    assert screen.exit_code == 0
    assert "Fix: pip install 'ctxextend[train]'\n" in screen.stdout


def test_doctor_fails_if_a_required_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    has_version(monkeypatch, torch=None)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = doctor()
    assert not found.passed
    assert found.devices == ()
    assert messages(found, "error") == ["ctxextend requires torch>=2.7, which is not installed."]
    done = invoke("doctor", "--json")
    assert done.exit_code == 3
    check(json.loads(done.stdout), "doctor")


def test_doctor_reports_a_library_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_import(name: str) -> Any:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")
        return sys.modules[name]

    monkeypatch.setattr(environment, "import_module", broken_import)
    found = doctor()
    assert state_of(found, "torch") == "broken"
    (message,) = messages(found, "error")
    assert message.startswith(f"torch {version('torch')} cannot be imported: OSError: libcudart")


def test_doctor_reports_devices_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("driver and runtime disagree")

    monkeypatch.setattr(torch.accelerator, "is_available", fail)
    found = doctor()
    assert found.passed
    (message,) = messages(found, "warning")
    assert message == "torch cannot list its devices: RuntimeError: driver and runtime disagree"


def test_doctor_lists_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name = "NVIDIA H100"
        total_memory = 80_000_000_000

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    device = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties)
    assert [one.name for one in doctor().devices] == ["cuda:0", "cuda:1"]
    assert "cuda:1: NVIDIA H100, 80.0 GB\n" in invoke("doctor").stdout


@pytest.mark.parametrize(
    ("versions", "level", "message"),
    [
        (
            {"transformers": "4.57.0"},
            "error",
            "ctxextend requires transformers>=5.23, but 4.57.0 is installed.",
        ),
        (
            {"peft": "0.1"},
            "warning",
            "peft>=0.18 is supported, but 0.1 is installed. It is for: train --lora.",
        ),
    ],
)
def test_doctor_reports_versions_that_are_not_supported(
    versions: dict[str, str], level: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_version(monkeypatch, **versions)
    found = doctor()
    assert message in messages(found, level)
    assert found.passed == (level != "error")


def test_doctor_warns_if_little_space_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOW_SPACE", 10**18)
    warnings = messages(doctor(), "warning")
    assert len(warnings) == 3
    assert "are free for the working directory" in warnings[0]


def test_doctor_says_that_ctxextend_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "requires", missing)
    found = doctor()
    assert found.passed
    assert {library.name for library in found.libraries} >= set(REQUIRED)
    assert "ctxextend is not installed as a package" in messages(found, "warning")[0]


# Without libraries


def run_isolated(path: list[Path], *command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python without its installed packages; only the folders of `path` are searched."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    program = [sys.executable, "-S", "-m", *command]
    return subprocess.run(program, env=variables, capture_output=True, text=True)


def test_doctor_runs_with_only_typer(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    link_distributions(["typer"], packages)
    done = run_isolated([ROOT, packages], "ctxextend", "doctor", "--json")
    assert done.returncode == 3, done.stderr
    values = json.loads(done.stdout)
    check(values, "doctor")
    states = {library["name"]: library["state"] for library in values["libraries"]}
    assert states["typer"] == "ok"
    assert states["torch"] == states["numpy"] == states["pyyaml"] == "missing"


def test_environment_prints_its_json_without_any_library() -> None:
    done = run_isolated([ROOT], "ctxextend.environment")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["passed"] is False
    assert {library["state"] for library in values["libraries"]} == {"missing"}


# Text for an issue


def test_doctor_names_neither_the_user_nor_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "alice"
    scratch = tmp_path / "scratch" / "alice" / "work"
    scratch.mkdir(parents=True)
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text(TOKEN)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub" / TOKEN))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(scratch)
    for text in (invoke("doctor").stdout, invoke("doctor", "--json").stdout):
        assert "alice" not in text
        assert TOKEN not in text
        assert "~/hub/***" in text
        assert "/scratch/USER/work" in text
    assert "present\n" in invoke("doctor").stdout


def test_bug_template_asks_for_the_report() -> None:
    template = ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml"
    labels = [part["attributes"]["label"] for part in yaml.safe_load(template.read_text())["body"]]
    assert "ctxextend doctor" in labels
