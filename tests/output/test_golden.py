"""Golden test: outputs of every method for every checkpoint form are those of commit 420734f.

Those of `spline`, `zero`, `sinusoidal:scope=all` and `bands` with chosen settings are from the
commits that added or last changed them; the gain in `bands` is the one that commit 420734f chose.
``golden.json`` contains digests of all tensors and files, except weight headers, model cards and
recipes. To regenerate it from any commit::

    git worktree add /tmp/reference 420734f
    PYTHONPATH=/tmp/reference python tests/output/test_golden.py

A new method is not in that commit. Add it to `EXACT`, or to `APPROXIMATE` if its last bits depend
on LAPACK, and run the same command at the commit that adds it: only lines about it must change.

This file imports only `resize` from ctxextend, and no other tests, so that it runs with any commit.
"""

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ctxextend import resize
from tests.helpers.pico import read_json

GOLDEN = Path(__file__).parent / "golden.json"
OLD = 32
NEW = 70
WIDTH = 8
VOCAB = 24
RESERVED = 2
Tensors = dict[str, torch.Tensor]
Values = dict[str, Any]

# Methods whose output is compared bit for bit.
EXACT = (
    "copy",
    "linear",
    "sinusoidal",
    "spline",
    "stretch",
    "hierarchical",
    "last",
    "mean",
    "zero",
    "random",
)
# Methods whose last bits depend on LAPACK; compared within a tolerance relative to the largest
# value.
TOLERANCE = 1e-3
APPROXIMATE = ("bands",)
# One takes another method, the other one continues sinusoids only: they have other tests.
NOT_HERE = ("auto", "formula")
# Arguments of `resize` by name of the request; the names are keys of golden.json.
REQUESTS: dict[str, Values] = {
    **{method: {"to": NEW, "method": method} for method in (*EXACT, *APPROXIMATE)},
    "bands": {"to": NEW, "method": f"bands:gain={1 + 0.2 * np.log2(NEW / OLD)}"},
    "bands, chosen settings": {"to": NEW, "method": "bands"},
    "copy, rows kept": {"to": NEW, "method": "copy", "keep_first": 3},
    "linear, rows kept": {"to": NEW, "method": "linear", "keep_first": 3},
    "sinusoidal, all rows": {"to": NEW, "method": "sinusoidal:scope=all"},
    "spline, degree": {"to": NEW, "method": "spline:degree=2"},
    "zero, all rows": {"to": NEW, "method": "zero:scope=all"},
    "hierarchical, alpha": {"to": NEW, "method": "hierarchical:alpha=0.25"},
    "random, seed": {"to": NEW, "method": "random:seed=7"},
    "bands, own settings": {"to": NEW, "method": "bands:sigma=2,repeat=4:28,gain=1.1"},
    "shorter": {"to": 10},
    "equal": {"to": OLD},
}


def is_approximate(name: str) -> bool:
    method = str(REQUESTS[name].get("method"))
    return method.partition(":")[0] in APPROXIMATE


# ---- checkpoints, built from integers and powers of two so that they are identical on every
# machine


def numbers(name: str, *shape: int) -> torch.Tensor:
    """Return values that depend only on the name: multiples of 1/1024 between -1 and 1."""
    rng = np.random.default_rng(list(name.encode()))
    values = rng.integers(-1024, 1024, shape) / 1024
    return torch.from_numpy(values.astype(np.float32))


