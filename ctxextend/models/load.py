"""Load checkpoints with transformers and run them; torch is imported on first use."""

import copy
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.features import LOAD
from ctxextend.checkpoint.filenames import first_weights
from ctxextend.checkpoint.safetensors_file import DTYPES
from ctxextend.checkpoint.source import IRREGULAR, LINKED, OUTSIDE, dereference_hint
from ctxextend.errors import CheckpointError, one_line
from ctxextend.models.extend import to_tensor

if TYPE_CHECKING:
    import torch

MAX_LAYERS_OR_LABELS = 100_000  # config classes make a list of them
FIRST_TRIAL_TOKEN = 100  # at most; a small vocabulary has no such id
# Names of inputs, by preference.
TOKEN_INPUTS = (("input_ids",), ("input_ids", "decoder_input_ids"), ("inputs",))


@dataclass(frozen=True)
class LoadingInfo:
    """Tensors of a checkpoint that do not fit a model: their names, as transformers tells them."""

    missing: tuple[str, ...]  # in the model only
    unexpected: tuple[str, ...]  # in the checkpoint only
    mismatched: tuple[str, ...]  # with different shapes


class MoreThanTextError(Exception):
    """A model does not run on token ids only; the message says why."""


def check_loadable(checkpoint: Checkpoint) -> None:
    """Check that transformers can safely load a checkpoint by itself.

    Raises:
        CheckpointError: It cannot.
    """
    for name, reason in checkpoint.omitted.items():
        if reason in (OUTSIDE, LINKED, IRREGULAR):
            message = f"{checkpoint.root / name} is {reason}, and transformers might open it."
            if reason == IRREGULAR:
                raise CheckpointError(message, "Remove it, or replace it with a file.")
            raise CheckpointError(message, dereference_hint(checkpoint.root))
    checkpoint.check(LOAD)


def load(
    checkpoint: Checkpoint,
    model_class: str | None,
    dtype: str = "float32",
) -> tuple[Any, LoadingInfo]:
    """Load a checkpoint with transformers, in a torch dtype.

    Torch's random number generator is seeded, since missing weights are initialised at random: the
    same for every checkpoint.

    Args:
        checkpoint: The checkpoint; see `check_loadable`.
        model_class: The class of transformers; AutoModel if it is None or unknown.
        dtype: The name of the dtype.

    Returns:
        The model, in evaluation mode, and the tensors that do not fit it.

    Raises:
        CheckpointError: Transformers cannot load it.
    """
    import torch
    import transformers

    model_type = checkpoint.config.get("model_type")
    torch.manual_seed(0)
    with quiet_transformers():
        try:
            # Finding a class imports its module, which may need a library that is not installed.
            loader: Any = _find_class(model_class or "", model_type) or transformers.AutoModel
            model, info = _from_pretrained(checkpoint, loader, dtype)
        except Exception as error:  # model classes raise many types
            reason = f"{type(error).__name__}: {one_line(error)}"
            message = f"transformers cannot load {checkpoint.root}: {reason}"
            hint = None
            if checkpoint.config.get("quantization_config"):
                hint = (
                    "Its weights are quantised: pass the checkpoint from before quantisation, or "
                    "install what transformers needs to read them."
                )
            elif isinstance(error, ImportError):
                hint = "Install the library that it needs."
            raise CheckpointError(message, hint) from error
    return model.train(False), info


def _from_pretrained(checkpoint: Checkpoint, loader: Any, dtype: str) -> tuple[Any, LoadingInfo]:
    import torch
    import transformers

    from_pretrained = partial(
        loader.from_pretrained,
        output_loading_info=True,
        dtype=getattr(torch, dtype),
        variant=checkpoint.weights.variant,
        ignore_mismatched_sizes=True,  # report them instead of failing
        trust_remote_code=False,  # by default transformers asks whether to run the code
    )
    folder = checkpoint.root / checkpoint.model
    if loads_from_folder(checkpoint):
        model, info = from_pretrained(folder)
    else:
        if checkpoint.config_file in checkpoint.generated:  # of nanoGPT
            config = transformers.AutoConfig.for_model(**checkpoint.config)
        else:
            config_class = getattr(loader, "config_class", None) or transformers.AutoConfig
            config = config_class.from_pretrained(str(folder), trust_remote_code=False)
        state = dict[str, torch.Tensor]()
        for name in checkpoint.weights.entries:
            tensor = to_tensor(checkpoint.weights.read(name, DTYPES))
            state[name] = tensor.clone()  # training changes them
        model, info = from_pretrained(None, config=config, state_dict=state)
    # A mismatched key may come with shapes.
    mismatched = [key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]]
    return model, LoadingInfo(
        missing=tuple(sorted(info["missing_keys"])),
        unexpected=tuple(sorted(info["unexpected_keys"])),
        mismatched=tuple(sorted(map(str, mismatched))),
    )


