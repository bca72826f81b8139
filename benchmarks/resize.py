"""`ctxextend resize` beside what a user would run instead, on a GPT-2-small-sized checkpoint of 498 MB.

Each route runs as a whole process, in turn with the others, and what it wrote is deleted before the next begins.
Reported are medians of wall time and of peak resident memory, and ratios to ctxextend.

    python -m benchmarks.resize [--rounds 5] [--folder DIR]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import measure, report

TRANSFORMERS_ROUTE = """
import sys, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1])
old, rows = model.transformer.wpe.weight.data, 4096
new = torch.nn.Embedding(rows, old.shape[1])
new.weight.data[:] = torch.nn.functional.interpolate(
    old.T.unsqueeze(0), size=rows, mode="linear", align_corners=True)[0].T
model.transformer.wpe = new
model.config.n_positions = rows
model.save_pretrained(sys.argv[2])
"""

MAKE = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config()).save_pretrained(sys.argv[1])
"""


def routes(source: Path, output: Path) -> dict[str, list[str]]:
    """The commands to compare, the first being ours."""
    ctxextend = [sys.executable, "-m", "ctxextend", "resize", str(source), "--to", "4096", "--quiet"]
    return {
        "ctxextend, linear": [*ctxextend, "--method", "linear", "-o", str(output)],
        "ctxextend, copy": [*ctxextend, "-o", str(output)],
        "transformers": [sys.executable, "-c", TRANSFORMERS_ROUTE, str(source), str(output)],
        "cp -r": ["cp", "-r", str(source), str(output)],
        "cp -r && sync": ["sh", "-c", f"cp -r '{source}' '{output}' && sync -f '{output}'"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        source, output = Path(temporary) / "gpt2-small", Path(temporary) / "out"
        subprocess.run([sys.executable, "-c", MAKE, str(source)], check=True, capture_output=True)
        commands = routes(source, output)
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                os.sync()
                results[name].append(measure(command))
                shutil.rmtree(output)
    report(results)


if __name__ == "__main__":
    main()
