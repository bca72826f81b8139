"""Export a folder with optimum-intel, and run it in OpenVINO on the CPU in float32."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from optimum.exporters.openvino import main_export

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
        main_export(str(folder), temporary, task=TASKS[options["auto_class"]], stateful=False)
        core = openvino.Core()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
        model = core.compile_model(str(Path(temporary, "openvino_model.xml")), "CPU", settings)
        length = token_ids.shape[1]
        given = {
            "input_ids": token_ids,
            "decoder_input_ids": token_ids,
            "attention_mask": np.ones_like(token_ids),
            "position_ids": np.arange(length, dtype=np.int64)[None],
            "token_type_ids": np.zeros_like(token_ids),
        }
        inputs = {item.get_any_name(): given[item.get_any_name()] for item in model.inputs}
        outputs = model(inputs)
        return outputs[0][0], {}


if __name__ == "__main__":
    serve(run)
