"""Measure the peak memory of training runs, and compare it with the estimate of `train --dry-run`.

    python -m benchmarks.training_memory [--only NAME ...] [--folder DIR]

Writes `benchmarks/results/training_memory.json`, in bytes, and `.md`; runs not named in --only keep
their rows. Weights and text are random, which does not affect memory. A run has two steps: AdamW's
moments exist after the first. It takes 1.5 hours on one core, most of it for the two runs in
bfloat16, which a CPU may lack.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import CTXEXTEND, measure, measure_json, python

__all__ = ["CASES", "RESULTS", "Case", "page", "run_case"]

RESULTS = Path(__file__).parent / "results" / "training_memory"
TITLE = """# Memory of training

Peak memory of a process on a CPU (Linux, x86-64, torch 2.13, one thread), and the estimate of
`train --dry-run`, in MB. Written by `python -m benchmarks.training_memory`. With two devices, two
processes share the work (gloo).

"""
HEADER = """| model | positions | flags | devices | sequences per step and device \
| estimated | measured | ratio |
|---|---:|---|---:|---:|---:|---:|---:|
"""

# Arguments: folder, model type, dtype, and the config as JSON.
CREATE = """
import json, sys, torch, transformers
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, processors
folder = Path(sys.argv[1])
model_type = sys.argv[2]
dtype = getattr(torch, sys.argv[3])
config = transformers.AutoConfig.for_model(model_type, **json.loads(sys.argv[4]))
is_masked = model_type in transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
auto = transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
auto.from_config(config).to(dtype).save_pretrained(folder)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(1000))]
vocabulary = {word: number for number, word in enumerate(words)}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
if is_masked:
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ids
    )
    names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