def loads_from_folder(checkpoint: Checkpoint) -> bool:
    """Whether transformers finds the opened weights in the folder, by the names of the model."""
    if checkpoint.weights.is_wrapped:  # their prefixes are part of the names in the files
        return False
    if checkpoint.config_file in checkpoint.generated:  # the folder has no config.json
        return False
    file = checkpoint.source.file
    if file is None or checkpoint.weights.index is not None:  # a folder, or shards, were opened
        return True
    names = [path.name for path in (checkpoint.root / checkpoint.model).iterdir()]
    return file == first_weights(names, checkpoint.weights.variant)


class ConfigAsRead(NamedTuple):
    """What transformers reads from a config.json."""

    values: dict[str, Any]  # with its defaults
    old_keys: frozenset[str]  # keys of the file that it reads as values of other keys


def config_as_read(content: Mapping[str, Any]) -> ConfigAsRead | None:
    """Return what transformers reads from the content of a config.json.

    It is None if transformers has no class for the model type, if it refuses the values, or if it
    would make lists of millions of layers or labels. Nothing in the checkpoint is executed.
    """
    import transformers

    model_type = content.get("model_type")
    if _has_huge_count(content):
        return None
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        return None
    with quiet_transformers():
        try:
            config_class: Any = transformers.CONFIG_MAPPING[model_type]
            config = config_class.from_dict(copy.deepcopy(dict(content)))
            values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
        except Exception:  # config classes raise many types
            return None
    old_keys = frozenset({"torch_dtype", *config.attribute_map})
    return ConfigAsRead(values=values, old_keys=old_keys)


def _has_huge_count(content: Mapping[str, Any]) -> bool:
    for key, value in content.items():
        if isinstance(value, Mapping) and _has_huge_count(value):
            return True
        is_huge = isinstance(value, int) and value > MAX_LAYERS_OR_LABELS
        if is_huge and re.search("layer|label|block|depth", key):
            return True
    return False


def _find_class(name: str, model_type: Any) -> Any:
    """Return transformers' model class of this name; None if there is none.

    Some classes are not public: text models of multimodal ones, which AutoModel does not know
    either.
    """
    import transformers

    public = getattr(transformers, name, None)
    if public:
        return public
    if model_type not in transformers.CONFIG_MAPPING:
        return None
    package, _, _ = transformers.CONFIG_MAPPING[model_type].__module__.rpartition(".")
    with suppress(ImportError):
        module = import_module(f"{package}.modeling_{package.rpartition('.')[2]}")
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return None