def table(name: str, rows: int = OLD, reserved: int = 0) -> torch.Tensor:
    """Return a table like a learned one: slow waves with a little noise, after reserved rows."""
    positions = np.arange(rows)[:, None]
    columns = np.arange(WIDTH)
    angles = positions * 2 * np.pi * (1 + columns // 2) / rows / 2
    is_odd = columns % 2
    waves = np.where(is_odd, np.cos(angles), np.sin(angles)) / 4
    rounded = np.round(waves * 512) / 512
    smooth = torch.from_numpy(rounded.astype(np.float32))
    noise = numbers(name, rows, WIDTH) / 8
    reserved_rows = numbers(f"{name} reserved", reserved, WIDTH)
    return torch.cat([reserved_rows, smooth + noise])


def gpt2_tensors(prefix: str = "transformer.") -> Tensors:
    shapes = {
        "wte.weight": (VOCAB, WIDTH),
        "h.0.attn.c_attn.weight": (WIDTH, 3 * WIDTH),
        "ln_f.bias": (WIDTH,),
    }
    tensors = {f"{prefix}{name}": numbers(name, *shape) for name, shape in shapes.items()}
    mask = torch.ones(OLD, OLD).tril()
    tensors[f"{prefix}h.0.attn.bias"] = mask.view(1, 1, OLD, OLD)
    tensors[f"{prefix}wpe.weight"] = table("wpe")
    return tensors


def bert_tensors(prefix: str, rows: int = OLD, reserved: int = 0) -> Tensors:
    shapes = {"word_embeddings.weight": (VOCAB, WIDTH), "LayerNorm.weight": (WIDTH,)}
    embeddings = f"{prefix}embeddings"
    tensors = {f"{embeddings}.{name}": numbers(name, *shape) for name, shape in shapes.items()}
    tensors[f"{embeddings}.position_ids"] = torch.arange(rows + reserved)[None]
    tensors[f"{embeddings}.position_embeddings.weight"] = table("positions", rows, reserved)
    tensors[f"{prefix}encoder.layer.0.output.dense.weight"] = numbers("dense", WIDTH, WIDTH)
    return tensors


def write_json(path: Path, value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", "utf-8")


def write_config(folder: Path, model_type: str, **values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    length = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
    stated = {
        "model_type": model_type,
        "architectures": None,
        length: OLD,
        "dropout": 0.1,
        "eps": 1e-12,
    }
    write_json(folder / "config.json", stated | values)


def write_tokenizer(folder: Path, **more: Any) -> None:
    """Write the tokenizer and generation files that state a length."""
    settings = {"model_max_length": OLD, "tokenizer_class": "Größe"}
    write_json(folder / "tokenizer_config.json", settings | more)
    padding = {"strategy": {"Fixed": OLD}, "direction": "Right", "pad_id": 0}
    truncation = {"direction": "Right", "max_length": OLD, "strategy": "LongestFirst", "stride": 0}
    content = {
        "version": "1.0",
        "truncation": truncation,
        "padding": padding,
        "model": {"vocab": {"é": 0, "Ġa": 1}},
    }
    write_json(folder / "tokenizer.json", content)
    generation = {"max_length": 20, "transformers_version": "4.0.0"}
    write_json(folder / "generation_config.json", generation)
    (folder / "merges.txt").write_bytes(b"#version: 0.2\n\xc4\xa0 a\n")


def save(tensors: Tensors, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})


def single_file(folder: Path) -> Path:
    write_config(folder, "gpt2", n_embd=WIDTH, n_ctx=OLD)
    write_tokenizer(folder)
    save(gpt2_tensors(), folder / "model.safetensors")
    return folder


def sharded(folder: Path) -> Path:
    write_config(folder, "roberta", max_position_embeddings=OLD + RESERVED, hidden_size=WIDTH)
    write_tokenizer(folder, max_len=OLD)
    tensors = bert_tensors("roberta.", OLD, RESERVED)
    names = list(tensors)
    files = dict[str, str]()
    for number in (1, 2):
        file = f"model-{number:05}-of-00002.safetensors"
        every_other = names[number - 1 :: 2]
        save({name: tensors[name] for name in every_other}, folder / file)
        files |= dict.fromkeys(every_other, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = dict(sorted(files.items()))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)
    return folder


def pytorch_file(folder: Path) -> Path:
    write_config(folder, "gpt2", n_embd=WIDTH)
    write_tokenizer(folder)
    tensors = gpt2_tensors()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def nanogpt(folder: Path) -> Path:
    folder.mkdir()
    shapes = {
        "ln_1.weight": (WIDTH,),
        "attn.c_attn.weight": (3 * WIDTH, WIDTH),
        "attn.c_proj.weight": (WIDTH, WIDTH),
        "ln_2.weight": (WIDTH,),
        "mlp.c_fc.weight": (4 * WIDTH, WIDTH),
        "mlp.c_proj.weight": (WIDTH, 4 * WIDTH),
    }
    embeddings = numbers("words", VOCAB, WIDTH)
    model = {
        "transformer.wte.weight": embeddings,
        "transformer.wpe.weight": table("wpe"),
    }
    for name, shape in shapes.items():
        model[f"transformer.h.0.{name}"] = numbers(name, *shape)
    model["transformer.ln_f.weight"] = numbers("ln_f", WIDTH)
    model["lm_head.weight"] = embeddings
    arguments = {
        "n_layer": 1,
        "n_head": 2,
        "n_embd": WIDTH,
        "block_size": OLD,
        "bias": False,
        "vocab_size": VOCAB,
        "dropout": 0.1,
    }
    content = {
        "model": {f"_orig_mod.{name}": tensor for name, tensor in model.items()},
        "model_args": arguments,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.5),
        "config": arguments,
    }
    torch.save(content, folder / "ckpt.pt")
    return folder


def adapter(folder: Path) -> Path:
    folder.mkdir()
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "owner/base",
        "r": 2,
        "target_modules": ["c_attn"],
        "modules_to_save": ["wpe"],
    }
    write_json(folder / "adapter_config.json", settings)
    write_tokenizer(folder)
    model = "base_model.model.transformer"
    tensors = {
        f"{model}.h.0.attn.c_attn.lora_A.weight": numbers("A", 2, WIDTH),
        f"{model}.h.0.attn.c_attn.lora_B.weight": numbers("B", 2, WIDTH),
        f"{model}.wpe.weight": table("wpe"),
    }
    save(tensors, folder / "adapter_model.safetensors")
    return folder


