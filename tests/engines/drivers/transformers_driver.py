"""Run transformers: version 4 in an environment, version 5 as the reference."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tests.engines.drivers.worker import serve


def run(
    folder: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return logits, or else hidden states, in float32."""
    model_class = getattr(transformers, options["auto_class"])
    model, report = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"missing in the file: {', '.join(missing[:3])}")
    inputs = {"input_ids": torch.from_numpy(token_ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        output = model.train(False)(**inputs)
    values = output.logits if "logits" in output else output.last_hidden_state
    return values[0].numpy(), {}


if __name__ == "__main__":
    serve(run)