def match_parameters(model: Any, checkpoint: Checkpoint, tables: Iterable[str]) -> dict[str, str]:
    """Return the names of a model's parameters by the tensor that a checkpoint has for each.

    Raises:
        CheckpointError: The model has no parameter for one of `tables`.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    parameters = {
        name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)
    }
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    renames = get_model_conversion_mapping(model)  # such as embed_out. of GPT-NeoX to lm_head.
    matched: dict[str, str] = {}
    for name, entry in checkpoint.weights.entries.items():
        # The prefix of the base model is in names only if the model, or the file, has a head.
        for current in (name, *(rename.rename_source_key(name)[0] for rename in renames)):
            candidates = (current, f"{prefix}{current}", current.removeprefix(prefix))
            fitting = [other for other in candidates if parameters.get(other) == entry.shape]
            if fitting:
                matched[name] = fitting[0]
                break
    for table in tables:
        if table not in matched:
            wanted = f"parameter with name and shape of {table}"
            raise CheckpointError(f"The model in {checkpoint.root} has no {wanted}.")
    return matched


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Disable transformers' progress bars and messages, which repeat what `LoadingInfo` tells."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def run_on_tokens(
    model: Any,
    table: str,
    tokens: "int | torch.Tensor",
    *,
    has_other_tables: bool = True,
) -> "torch.Tensor":
    """Run the outermost submodule around a table that needs only token ids.

    If the model has other tables, these may be shorter, and the submodule may contain them. So if
    it runs on two tokens but not on `tokens`, the next inner one runs.

    Args:
        model: The model.
        table: The name of the table's tensor.
        tokens: The token ids, shape (1, n), or their number.
        has_other_tables: Whether the model has other tables.

    Returns:
        The first float output with a value per token, else the first float output.

    Raises:
        MoreThanTextError: No submodule runs on two tokens.
        Exception: The input is too long: what the innermost submodule that ran raises.
    """
    refusals = list[str]()
    failures = []
    modules = dict(model.named_modules(remove_duplicate=False))
    path = table.split(".")[:-1]
    for depth in range(len(path) + 1):  # the outermost, which is the model, first
        module = modules.get(".".join(path[:depth]))
        if module is None:  # this class lacks the table, or names it differently
            break
        inputs = _choose_token_inputs(module, model.config, refusals)
        if inputs is None:
            continue
        try:
            return _run(module, inputs, model.config, tokens)
        except (IndexError, RuntimeError, ValueError) as error:
            if not has_other_tables:
                raise
            failures.append(error)
    if failures:
        raise failures[-1]
    reason = refusals[0] if refusals else "it has no input of token ids"
    raise MoreThanTextError(f"{reason:.160}")


def _choose_token_inputs(module: Any, config: Any, refusals: list[str]) -> tuple[str, ...] | None:
    """Run a module on token ids, and return the names of the first inputs that accept them.

    None if it has none, or refuses each: why goes to `refusals`.
    """
    parameters = inspect.signature(module.forward).parameters
    for names in TOKEN_INPUTS:
        if not parameters.keys() >= {*names}:
            continue
        try:
            _run(module, names, config, 2)
        except Exception as error:  # model classes raise many types if other inputs are missing
            refusals.append(f"{type(error).__name__}: {one_line(error)}")
        else:
            return names
    return None


def padded_texts(model: Any, folder: Path, length: int) -> "dict[str, torch.Tensor]":
    """Return ids of a short padded text, shape (1, n), by the name of what pads it.

    It is padded by a folder's processor and by its tokenizer; if there are none, to `length`.
    """
    import torch
    import transformers

    texts: dict[str, torch.Tensor] = {}
    loaders: dict[str, Any] = {
        "processor": transformers.AutoProcessor,
        "tokenizer": transformers.AutoTokenizer,
    }
    for name, loader in loaders.items():
        # There may be none, or it may need libraries for images.
        with quiet_transformers(), suppress(Exception):
            process = loader.from_pretrained(folder, trust_remote_code=False)
            padded = process(
                text=["a photo of a cat"],
                padding="max_length",
                truncation=True,
                return_tensors="pt",
            )
            texts[f"a text padded by the {name}"] = padded["input_ids"]
    if not texts:
        pad_token = getattr(_text_config(model.config), "pad_token_id", None) or 0
        padding = torch.full((1, length), pad_token)
        ids = torch.cat([token_ids(model.config, max(length // 4, 1)), padding], dim=1)
        texts[f"a text padded to {length} tokens"] = ids[:, :length]
    return texts


def token_ids(config: Any, length: int) -> "torch.Tensor":
    """Return ids of tokens that are not padding, shape (1, length)."""
    import torch

    vocab_size = int(getattr(_text_config(config), "vocab_size", None) or 32)
    first = first_trial_token(vocab_size)
    return first + torch.arange(length).unsqueeze(0) % max(vocab_size - first - 1, 1)


def first_trial_token(vocab_size: int) -> int:
    """Return the lowest token id in inputs that try a model.

    Lower ids may be of padding, which several model types do not count as positions.
    """
    return min(vocab_size // 2, FIRST_TRIAL_TOKEN)


def _text_config(config: Any) -> Any:
    """Return the config of the part that reads text, if a model has several parts."""
    try:
        return config.get_text_config()
    except ValueError:  # two of them read text
        return config.get_text_config(decoder=True)


def _run(
    module: Any, names: tuple[str, ...], config: Any, tokens: "int | torch.Tensor"
) -> "torch.Tensor":
    """Run a module on token ids, or on a number of them, as the inputs with these names.

    Returns:
        Its first float output with a value per token, else its first float output.
    """
    import torch

    ids = token_ids(config, tokens) if isinstance(tokens, int) else tokens
    with torch.no_grad():
        output = module(**dict.fromkeys(names, ids))
    if isinstance(output, Mapping):
        values = [*output.values()]
    elif isinstance(output, tuple):
        values = [*output]
    else:
        values = [output]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    floats = [value for value in tensors if value.is_floating_point()]
    if not floats:
        raise ValueError("no output has float values")
    return next((value for value in floats if value.dim() >= 3), floats[0])


def largest_difference(first: "torch.Tensor", second: "torch.Tensor") -> float:
    """Return the largest absolute difference between two tensors of one shape; NaN equals NaN."""
    difference = (first - second).abs()
    difference[(first == second) | (first.isnan() & second.isnan())] = 0
    return float(difference.max())


def are_bit_identical(first: "torch.Tensor", second: "torch.Tensor") -> bool:
    """Whether two tensors of one shape have the same dtype and the same bits."""
    import torch

    if first.dtype != second.dtype:
        return False
    a, b = (values.contiguous().flatten().view(torch.uint8) for values in (first, second))
    return bool((a == b).all())