"""

# Shapes of GPT-2 small, BERT base, and SmolLM-135M with fewer layers.
GPT2 = {"n_positions": 1024}
LONG_GPT2 = {"n_positions": 4096}
BERT = {"max_position_embeddings": 512}
LLAMA = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Case:
    """A training run."""

    model_type: str
    config: dict[str, Any]
    flags: tuple[str, ...]
    per_device_batch_size: int = 1
    dtype: str = "float32"
    devices: int = 1
    accumulated: int = 1  # micro-batches per step

    @property
    def length(self) -> int:
        """The number of positions."""
        length: int = self.config.get("n_positions") or self.config["max_position_embeddings"]
        return length

    @property
    def layers(self) -> int:
        """The number of layers, by default that of GPT-2 small and BERT base."""
        layers: int = self.config.get("n_layer") or self.config.get("num_hidden_layers", 12)
        return layers


ALL = ("--trainable", "all")
POSITIONS = ("--trainable", "positions")
ALL_BF16 = (*ALL, "--precision", "bf16")
POSITIONS_BF16 = (*POSITIONS, "--precision", "bf16")
SHORT_GPT2 = {"n_layer": 4, "n_positions": 512}
CASES = {
    "gpt2-1024-positions-1": Case("gpt2", GPT2, POSITIONS),
    "gpt2-1024-positions-4": Case("gpt2", GPT2, POSITIONS, 4),
    "gpt2-4096-positions-1": Case("gpt2", LONG_GPT2, POSITIONS),
    "gpt2-1024-all-1": Case("gpt2", GPT2, ALL),
    "gpt2-4096-all-1": Case("gpt2", LONG_GPT2, ALL),
    "gpt2-1024-all-1-ddp": Case("gpt2", GPT2, ALL, devices=2),
    "gpt2-1024-all-1-fsdp": Case("gpt2", GPT2, (*ALL, "--fsdp"), devices=2),
    "bert-512-positions-4": Case("bert", BERT, POSITIONS, 4),
    "bert-512-all-1": Case("bert", BERT, ALL),
    "gpt2-4-layers-all-1": Case("gpt2", SHORT_GPT2, ALL),
    "gpt2-4-layers-all-1-accumulated": Case("gpt2", SHORT_GPT2, ALL, accumulated=2),
    "gpt2-4-layers-all-1-bf16": Case("gpt2", SHORT_GPT2, ALL_BF16, dtype="bfloat16"),
    "gpt2-4-layers-positions-1-bf16": Case("gpt2", SHORT_GPT2, POSITIONS_BF16, dtype="bfloat16"),
    "gpt2-4-layers-all-1-ddp": Case("gpt2", SHORT_GPT2, ALL, devices=2),
    "gpt2-4-layers-all-1-fsdp": Case("gpt2", SHORT_GPT2, (*ALL, "--fsdp"), devices=2),
    "gpt2-4-layers-positions-1-fsdp": Case("gpt2", SHORT_GPT2, (*POSITIONS, "--fsdp"), devices=2),
    "gpt2-4-layers-window-128-all-4": Case("gpt2", SHORT_GPT2, (*ALL, "--window", "128"), 4),
    "llama-512-all-1": Case("llama", LLAMA, ALL),
}


def run_case(case: Case, folder: Path) -> dict[str, int]:
    """Create a checkpoint, estimate the peak memory of a process that trains it, and measure it, in
    bytes.
    """
    config = json.dumps(case.config)
    measure(python(CREATE, folder / "model", case.model_type, case.dtype, config))
    draw = random.Random(0)
    write_words(folder / "text.txt", 8 * case.length, draw)
    write_words(folder / "held-out.txt", 2 * case.length, draw)
    arguments = train_arguments(case, folder)

    _, plan = measure_json([*CTXEXTEND, *arguments, "--dry-run"])
    memory = next(memory for memory in plan["memory"] if memory["devices"] == case.devices)
    estimated = memory["bytes"]
    if "--fsdp" in case.flags:
        estimated = memory["fsdp_bytes"]

    command: Sequence[object] = CTXEXTEND
    if case.devices > 1:
        launcher = (sys.executable, "-m", "torch.distributed.run")
        command = (*launcher, "--nproc-per-node", case.devices, "-m", "ctxextend")
    _, result = measure_json([*command, *arguments])
    return {"estimated": estimated, "measured": result["peak_bytes"]}


def write_words(path: Path, count: int, draw: random.Random) -> None:
    """Write random words, each a token."""
    words = [f"w{draw.randrange(1000)}" for _ in range(count)]
    path.write_text(" ".join(words))


def train_arguments(case: Case, folder: Path) -> list[object]:
    """Return the arguments of `train` for a run of two steps."""
    batch_size = case.per_device_batch_size * case.devices * case.accumulated
    arguments: list[object] = ["train", folder / "model", *case.flags, "--json"]
    arguments += ["--output", folder / "trained"]
    arguments += ["--data", folder / "text.txt"]
    arguments += ["--eval-data", folder / "held-out.txt"]
    arguments += ["--steps", 2]
    arguments += ["--eval-every", 2]
    arguments += ["--save-every", 2]
    arguments += ["--batch-size", batch_size]
    arguments += ["--per-device-batch-size", case.per_device_batch_size]
    return arguments


def page(rows: dict[str, dict[str, int]]) -> str:
    """Return a page with a line for each run."""
    lines: list[str] = []
    for name, row in rows.items():
        case = CASES[name]
        estimated = row["estimated"]
        measured = row["measured"]
        cells = [
            f"{case.model_type}, {case.layers} layers, {case.dtype}",
            f"{case.length}",
            f"`{' '.join(case.flags)}`",
            f"{case.devices}",
            f"{case.per_device_batch_size * case.accumulated}",
            f"{estimated / 1e6:,.0f}",
            f"{measured / 1e6:,.0f}",
            f"{estimated / measured:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return f"{TITLE}{HEADER}{''.join(lines)}"


def main() -> None:
    """Measure the chosen runs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build"),
        metavar="DIR",
        help="folder for temporary files",
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    data = RESULTS.with_suffix(".json")
    rows = {}
    if data.exists():
        rows = json.loads(data.read_text())
    for name in arguments.only:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder)).resolve()
        try:
            rows[name] = run_case(CASES[name], folder)
        finally:
            shutil.rmtree(folder)
        print(name, rows[name], file=sys.stderr, flush=True)
        rows = {name: rows[name] for name in CASES if name in rows}
        data.write_text(json.dumps(rows, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
