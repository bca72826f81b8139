"""The virtual environment of each engine, in build/engines, made once."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.helpers import repository

ROOT = repository.ROOT / "build" / "engines"
STAMP = "requirements.txt"  # written last


class Engine(NamedTuple):
    """An engine, its environment, and how closely it must agree with transformers."""

    name: str
    runtime: str  # its key in `ctxextend.runtimes`
    requirements: tuple[str, ...]  # of pip
    driver: str  # a module of `tests.engines.drivers`
    # The largest difference of logits, whose standard deviation is 1, that rounding may cause.
    tolerance: float
    environment: str = ""  # name of the folder; empty: that of the engine
    sdist: str = ""  # a requirement whose sdist is unpacked in the folder `source`
    is_slow: bool = False  # whether making its environment takes minutes


TORCH = "torch==2.13.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"
TRANSFORMERS_4 = "transformers==4.57.6"
CONVERTING = (TRANSFORMERS_4, TORCH, "ctranslate2==4.8.5", "sentencepiece==0.2.3")

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="mlx_lm",
            runtime="mlx",
            requirements=("mlx[cpu]==0.32.4", "mlx-lm==0.32.2"),
            driver="mlx_lm_driver",
            tolerance=5e-3,
        ),
        Engine(
            name="transformers4",
            runtime="transformers4",
            requirements=CONVERTING,
            driver="transformers_driver",
            tolerance=5e-3,
        ),
        Engine(
            name="ctranslate2",
            runtime="ctranslate2",
            requirements=CONVERTING,
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
                "sentencepiece==0.2.3",
            ),
            driver="onnx_driver",
            tolerance=5e-3,
            is_slow=True,
        ),
        Engine(
            name="openvino",
            runtime="openvino",
            requirements=("optimum-intel==2.2.0", TORCH, "sentencepiece==0.2.3"),
            driver="openvino_driver",
            tolerance=5e-3,
            is_slow=True,
        ),
        Engine(
            name="llama_cpp",
            runtime="llama.cpp",
            requirements=(LLAMA_CPP, TRANSFORMERS_4, TORCH, "sentencepiece==0.2.3"),
            driver="llama_cpp_driver",
            tolerance=2e-2,
            sdist=LLAMA_CPP,
            is_slow=True,
        ),
    )
}

REQUIREMENTS = Path(__file__).parent / "requirements"
# Engines whose code for lengths and frequencies runs without a GPU, and no other code of them.
SERVING_ENGINES: Mapping[str, Engine] = {
    name: Engine(
        name=name,
        runtime=name,
        requirements=("--no-deps", "--requirement", str(REQUIREMENTS / f"{name}.txt")),
        driver=f"{name}_driver.py",
        tolerance=1e-4,
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
        subprocess.CalledProcessError: pip failed.
    """
    folder = ROOT / (engine.environment or engine.name)
    python = folder / "venv" / "bin" / "python"
    stamp = folder / STAMP
    wanted = "\n".join(engine.requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *engine.requirements], check=True)
    stamp.write_text(wanted)
    return python
