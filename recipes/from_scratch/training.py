"""The training loop of the scripts in this folder, and its log as a table for the model card."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Log = list[dict[str, float]]
FRONT_MATTER = """\
---
license: other
license_name: psf-2.0
language: en
library_name: transformers
pipeline_tag: {task}
tags: [{model_type}, ctxextend]
---
"""


def optimize(
    model: torch.nn.Module,
    training_loss: Callable[[int], torch.Tensor],
    held_out_loss: Callable[[], float],
    steps: int,
    learning_rate: float,
) -> Log:
    """Train with AdamW on `training_loss(step)`; return and print ten log entries."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.1
    )
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, steps))
    log = []
    running = 0.0
    every = max(1, steps // 10)
    for step in range(1, steps + 1):
        loss = training_loss(step)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
        running += loss.item()
        if step % every == 0:
            log.append({"step": step, "loss": running / every, "held_out_loss": held_out_loss()})
            running = 0.0
            print(json.dumps(log[-1]), flush=True)
    return log


def arguments(
    description: str | None,
    steps: int,
    add_flags: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """Parse the output folder, the number of steps and the script's own flags."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    add_flags(parser)
    return parser.parse_args()


def save(
    output: Path, model: Any, tokenizer: Any, card: str, task: str = "text-generation"
) -> None:
    """Save a model, its tokenizer and its model card, without front matter, to a folder."""
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    front_matter = FRONT_MATTER.format(task=task, model_type=model.config.model_type)
    (output / "README.md").write_text(front_matter + card, "utf-8")


def lr_factor(step: int, steps: int) -> float:
    """Return the learning rate factor at a step: linear warm-up over the first twentieth, then
    cosine decay.
    """
    warm_up = (step + 1) / max(1, steps // 20)
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(warm_up, 0.02 + 0.98 * cosine)


def table(log: Log) -> str:
    """Return the log as a Markdown table."""
    lines = [
        "| step | training loss | held-out loss | held-out perplexity |",
        "|---:|---:|---:|---:|",
    ]
    for row in log:
        held_out = row["held_out_loss"]
        lines.append(
            f"| {row['step']:.0f} | {row['loss']:.3f} | {held_out:.3f} | {math.exp(held_out):.2f} |"
        )
    return "\n".join(lines)
