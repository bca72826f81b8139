"""`ctxextend compare` with several methods beside one `evaluate` for each of them.

Each route runs as a whole process, in turn with the others, on a GPT-2 shape that is given 1,024 tokens; weights are
random, which changes neither time nor memory. The first route loads one model, swaps its tables, and lets the original
read once. The last figure is what the first may take at most: the measurements of as many `evaluate --alone` as there
are methods, and the start of one process.

    python -m benchmarks.compare [--rounds 3] [--windows 2] [--methods linear copy ...] [--folder DIR]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import measure, report

AFTER = 1024

MAKE = """
import random, sys
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
import ctxextend
from ctxextend.checkpoints.source import bundled_source
folder, text, to, windows = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
GPT2LMHeadModel(GPT2Config(n_positions=256, n_embd=256, n_layer=4, n_head=4)).save_pretrained(folder)
for name in ("tokenizer.json", "tokenizer_config.json"):
    (folder / name).write_bytes((bundled_source("tiny-gpt2").folder / name).read_bytes())
for method in sys.argv[5:]:
    ctxextend.resize(folder, to=to, method=method, output=f"{folder}-{method}")
random.seed(0)
words = ["return", "the", "object", "of", "a", "new", "list", "is", "value", "file", "if", "name"]
text.write_text(" ".join(random.choice(words) for _ in range(2 * to * (windows + 1))))
"""

START = """
import sys
from ctxextend.evaluation.readers import open_reader
from ctxextend.recipe import Subject
open_reader(Subject(sys.argv[1]))
"""


def routes(source: Path, text: Path, windows: int, methods: list[str]) -> dict[str, list[str]]:
    """The commands to compare; the last two tell what the first should take."""
    program = [sys.executable, "-m", "ctxextend"]
    flags = ["--data", str(text), "--tokens", str(AFTER * windows), "--quiet", "--json"]
    evaluated = [*program, "evaluate", f"{source}-{methods[0]}", *flags]
    return {
        f"compare, {len(methods)} methods": [
            *(*program, "compare", str(source), "--to", str(AFTER), *flags),
            *("--methods", ",".join(methods)),
        ],
        "evaluate, one method": evaluated,
        "evaluate --alone, one method": [*evaluated, "--alone"],
        "start and load": [sys.executable, "-c", START, f"{source}-{methods[0]}"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["linear", "copy", "mirror", "last"])
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        source, text = (Path(temporary) / name for name in ("gpt2-small", "text.txt"))
        counts = [str(AFTER), str(arguments.windows)]
        made = [sys.executable, "-c", MAKE, str(source), str(text), *counts, *arguments.methods]
        subprocess.run(made, check=True, capture_output=True)
        commands = routes(source, text, arguments.windows, arguments.methods)
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                results[name].append(measure(command))
    report(results)
    ours, whole, alone, start = (statistics.median(seconds for seconds, _ in runs) for runs in results.values())
    count = len(arguments.methods)
    most = count * (alone - start) + start
    print(f"\n{count} times `evaluate --alone` and one start: {most:.2f} s; compare takes {ours / most:.2f} of that,")
    print(f"and {ours / (count * whole):.2f} of {count} times `evaluate`.")


if __name__ == "__main__":
    main()
