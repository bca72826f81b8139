"""Convert a folder with CTranslate2's converter, and run it on the CPU in float32."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter
from numpy.typing import NDArray

from tests.engines.drivers.worker import serve


def run(
    folder: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return logits, or else hidden states."""
    with TemporaryDirectory() as temporary:
        converted = str(Path(temporary, "converted"))
        TransformersConverter(str(folder)).convert(converted)
        settings = {"device": "cpu", "compute_type": "float32", "intra_threads": 1}
        inputs = token_ids.tolist()
        if options["auto_class"] == "AutoModel":
            encoder = ctranslate2.Encoder(converted, **settings)
            output = encoder.forward_batch(inputs).last_hidden_state
        else:
            generator = ctranslate2.Generator(converted, **settings)
            output = generator.forward_batch(inputs)
        return np.array(output)[0], {}


if __name__ == "__main__":
    serve(run)
