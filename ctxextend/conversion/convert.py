"""Convert a checkpoint with learned positions: compute the tensors of its twin, then write them as a resize does."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import SINGLE_FILE, with_variant
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit, load_object
from ctxextend.checkpoints.safetensors_file import TensorFile, describe_tensors, numpy_dtype, read_floats
from ctxextend.conversion.twins import (
    ANGLES,
    ANGLES_LAYOUT,
    BY_HEAD,
    COPIED,
    PLUS_MEAN,
    SOURCE_TYPES,
    TRANSPOSED,
    Array,
    Rule,
    SourceType,
    Twin,
    by_head,
    plus_mean,
)
from ctxextend.errors import MethodError, UnsupportedModelError, counted, printable
from ctxextend.inspection.stated_limits import TOKENIZER_FILES
from ctxextend.plan import output_files
from ctxextend.plan.find_tables import OpenedModel, describe_table, identify_model, open_model
from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_model
from ctxextend.recipe import THETA, CheckpointRef, Convert, Recipe, Resize, accepts_settings, split_ref
from ctxextend.recipe_file import TABLE_KEYS
from ctxextend.tables.sinusoids import sinusoidal_rows
from ctxextend.version import __version__

DTYPES = ("F64", "F32", "F16", "BF16")  # of weights that are not quantised
OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # layer norm parameters in old TensorFlow checkpoints
UNUSED_KEYS = ("auto_map", "n_ctx", "embd_pdrop", "reorder_and_upcast_attn", "gradient_checkpointing")
DROPPED = ("pooler.", "cls.seq_relationship.")  # dropped with a warning: most uses of a base model do not need them
MLM_DECODER = "cls.predictions.decoder."


class Origin(NamedTuple):
    """How a tensor of a twin is computed."""

    tensor: str  # of the source
    how: str  # `COPIED`, `TRANSPOSED`, `BY_HEAD` or `PLUS_MEAN`


@dataclass(frozen=True, eq=False)
class ComputedFile(TensorFile):
    """A weights file whose tensors are computed when they are read."""

    compute: Callable[[str], Array]

    def offset(self, name: str) -> None:
        """Return None: the bytes of no tensor are stored."""

    def stored_range(self, name: str) -> None:
        """Return None: the values of no tensor are stored."""

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Compute the bytes of a tensor, shape (size,)."""
        return np.ascontiguousarray(self.compute(name)).view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class Conversion:
    """A checkpoint with learned positions and its twin, whose tensors are computed when they are read."""

    model: OpenedModel
    settings: Convert  # with the length as a number
    source_type: SourceType
    twin: Twin
    head: str  # the rest of the name of the twin's class, such as ``ForCausalLM``
    origins: Mapping[str, Origin]  # by the twin's tensor names
    dropped: tuple[str, ...]  # tensors that the twin has no place for

    @property
    def length(self) -> int:
        """The context length of the output."""
        assert isinstance(self.settings.to, int)
        return self.settings.to

    @property
    def max_len_before(self) -> int:
        """The context length of the source."""
        table = self.model.tables[0]
        return table.location.positions(describe_table(self.model.checkpoint, table)[0][0])

    @property
    def theta(self) -> float | None:
        """The base of the rotary frequencies; None if the twin has no such setting."""
        return (self.settings.theta or THETA) if self.twin.lm_head and self.settings.scheme == "rotary" else None

    @property
    def model_class(self) -> str:
        """The transformers class of the twin."""
        return f"{self.twin.class_name}{self.head}"

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tensors by how they are computed."""
        return Counter(origin.how for origin in self.origins.values())

    @property
    def added_parameters(self) -> int:
        """The number of parameters that the source ties and the twin stores: those of its LM head."""
        used = Counter(origin.tensor for origin in self.origins.values())
        shapes = {name: entry.shape for name, entry in self.model.checkpoint.entries.items()}
        return sum((count - 1) * int(np.prod(shapes[name])) for name, count in used.items())

    @cached_property
    def stated(self) -> Mapping[str, Any]:
        """The values of the source's config, by the keys of `Twin.keys`, with transformers' defaults."""
        config = {name: _stated(self.model, key, default) for name, (key, default) in self.source_type.config.items()}
        return config | {"inner": config["inner"] or 4 * config["width"]}

    @property
    def config(self) -> dict[str, Any]:
        """The twin's config: keys that both have are kept."""
        given, twin = self.model.checkpoint.config, self.twin
        unused = {key for key, _ in self.source_type.config.values()} | {*self.source_type.required, *UNUSED_KEYS}
        unused |= {self.model.tables[0].location.table.config_key, "architectures", "model_type"}
        kept = {key: value for key, value in given.items() if key not in unused and not key.startswith("summary_")}
        values = {twin.keys[name]: value for name, value in self.stated.items() if name in twin.keys}
        config = {"architectures": [self.model_class], "model_type": twin.model_type, **kept, **values, **twin.fixed}
        config["max_position_embeddings"] = self.length
        if (theta := self.theta) is not None:
            theta = int(theta) if theta.is_integer() else theta
            # Transformers 5 reads the first key, earlier versions and other programs the others.
            config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 1.0}
            config |= {"rotary_pct": 1.0, "rotary_emb_base": theta}
        return config

    @cached_property
    def mean_row(self) -> NDArray[np.float64]:
        """The mean of all usable position rows, shape (d,)."""
        location, name = self.model.tables[0]
        rows = read_floats(self.model.checkpoint.names[name], name)[location.reserved_rows :]
        return np.asarray(rows.astype(np.float64).mean(axis=0))

    def tensor(self, name: str) -> Array:
        """Compute a tensor of the twin."""
        if name.endswith(ANGLES):
            dtype, shape = self.shapes[name]
            angles = sinusoidal_rows(np.arange(shape[0]), shape[1], ANGLES_LAYOUT)
            return angles.astype(np.float32).astype(numpy_dtype(dtype))
        tensor, how = self.origins[name]
        values = read_floats(self.model.checkpoint.names[tensor], tensor)
        if how == BY_HEAD:
            return by_head(values, self.stated["heads"])
        if how == PLUS_MEAN:
            return plus_mean(values, self.mean_row)
        return values.T if how == TRANSPOSED else values

    @cached_property
    def shapes(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every tensor of the twin."""
        shapes = {}
        for name, (tensor, how) in self.origins.items():
            _, dtype, shape, *_ = self.model.checkpoint.entries[tensor]
            shapes[name] = dtype, shape[::-1] if how in (BY_HEAD, TRANSPOSED) else shape
        if self.twin.has_angles:
            head_dim = self.stated["width"] // self.stated["heads"]
            prefix = self.twin.prefix if self.head != "Model" else ""
            shapes[prefix + ANGLES] = next(iter(shapes.values()))[0], (self.length, head_dim)
        return shapes

    @property
    def checkpoint(self) -> Checkpoint:
        """The twin as a checkpoint in memory, with the source's other files."""
        source = self.model.checkpoint
        file = next(iter(source.weights.values()))
        name = (source.model / with_variant(SINGLE_FILE, source.variant)).as_posix()
        computed = ComputedFile(file.path, *describe_tensors(self.shapes), 0, self.tensor)
        generated = {source.config_file: json.dumps(self.config, indent=2) + "\n"}
        tokenizer_file = (source.model / "tokenizer_config.json").as_posix()
        tokenizers = {(source.model / name).as_posix() for name in TOKENIZER_FILES}
        stated = load_object(source.root / tokenizer_file) if tokenizer_file in source.copied else {}
        if "tokenizer_class" not in stated and tokenizers & {*source.copied}:  # else the model type would decide
            text = source.text(tokenizer_file) if tokenizer_file in source.copied else "{}\n"
            generated[tokenizer_file] = edit(text, {("tokenizer_class",): self.source_type.tokenizer})
        files = {name: computed}
        return replace(source, config=self.config, weights=files, index=None, index_file="", generated=generated)


def _stated(model: OpenedModel, key: str, default: Any) -> Any:
    value = model.checkpoint.config.get(key)
    return default if value is None else value


def find_conversion(model: OpenedModel, settings: Convert) -> Conversion:
    """Return the conversion of an open checkpoint; raise UnsupportedModelError if no model type has its twin."""
    checkpoint, (location, table) = model.checkpoint, model.tables[0]
    model_type, config = location.family.model_type, checkpoint.config
    source_type = SOURCE_TYPES.get(model.architecture.family.model_type)
    if source_type is None or checkpoint.adapter_of or not checkpoint.has_config:
        message = f"{model.ref.source} ({model.architecture.family.model_type}) cannot be converted."
        raise UnsupportedModelError(message, f"Pass the folder of a model of type {', '.join(SOURCE_TYPES)}.")
    twin = next((twin for twin in source_type.twins if twin.scheme == settings.scheme), None)
    if twin is None:
        message = f"{model.ref.source} ({model_type}) cannot be converted to {settings.scheme}: "
        message += f"transformers has no such class with the computation of {source_type.class_name}Model."
        raise UnsupportedModelError(message, f"Use --scheme {source_type.twins[0].scheme}.")
    if settings.theta is not None and twin.has_angles:
        message = f"--theta cannot be used with {twin.model_type}, whose angles transformers computes with 10,000."
        raise MethodError(message, "Remove --theta.")
    for key, allowed in source_type.required.items():
        if (value := _stated(model, key, allowed[0])) not in allowed:
            message = (
                f"{checkpoint.config_file}: {key} is {json.dumps(value)}, which {twin.class_name} does not support."
            )
            raise UnsupportedModelError(message, "Resize the checkpoint instead, with ctxextend resize.")
    if "auto_map" in config:
        message = f"{checkpoint.config_file} has auto_map: its own code may compute something else."
        raise UnsupportedModelError(message, "Resize the checkpoint instead, with ctxextend resize.")
    head = _find_head(model, source_type, twin, settings)
    prefix = table.removesuffix(location.table.name)
    origins, dropped = _find_origins(model, source_type, twin, head, prefix)
    entries = [checkpoint.entries[origin.tensor] for origin in origins.values()]
    if "quantization_config" in config or (entries := [entry for entry in entries if entry.dtype not in DTYPES]):
        found = f"{entries[0].name} is {entries[0].dtype}" if entries else "its config has quantization_config"
        message = f"{model.ref.source} has quantised weights ({found}), which cannot be added."
        raise UnsupportedModelError(message, "Convert the checkpoint from before quantisation.")
    length = settings.to
    if isinstance(length, str):
        rows = describe_table(checkpoint, model.tables[0])[0][0]
        length = location.positions(rows) * int(length[:-1])
    conversion = Conversion(model, replace(settings, to=length), source_type, twin, head, origins, dropped)
    width, heads = conversion.stated["width"], conversion.stated["heads"]
    if width % heads or (twin.positions == "rotary" and width // heads % 2):
        message = f"{checkpoint.config_file}: {heads} heads of a width of {width} have size {width / heads:g}"
        raise UnsupportedModelError(f"{message}, but {twin.positions} positions need an even integer.")
    return conversion


def _find_head(model: OpenedModel, source_type: SourceType, twin: Twin, settings: Convert) -> str:
    """Return the rest of the name of the twin's class; raise UnsupportedModelError if no class has the same head."""
    stated, names = model.checkpoint.model_class, model.checkpoint.names
    if settings.encoder_only:
        return "Model"
    classes = "|".join(item.class_name for item in SOURCE_TYPES.values())
    rest = re.sub(f"^(?:{classes})", "", stated or "")
    if stated is None:
        has_lm_head = any(rule.applied(name) for rule in source_type.head_rules for name in names)
        rest = "ForMaskedLM" if has_lm_head else source_type.default_head
    if rest not in source_type.heads:
        message = f"The head of {stated} has no equivalent in {twin.model_type} models."
        raise UnsupportedModelError(message, "Convert the base model only with --encoder-only.")
    act = _stated(model, *source_type.config["act"])
    if source_type.heads[rest] == "ForMaskedLM" and source_type.lm_act not in (None, act):
        message = f"hidden_act is {act}, but the LM head of {source_type.class_name} models uses {source_type.lm_act}: "
        message += f"{twin.class_name} has one activation for both."
        raise UnsupportedModelError(message, "Convert the base model only with --encoder-only.")
    return source_type.heads[rest]


def _find_origins(
    model: OpenedModel, source_type: SourceType, twin: Twin, head: str, prefix: str
) -> tuple[dict[str, Origin], tuple[str, ...]]:
    """Return how each tensor of a twin is computed, by name, and which tensors of the source are dropped."""
    origins, dropped = dict[str, Origin](), list[str]()
    is_tied = model.checkpoint.config.get("tie_word_embeddings") is not False
    twin_prefix, head_rules = (twin.prefix, source_type.head_rules) if head != "Model" else ("", ())
    ignored = (*source_type.ignored, model.tables[0].location.table.name)
    for tensor in model.checkpoint.entries:
        stem, _, last = tensor.rpartition(".")
        name = f"{stem}.{OLD_NAMES.get(last, last)}"
        inner = name.removeprefix(prefix)
        in_base = ((rule.applied(inner), rule.how) for rule in twin.rules if name.startswith(prefix))
        in_head = ((rule.applied(name), rule.how) for rule in head_rules)
        target, how = next((found for found in in_base if found[0]), (None, COPIED))
        outer = next((found for found, _ in in_head if found), None)
        if target is not None:
            origins[twin_prefix + target] = Origin(tensor, how)
        elif outer is not None:
            if not (is_tied and outer.startswith(MLM_DECODER)):
                origins[outer] = Origin(tensor, COPIED)
        elif name == "lm_head.weight" and twin.lm_head:  # see below
            continue
        elif inner.startswith(DROPPED) or head == "Model":
            if not any(Rule(pattern, "").applied(inner) is not None for pattern in ignored):
                dropped.append(tensor)
        elif not any(Rule(pattern, "").applied(inner) is not None for pattern in ignored):
            message = f"{tensor} is not a tensor of {source_type.class_name} models that {twin.class_name} models have."
            raise UnsupportedModelError(message, "Convert the base model only with --encoder-only.")
    if twin.lm_head and head == "ForCausalLM":
        embeddings = next(origin.tensor for origin in origins.values() if origin.how == PLUS_MEAN)
        is_stored = not is_tied and "lm_head.weight" in model.checkpoint.names
        origins[twin.lm_head] = Origin("lm_head.weight" if is_stored else embeddings, COPIED)
    if not is_tied and (bias := origins.get("cls.predictions.bias")):  # transformers then ties neither
        origins.setdefault(f"{MLM_DECODER}bias", bias)
    return origins, tuple(dropped)


@dataclass(frozen=True, eq=False, repr=False)
class ConversionPlan(ResizePlan, shows="model_type conversion max_len_before max_len_after"):
    """Everything a conversion will change; `execute` writes the output."""

    kind: ClassVar = "convert"
    conversion: Conversion = field(kw_only=True, metadata={"json": False})

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values of a plan that are not fields."""
        conversion, more = self.conversion, super().json_more()
        shared = ("source", "revision", "files", "bytes_to_write", "bytes_shareable", "notes")
        return {key: more[key] for key in shared} | {
            "scheme": conversion.settings.scheme,
            "theta": conversion.theta,
            "model_type_before": conversion.model.architecture.family.model_type,
            "model_type_after": conversion.twin.model_type,
            "model_class": conversion.model_class,
            "max_len_before": self.max_len_before,
            "max_len_after": self.max_len_after,
            "added_parameters": conversion.added_parameters,
            "tensors": conversion.counts,
            "dropped_tensors": conversion.dropped,
        }

    @property
    def max_len_before(self) -> int:
        """Usable positions of the source."""
        return self.conversion.max_len_before

    @property
    def summary(self) -> str:
        """The conversion in a few words."""
        conversion = self.conversion
        theta = f", theta {conversion.theta:g}" if conversion.theta else ""
        before = conversion.model.architecture.family.model_type
        return f"{before} -> {conversion.twin.model_type} ({conversion.twin.positions} positions{theta})"

    @property
    def details(self) -> tuple[str, ...]:
        """The conversion, its length, and the parameters that it adds."""
        lines = (self.summary, f"{self.max_len_before} -> {self.max_len_after} tokens")
        added, why = self.conversion.added_parameters, "the LM head is separate from the embeddings"
        return (*lines, f"{counted(added, 'parameter')} added: {why}") if added else lines

    @property
    def consequences(self) -> str:
        """What to expect of the model's outputs before any training."""
        return (
            f"{output_files.UNTRAINED.format(self.max_len_after)} Not usable before training: the weights are those of "
            f"learned positions, so outputs are far from the source's, for short inputs too."
        )

    def _warnings(self) -> Iterator[str]:
        conversion = self.conversion
        if dropped := conversion.dropped:
            named = f"{', '.join(dropped[:3])}{', ...' * (len(dropped) > 3)}"
            place = f"{conversion.model_class} has no place for them"
            yield f"Dropped {counted(len(dropped), 'tensor')}: {named} ({place})."
        if conversion.twin.limits:
            yield f"{conversion.twin.limits}."
        yield from self._low_limits()

    @property
    def default_output(self) -> Path:
        """The default output folder: ``<name>-<scheme>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.conversion.settings.scheme}-{self.max_len_after}")

    def _step(self, ref: CheckpointRef) -> Recipe:
        return Recipe(ref, convert=self.conversion.settings)

    def _facts(self, hashes: Iterator[str]) -> dict[str, Any]:
        before = self.conversion.model.architecture.family.model_type
        return {"model_type": before, "converted_to": self.model_type, "max_len_before": self.max_len_before}

    def _fingerprint(self) -> str:
        return self.conversion.model.checkpoint.weights_fingerprint()

    def _card(self) -> str:
        source, conversion = self.checkpoint.source, self.conversion
        name, after = printable(source.hub_id or source.name), self.max_len_after
        rearranged = ", ".join(f"{count} {how}" for how, count in conversion.counts.items())
        section = (
            f"## Converted to {conversion.twin.positions} positions, {after} tokens\n\n"
            f"{name} with its learned positions converted by ctxextend {__version__}: {self.summary}, from "
            f"{self.max_len_before} to {after} tokens. Every tensor is one of the source's: {rearranged}. "
            f"{' '.join((self.consequences, *self._warnings()))}{output_files.RECIPE_POINTER}\n"
        )
        title = printable(str(self.default_output))
        base_model, card = (
            output_files.known_base_model(conversion.model.checkpoint),
            output_files.read_card(self.checkpoint),
        )
        return output_files.model_card(card, base_model, title=title, section=section)


def plan_conversion(model: OpenedModel, settings: Convert) -> ConversionPlan:
    """Plan the conversion of an open checkpoint; see `convert`."""
    conversion = find_conversion(model.with_code() if settings.copy_code else model, settings)
    twin = identify_model(conversion.checkpoint, replace(model.ref, model_type=None))
    plan = plan_model(replace(twin, ref=model.ref), Resize(conversion.length, fix_limits=True))
    values = {item.name: getattr(plan, item.name) for item in fields(plan)}
    return ConversionPlan(**values, conversion=conversion)


@accepts_settings(CheckpointRef, Convert, without=TABLE_KEYS)
def convert(
    reference: str | os.PathLike[str],
    scheme: str,
    to: int | str,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Convert a checkpoint with learned positions to rotary or ALiBi positions, and save it as a new checkpoint.

    GPT-2 becomes GPT-NeoX (``rotary``) or Falcon (``alibi``); BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA become
    RoFormer (``rotary``). Every tensor of the output is one of the source's: copied, transposed, regrouped by head, or
    with the mean position row added. With positions removed from both, outputs are equal within float32 rounding. The
    output needs training: see `train`.

    Args:
        reference: As in `plan_resize`.
        scheme: ``"rotary"`` or ``"alibi"``.
        to: Context length of the output, as in `plan_resize`.
        output: Output folder. Defaults to ``<name>-<scheme>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        settings: Other fields of `Convert` (``theta``, ``encoder_only``, ``copy_code``); and ``revision``, … as in
            `plan_resize`.

    Raises:
        UnsupportedModelError: No model type of transformers computes the same with these positions.
        CtxextendError: As `plan_resize` and `ResizePlan.execute`.

    Source of the positions: Su et al. 2021, arXiv:2104.09864 (rotary); Press et al. 2022, arXiv:2108.12409 (ALiBi).
    """
    ref, settings = split_ref(reference, settings)
    plan = plan_conversion(open_model(ref), Convert(scheme, to, **settings))
    return plan.execute(output, force=force)
