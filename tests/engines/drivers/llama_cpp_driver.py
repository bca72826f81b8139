"""Convert a folder to a GGUF file in float32 with llama.cpp's converter, and run it on the CPU.

The tokenizer is left out: token ids are given. The converter is in the sdist of llama-cpp-python,
which is unpacked next to the environment.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines.drivers.worker import serve

SOURCE = Path(sys.prefix).parent / "source"
sys.path[:0] = [str(SOURCE / "gguf-py"), str(SOURCE)]

import gguf  # noqa: E402
import llama_cpp  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

GGML_F32 = 0
LOG_LEVEL_ERROR = 4
# As in llama-server; the Python class has other defaults, which replace what the file states.
FROM_FILE = {
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
}


_errors = list[str]()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, data: object) -> None:
    """Keep errors, since exceptions of the Python package do not say what failed."""
    message = text.decode(errors="replace")
    if level == LOG_LEVEL_ERROR:
        _errors.append(message.strip())
    sys.stderr.write(message)


def run(
    folder: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return logits, or else hidden states.

    Args:
        folder: The model.
        token_ids: Its input, shape (1, length).
        options: ``flags`` are arguments of `llama_cpp.Llama`, those of the flags of llama-server.
            ``gguf`` is a GGUF file to run instead of one that is converted from the folder.
            ``convert_to`` is a GGUF file to write, and then nothing runs.
    """
    if "convert_to" in options:
        convert(folder, Path(options["convert_to"]))
        return np.empty(0), {}
    if "gguf" in options:
        return read(Path(options["gguf"]), token_ids, options)
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "model.gguf")
        convert(folder, path)
        return read(path, token_ids, options)


def read(
    path: Path, token_ids: NDArray[np.int64], options: Mapping[str, Any]
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return what the model of a GGUF file computes, and the length that it states."""
    _errors.clear()
    llama_cpp.llama_log_set(_log, None)
    is_encoder = options["auto_class"] == "AutoModel"
    length = token_ids.shape[1]
    try:
        model = llama_cpp.Llama(
            str(path),
            n_ctx=length,
            n_batch=length,
            n_ubatch=length,
            n_threads=1,
            n_threads_batch=1,
            type_k=GGML_F32,
            type_v=GGML_F32,
            logits_all=True,
            embedding=is_encoder,
            pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE,
            **(FROM_FILE | options.get("flags", {})),
        )
    except ValueError as error:
        raise ValueError(_errors[0] if _errors else str(error)) from error
    notes = {
        "n_ctx_train": model._model.n_ctx_train(),
        "architecture": model.metadata["general.architecture"],
    }
    model._batch.add_sequence(token_ids[0].tolist(), 0, True)
    model._ctx.decode(model._batch)
    if is_encoder:
        values = llama_cpp.llama_get_embeddings(model._ctx.ctx)
        size = model.n_embd()
    else:
        values = llama_cpp.llama_get_logits(model._ctx.ctx)
        size = model.n_vocab()
    found = np.ctypeslib.as_array(values, shape=(length, size)).copy()
    model.close()
    return found, notes


def convert(folder: Path, path: Path) -> None:
    """Write a GGUF file, as convert_hf_to_gguf.py does with --outtype f32."""
    settings = ModelBase.load_hparams(folder, False)
    architecture = get_model_architecture(settings, ModelType.TEXT)
    model_class = get_model_class(architecture)
    model_class.set_vocab = set_no_vocab
    with torch.inference_mode():
        model_class(folder, gguf.LlamaFileType.ALL_F32, path).write()


def set_no_vocab(self: Any) -> None:
    """Write the size of the vocabulary instead of its words."""
    self._set_vocab_none()
    self.vocab_size = self.hparams["vocab_size"]
    for values in self.gguf_writer.kv_data:
        values.pop(gguf.Keys.LLM.VOCAB_SIZE.format(arch=self.gguf_writer.arch), None)
    self.gguf_writer.add_vocab_size(self.vocab_size)
    self.gguf_writer.add_token_type_count(self.hparams.get("type_vocab_size", 1))


if __name__ == "__main__":
    serve(run)
