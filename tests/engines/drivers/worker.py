"""The loop of every driver: read requests from stdin, run the engine, write answers to stdout.

A request is a line of JSON: {"folder": a checkpoint, "inputs": an .npz file with `input_ids`,
"output": an .npz file to write, "options": settings of the engine}. An answer is one too: {} or
{"error": the message of the engine}. What an engine prints goes to stderr.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# From a folder, token ids of shape (1, length) and options: an array of shape (length, size), and
# notes, such as the context length that the engine states.
Run = Callable[[Path, NDArray[np.int64], Mapping[str, Any]], tuple[NDArray[Any], dict[str, Any]]]


def serve(run: Run) -> None:
    """Answer requests until stdin is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answer = _answer(run, json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(run: Run, request: Mapping[str, Any]) -> dict[str, Any]:
    token_ids = np.load(request["inputs"])["input_ids"]
    try:
        values, notes = run(Path(request["folder"]), token_ids, request["options"])
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    np.savez(request["output"], values=np.asarray(values, dtype=np.float32))
    return {"notes": notes}
