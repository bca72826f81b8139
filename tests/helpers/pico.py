"""Checkpoints with a few thousand parameters, built by transformers."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

from ctxextend.tables.methods import METHODS

WIDTH = 8

ENCODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "vocab_size": 32},
    "bert": {"max_position_embeddings": 16, "vocab_size": 32, **ENCODER},
    "roberta": {"max_position_embeddings": 18, "vocab_size": 32, **ENCODER},
}

HEADS = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM"}
BASES = {"gpt2": "GPT2Model", "bert": "BertModel", "roberta": "RobertaModel"}

BUILT = tempfile.TemporaryDirectory()

# `formula` applies only to tables of sinusoids.
LEARNED_METHODS = [name for name in METHODS if name != "formula"]

# Files that are not copied: weights and exports that are not rewritten, training state, desktop
# metadata.
STALE = (
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "rust_model.ot",
    "model.onnx",
    "onnx/model.onnx",
    "onnx/quantized/model.onnx",
    "openvino/openvino_model.xml",
    "x.tflite",
    "coreml/text/model.mlpackage",
    "x.gguf",
    "M.GGUF",
    "exports/model.onnx",
    "quantized/m.Q4.gguf",
    "unity/model.tflite",
    "model.fp16.safetensors",
    "optimizer.pt",
    "checkpoint-500/model.safetensors",
    "1_Pooling/.DS_Store",
)


def resize_settings(method: str) -> dict[str, Any]:
    """Return the settings for a method; `stretch` keeps fewer rows than by default."""
    return {"method": method} | (
        {"keep_first": 5} if METHODS[method.partition(":")[0]].keep_first else {}
    )


@dataclass(frozen=True)
class Pico:
    """A checkpoint on disk and its model class."""

    folder: Path
    model_class: Any

    def load(self, folder: Path | None = None, **options: Any) -> Any:
        """Load it, and check that no key is missing, unexpected or mismatched."""
        model, report = self.model_class.from_pretrained(
            folder or self.folder, output_loading_info=True, **options
        )
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            assert not report.get(kind), (kind, report[kind])
        return model.train(False)


def make(
    folder: Path, model_type: str, *, base: bool = False, dtype: Any = torch.float32, **changes: Any
) -> Pico:
    """Save a model with random weights, which is built once per process."""
    model_class = getattr(transformers, (BASES if base else HEADS)[model_type])
    name = repr((model_type, base, dtype, sorted(changes.items())))
    built = Path(BUILT.name, hashlib.sha256(name.encode()).hexdigest())
    if not built.exists():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(model_type, **(CONFIGS[model_type] | changes))
        model_class(config).to(dtype).save_pretrained(built)
    shutil.copytree(built, folder, dirs_exist_ok=True)
    torch.manual_seed(0)  # what a test draws next does not depend on the tests before it
    return Pico(folder, model_class)


def make_bart(folder: Path, length: int = 16) -> Path:
    """Save a model whose encoder and decoder each have a table with two reserved rows."""
    torch.manual_seed(0)
    layers: dict[str, Any] = {
        f"{part}_{key}": 2
        for part in ("encoder", "decoder")
        for key in ("layers", "attention_heads")
    }
    config = transformers.BartConfig(
        max_position_embeddings=length,
        d_model=WIDTH,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        vocab_size=32,
        **layers,
    )
    transformers.BartModel(config).save_pretrained(folder)
    return folder


def make_led(folder: Path, encoder: int = 32, decoder: int = 16) -> Path:
    """Save a model with random weights and two tables with separate length keys."""
    layers: dict[str, Any] = {
        f"{part}_{key}": 2
        for part in ("encoder", "decoder")
        for key in ("layers", "attention_heads")
    }
    lengths: dict[str, Any] = {
        "max_encoder_position_embeddings": encoder,
        "max_decoder_position_embeddings": decoder,
    }
    sizes: dict[str, Any] = {
        "d_model": WIDTH,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "vocab_size": 32,
    }
    config = transformers.LEDConfig(attention_window=4, **sizes, **layers, **lengths)
    transformers.LEDModel(config).save_pretrained(folder)
    return folder


def make_siglip(folder: Path, model_type: str = "siglip") -> Path:
    """Save a dual encoder with random weights, whose text model pools the last position."""
    torch.manual_seed(0)
    images = {"image_size": 8} if model_type == "siglip" else {"num_patches": 4}
    text = {
        "vocab_size": 32,
        "max_position_embeddings": 16,
        "projection_size": WIDTH,
        "pad_token_id": 0,
        **ENCODER,
    }
    config = transformers.AutoConfig.for_model(
        model_type, text_config=text, vision_config={"patch_size": 4, **images, **ENCODER}
    )
    transformers.AutoModel.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def make_bros(folder: Path) -> Path:
    """Save a model with a persistent position buffer, embeddings.position_ids."""
    transformers.BrosModel(transformers.BrosConfig(**CONFIGS["bert"])).save_pretrained(folder)
    return folder


def shard(folder: Path, max_shard_size: str = "2KB") -> list[str]:
    """Save a checkpoint again in shards, with an index; return their names."""
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return sorted(set(index["weight_map"].values()))


def add_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Add tensors to a checkpoint's only weights file, as in old versions of transformers."""
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def nest_in_module(folder: Path, root: Path) -> Path:
    """Move a checkpoint into 0_Transformer of a sentence-transformers folder, and return it."""
    root.mkdir()
    folder.rename(root / "0_Transformer")
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "0_Transformer",
            "type": "sentence_transformers.models.Transformer",
        },
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    return root


def read_json(path: str | Path) -> Any:
    """Return the value of a JSON file."""
    return json.loads(Path(path).read_text())


def config_of(folder: str | Path) -> Any:
    """Return the keys of a folder's config.json."""
    return read_json(Path(folder, "config.json"))


def recipe_of(folder: str | Path) -> Any:
    """Return the keys of a folder's ctxextend.yaml."""
    return yaml.safe_load(Path(folder, "ctxextend.yaml").read_text())


def write_json(path: str | Path, value: object) -> None:
    """Write a JSON file."""
    Path(path).write_text(json.dumps(value))


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None deletes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values |= changes
    path.write_text(
        json.dumps({key: value for key, value in values.items() if value is not None}, indent=2)
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def tensor_bytes(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of every tensor of a checkpoint, read without ctxextend."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in entry["data_offsets"])
                found[name] = (entry["dtype"], tuple(entry["shape"]), data[start:end])
    return found


def realign(model: Any) -> Any:
    """Copy parameters to new contiguous memory: alignment affects the last bits on some CPUs."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model


def logits(model: Any, length: int) -> torch.Tensor:
    """Return a model's output for a fixed input of `length` tokens without padding."""
    tokens = 5 + torch.arange(length).unsqueeze(0) % 20
    with torch.no_grad():
        output = model(input_ids=tokens)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found
