"""A training by two processes beside the same by one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainings import invoke, log_of, make_long
from tests.words import text_of

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def test_train_by_two_processes_gives_the_losses_of_one(tmp_path: Path) -> None:
    documents = [json.dumps({"text": text_of([(start + step) % 27 for step in range(20)])}) for start in range(100)]
    Path("book.jsonl").write_text("\n".join(documents))
    source = make_long(tmp_path / "long", "gpt2")
    asked = ["train", str(source), "--data", "book.jsonl", "--steps", "4", "--batch-size", "4", "--trainable", "all"]
    assert invoke(*asked, "-o", "one").exit_code == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ctxextend"]
    for _ in range(2):  # such processes can fail at exit, with everything written
        done = subprocess.run(
            [*launch, *asked, "-o", "two"], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        if Path("two").exists():
            break
    assert done.stdout == "two\n", done.stderr
    assert "2 at once on 2 devices" in done.stderr
    assert done.stderr.count("held-out loss") == 1
    one, two = log_of(Path("one")), log_of(Path("two"))
    for line, other in zip(one, two, strict=True):
        assert line == pytest.approx(other, abs=1e-5)
    weights = [load_file(f"{name}/model.safetensors") for name in ("one", "two")]
    for name in ("transformer.wpe.weight", "transformer.wte.weight"):
        torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-5, rtol=0)
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["book.jsonl", "one", "two"]
