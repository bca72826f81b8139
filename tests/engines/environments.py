"""The virtual environment of each engine, in build/engines, made once.

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
TRANSFORMERS_4 = "transformers==4.57.6"
CTRANSLATE2 = "ctranslate2==4.8.5"
LLAMA_CPP = "llama-cpp-python==0.3.36"
# Of which only this is unpacked: the converter, and the library that writes GGUF files.
CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")


class Engine(NamedTuple):
    """An engine, its environment, and how closely it must agree with transformers."""

    name: str
    runtime: str  # its key in `ctxextend.runtimes`
    # Of pip; the first one is that of the engine.
    requirements: tuple[str, ...]
    driver: str  # a module of `tests.engines.drivers`
    # The largest difference of values, whose standard deviation is about 1, that rounding and
    # approximations of activations may cause.
    tolerance: float
    environment: str = ""  # name of its folder; empty: that of the engine
    sdist: str = ""  # the requirement of an sdist, whose `CONVERTER` is unpacked next to it
    removed: tuple[str, ...] = ()  # requirements of requirements that are not needed
    is_slow: bool = False  # whether making its environment takes minutes

    @property
    def version(self) -> str:
        """The version of the engine."""
        _, _, version = self.requirements[0].partition("==")
        return version


_ENGINES = (
    Engine(
        name="mlx_lm",
        runtime="mlx",
        requirements=("mlx-lm==0.32.2", "mlx[cpu]==0.32.4"),
        driver="mlx_lm_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="transformers4",
        runtime="transformers4",
        requirements=(TRANSFORMERS_4, TORCH, CTRANSLATE2, SENTENCEPIECE),
        driver="transformers_driver",
        tolerance=5e-3,
    ),
    Engine(
        name="ctranslate2",
        runtime="ctranslate2",
        requirements=(CTRANSLATE2, TRANSFORMERS_4, TORCH, SENTENCEPIECE),
        driver="ctranslate2_driver",
        environment="transformers4",
        tolerance=5e-3,
    ),
    Engine(
        name="onnx",
        runtime="onnx",
        requirements=(
            "optimum-onnx[onnxruntime]==0.1.0",
            "onnxruntime==1.32.0",
            TRANSFORMERS_4,
            TORCH,
            SENTENCEPIECE,
        ),
        driver="onnx_driver",
        tolerance=5e-3,
        is_slow=True,
    ),
    Engine(
        name="openvino",
        runtime="openvino",
        requirements=(
            "optimum-intel==2.2.0",
            "openvino==2026.4.1",
            "transformers==5.5.4",
            TORCH,
            SENTENCEPIECE,
        ),
        driver="openvino_driver",
        removed=("torchvision",),  # the one that pip finds needs a CUDA build of torch
        tolerance=5e-3,
        is_slow=True,
    ),
    Engine(
        name="llama_cpp",
        runtime="llama.cpp",
        requirements=(LLAMA_CPP, TRANSFORMERS_4, TORCH, SENTENCEPIECE),
        driver="llama_cpp_driver",
        sdist=LLAMA_CPP,
        tolerance=3e-2,  # it reads activations from tables in half precision
        is_slow=True,
    ),
)
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in _ENGINES}

REQUIREMENTS = "tests/engines/requirements"  # in the repository, where pip runs
# Engines whose code for lengths and frequencies runs without a GPU, and no other code of them.
SERVING_ENGINES: Mapping[str, Engine] = {
    name: Engine(
        name=name,
        runtime=name,
        requirements=("--no-deps", "--requirement", f"{REQUIREMENTS}/{name}.txt"),
        driver=f"{name}_driver.py",
        tolerance=1e-3,
        is_slow=True,
    )
    for name in ("vllm", "sglang")
}


def is_selected(engine: Engine, selection: str) -> bool:
    """Whether an engine is one of those to run: names, ``fast`` ones or ``all`` of them."""
    names = selection.split()
    is_fast = "fast" in names and not engine.is_slow
    return is_fast or "all" in names or engine.name in names


def python_of(engine: Engine) -> Path:
    """Return the Python of an engine's environment, which is made if it is missing.

    Raises:
        FileExistsError: There is one with other requirements, or an incomplete one.
        subprocess.CalledProcessError: pip failed.
    """
    folder = ROOT / (engine.environment or engine.name)
    python = folder / "venv" / "bin" / "python"
    fingerprint = folder / FINGERPRINT
    wanted = "\n".join(sorted(engine.requirements))
    if fingerprint.exists() and fingerprint.read_text() == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    if python.exists():
        message = f"{folder} is of other requirements: remove it."
        raise FileExistsError(message)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = (str(python), "-m", "pip", "--quiet")
    requirements = list(engine.requirements)
    if engine.sdist:
        archive = _download_sdist(pip, engine.sdist, folder)
        _unpack_converter(archive, folder / "source")
        requirements[requirements.index(engine.sdist)] = str(archive)
    building = os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    subprocess.run(
        [*pip, "install", "--no-compile", *requirements],
        check=True,
        env=building,
        cwd=repository.ROOT,
    )
    if engine.removed:
        subprocess.run([*pip, "uninstall", "--yes", *engine.removed], check=True)
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
