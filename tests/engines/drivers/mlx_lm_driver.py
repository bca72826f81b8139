"""Run mlx-lm on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from tests.engines.drivers.worker import serve


def run(
    folder: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return logits."""
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    logits = model(mx.array(token_ids))
    return np.array(logits[0].astype(mx.float32)), {}


if __name__ == "__main__":
    serve(run)