def sentence_transformer(folder: Path) -> Path:
    inner = folder / "0_Transformer"
    write_config(inner, "bert", hidden_size=WIDTH)
    write_tokenizer(inner)
    write_json(inner / "sentence_bert_config.json", {"max_seq_length": OLD, "do_lower_case": False})
    save(bert_tensors(""), inner / "model.safetensors")
    modules = []
    for number, name in enumerate(("Transformer", "Pooling")):
        module = {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        modules.append(module)
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH})
    return folder


def fp16(folder: Path) -> Path:
    write_config(folder, "bert", hidden_size=WIDTH, torch_dtype="float16")
    write_tokenizer(folder)
    tensors = bert_tensors("bert.")
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = tensor.half()
    save(tensors, folder / "model.fp16.safetensors")
    return folder


def bf16(folder: Path) -> Path:
    write_config(folder, "gpt2", n_embd=WIDTH, torch_dtype="bfloat16")
    write_tokenizer(folder)
    tensors = {name: tensor.bfloat16() for name, tensor in gpt2_tensors("").items()}
    save(tensors, folder / "model.safetensors")
    return folder


# How to create each form of checkpoint, and the flags that it requires.
FORMS: Mapping[str, tuple[Callable[[Path], Path], Values]] = {
    "safetensors": (single_file, {}),
    "shards": (sharded, {}),
    "bin": (pytorch_file, {}),
    "nanogpt": (nanogpt, {}),
    "adapter": (adapter, {"model_type": "gpt2"}),
    "sentence-transformers": (sentence_transformer, {}),
    "fp16": (fp16, {"variant": "fp16"}),
    "bf16": (bf16, {}),
}


# ---- digests of an output


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def read_tensors(path: Path) -> Iterator[tuple[str, str, list[int], bytes]]:
    data = path.read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    start = 8 + header_size
    header = json.loads(data[8:start])
    for name, entry in sorted(header.items()):
        if name == "__metadata__":
            metadata = json.dumps(entry, sort_keys=True)
            yield name, "", [], metadata.encode()
        else:
            first, last = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], data[start + first : start + last]


def observe(folder: Path, *, approximate: bool) -> dict[str, str]:
    """Return a digest of each tensor and file of an output; approximate tables in base64."""
    found = {}
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            for tensor, dtype, shape, data in read_tensors(path):
                key = f"{name} {tensor} {dtype}{shape}".replace(", ", ",")
                found[key] = digest(data)
                is_table = tensor.endswith(("wpe.weight", "position_embeddings.weight"))
                if approximate and is_table:
                    encoded = base64.b64encode(data).decode()
                    found[key] = f"base64:{encoded}"
        elif name not in ("README.md", "ctxextend.yaml"):
            found[name] = digest(path.read_bytes())
    return found


DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def values(observed: str, dtype: str) -> torch.Tensor:
    encoded = observed.removeprefix("base64:")
    data = bytearray(base64.b64decode(encoded))
    return torch.frombuffer(data, dtype=DTYPES[dtype])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("golden")
    return {form: create(folder / form) for form, (create, _) in FORMS.items()}


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_json(GOLDEN)
    return found


@pytest.mark.parametrize("request_", [*REQUESTS, "auto"])
@pytest.mark.parametrize("form", FORMS)
def test_resize_writes_the_golden_bytes(
    form: str, request_: str, sources: dict[str, Path], golden: dict[str, Any], tmp_path: Path
) -> None:
    settings = REQUESTS.get(request_, {"to": NEW, "method": request_})
    _, flags = FORMS[form]
    output = tmp_path / "out"

    resize(sources[form], output=output, **settings, **flags)

    # `auto` chooses another method; only nanoGPT's checkpoints state a class with an LM head here.
    if request_ == "auto":
        request_ = "bands, chosen settings" if form == "nanogpt" else "copy"
    observed = observe(output, approximate=is_approximate(request_))
    length = str(REQUESTS[request_]["to"])
    shared = golden[form]["shared"].get(length, {})
    expected = shared | golden[form][request_]
    tables = [name for name, value in expected.items() if value in golden["tables"]]
    for name in tables:
        dtype = name.split()[-1].partition("[")[0]
        actual = values(observed.pop(name), dtype).float()
        stored = values(golden["tables"][expected.pop(name)], dtype)
        target = stored.float()
        spacing = torch.finfo(stored.dtype).eps  # values can be rounded the other direction
        largest = float(target.abs().max())
        limit = largest * max(TOLERANCE, spacing)
        torch.testing.assert_close(actual, target, atol=limit, rtol=0)
    assert observed == expected


Observed = dict[str, str]  # digest by tensor or file


def observe_requests(source: Path, flags: Values, folder: Path) -> dict[str, Observed]:
    """Return what every request writes for a source."""
    found = {}
    for number, (request, settings) in enumerate(REQUESTS.items()):
        output = folder / str(number)
        resize(source, output=output, **settings, **flags)
        found[request] = observe(output, approximate=is_approximate(request))
    return found


def move_tables(observed: Observed, tables: Observed) -> None:
    """Replace the approximate tables by keys of `tables`, where they are stored once."""
    for name, value in observed.items():
        if value.startswith("base64:"):
            key = f"table {digest(value.encode())}"
            observed[name] = key
            tables[key] = value


def find_shared(found: Mapping[str, Observed]) -> dict[str, Observed]:
    """Return what all requests of a length write, by length."""
    shared = {}
    for length in {settings["to"] for settings in REQUESTS.values()}:
        same = [found[request] for request in REQUESTS if REQUESTS[request]["to"] == length]
        if len(same) > 1:
            first, *others = [set(observed.items()) for observed in same]
            shared[str(length)] = dict(first.intersection(*others))
    return shared


def test_golden_has_every_method() -> None:
    from ctxextend import list_methods

    names = {method.name for method in list_methods()}
    missing = names - {*EXACT, *APPROXIMATE, *NOT_HERE}
    steps = "Add it to EXACT, and regenerate golden.json as the top of this file says."
    assert not missing, f"{', '.join(missing)}: {steps}"


def main() -> None:
    """Write golden.json with the imported ctxextend."""
    written: dict[str, Any] = {}
    tables: Observed = {}
    for form, (create, flags) in FORMS.items():
        with tempfile.TemporaryDirectory() as name:
            source = create(Path(name) / form)
            found = observe_requests(source, flags, Path(name))
        for observed in found.values():
            move_tables(observed, tables)

        shared = find_shared(found)
        written[form] = {"shared": shared}
        for request, observed in found.items():
            length = str(REQUESTS[request]["to"])
            common = shared.get(length, {})
            rest = {key: value for key, value in observed.items() if key not in common}
            written[form][request] = rest
    written["tables"] = tables
    text = json.dumps(written, indent=1, sort_keys=True)
    GOLDEN.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
