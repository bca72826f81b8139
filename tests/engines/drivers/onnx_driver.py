"""Export a folder with optimum-onnx, and run it in ONNX Runtime on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from optimum.exporters.onnx import main_export

from tests.engines.drivers.worker import serve

# Tasks of optimum, by the class that loads the model in transformers.
TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSeq2SeqLM": "text2text-generation",
}


def run(
    folder: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return logits, or else hidden states."""
    with TemporaryDirectory() as temporary:
        main_export(str(folder), temporary, task=TASKS[options["auto_class"]], do_validation=False)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(Path(temporary, "model.onnx")), settings, providers=["CPUExecutionProvider"]
        )
        length = token_ids.shape[1]
        given = {
            "input_ids": token_ids,
            "decoder_input_ids": token_ids,
            "attention_mask": np.ones_like(token_ids),
            "position_ids": np.arange(length, dtype=np.int64)[None],
            "token_type_ids": np.zeros_like(token_ids),
        }
        inputs = {item.name: given[item.name] for item in session.get_inputs()}
        outputs = session.run(None, inputs)
        return outputs[0][0], {}


if __name__ == "__main__":
    serve(run)
