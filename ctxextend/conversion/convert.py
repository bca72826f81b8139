"""Convert a checkpoint with learned positions: compute the tensors of its twin, then write them as
a resize does.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import SINGLE_FILE, with_variant
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.generation_limits import is_raised
from ctxextend.checkpoints.json_edit import edit, load_object
from ctxextend.checkpoints.safetensors_file import (
    TensorFile,
    describe_tensors,
    numpy_dtype,
    read_floats,
)
from ctxextend.conversion import twins
from ctxextend.conversion.twins import COPIED, SOURCE_TYPES, Array, Rule, SourceType, Twin
from ctxextend.errors import MethodError, ResizeError, UnsupportedModelError, counted, printable
from ctxextend.families.schema import ALIBI, ROTARY
from ctxextend.inspection.stated_limits import TOKENIZER_FILES
from ctxextend.json_output import not_in_json
from ctxextend.plan import output_files
from ctxextend.plan.edits import TablePlan
from ctxextend.plan.find_tables import (
    OpenedModel,
    check_width,
    describe_table,
    identify_model,
    open_model,
)
from ctxextend.plan.length_notes import generation_notes
from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_model
from ctxextend.recipe import (
    DEFAULT_THETA,
    CheckpointRef,
    Convert,
    Recipe,
    Resize,
    accepts_settings,
    split_ref,
)
from ctxextend.recipe_file import TABLE_KEYS
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.version import __version__

DTYPES = ("F64", "F32", "F16", "BF16")  # of weights that are not quantised
OLD_NAMES = {
    "gamma": "weight",
    "beta": "bias",
}  # layer norm parameters in old TensorFlow checkpoints
SCHEMES = {"rotary": ROTARY, "alibi": ALIBI}  # how messages name them
PASS_MODEL = (
    f"Pass the folder of a model of type {', '.join(SOURCE_TYPES)}, or use ctxextend resize."
)
DROPPED = (
    "pooler.",
    "cls.seq_relationship.",
)  # dropped with a warning: most uses of a base model do not need them


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

    stored_range = offset

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Compute the bytes of a tensor, shape (size,)."""
        return np.ascontiguousarray(self.compute(name)).view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class Conversion:
    """A checkpoint with learned positions and its twin, whose tensors are computed when they are
    read.
    """

    model: OpenedModel
    settings: Convert  # with the length as a number, and theta if the twin has one
    max_len_before: int
    twin: Twin
    model_class: str  # of the twin, in transformers
    config: Mapping[str, Any]  # of the twin
    origins: Mapping[str, Origin]  # by the twin's tensor names
    dropped: Sequence[str]  # tensors that the twin has no place for
    tokenizer: str  # the class of tokenizer that transformers uses for the source

    @property
    def positions(self) -> str:
        """The position scheme of the twin, as in messages."""
        theta = self.settings.theta
        return (
            f"rotary positions, theta {theta:g}"
            if theta
            else f"{SCHEMES[self.twin.scheme]} positions"
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tensors by how they are computed."""
        return Counter(origin.how for origin in self.origins.values())

    @property
    def added_parameters(self) -> int:
        """The number of parameters that the source ties and the twin does not: those of its LM
        head.
        """
        tensors = [origin.tensor for origin in self.origins.values()]
        entries = self.model.checkpoint.entries
        return sum(
            math.prod(entries[name].shape) * (count - 1) for name, count in Counter(tensors).items()
        )

    @cached_property
    def mean_row(self) -> NDArray[np.float64]:
        """The mean of all usable position rows, shape (d,)."""
        location, name = self.model.tables[0]
        rows = read_floats(self.model.checkpoint.names[name], name)[location.reserved_rows :]
        if bad := nonfinite_rows(rows):
            message = (
                f"{name} has {counted(len(bad), 'row')} with NaN or infinity, which the mean row "
                "would contain."
            )
            raise ResizeError(
                message, f"Find them with: ctxextend inspect {printable(self.model.ref.source)}"
            )
        return np.asarray(rows.astype(np.float64).mean(axis=0))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every tensor of the twin."""
        shapes = {}
        for name, (tensor, how) in self.origins.items():
            _, dtype, shape, *_ = self.model.checkpoint.entries[tensor]
            shapes[name] = dtype, shape[::-1] if how in (twins.BY_HEAD, twins.TRANSPOSED) else shape
        if self.twin.has_angles:
            size = self.config["hidden_size"] // self.config["num_attention_heads"]
            name = (
                "" if self.model_class.endswith(twins.BASE) else self.twin.prefix
            ) + twins.ANGLES
            shapes[name] = (
                next(iter(shapes.values()))[0],
                (self.config["max_position_embeddings"], size),
            )
        return shapes

    def tensor(self, name: str) -> Array:
        """Compute a tensor of the twin."""
        if name not in self.origins:
            dtype, shape = self.shapes[name]
            return twins.angles(*shape).astype(numpy_dtype(dtype))
        tensor, how = self.origins[name]
        values = read_floats(self.model.checkpoint.names[tensor], tensor)
        if how == twins.BY_HEAD:
            return twins.by_head(values, self.config["num_attention_heads"])
        if how == twins.PLUS_MEAN:
            return twins.plus_mean(values, self.mean_row)
        return values.T if how == twins.TRANSPOSED else values

    @property
    def checkpoint(self) -> Checkpoint:
        """The twin as a checkpoint in memory, with the source's other files."""
        source = self.model.checkpoint
        path = next(iter(source.weights.values())).path
        name = (source.model / with_variant(SINGLE_FILE, source.variant)).as_posix()
        try:
            files = {name: ComputedFile(path, *describe_tensors(self.shapes), 0, self.tensor)}
        except ValueError:  # more than 2^63 bytes
            raise ResizeError(
                f"--to {self.config['max_position_embeddings']:,} is too large.", "Lower --to."
            ) from None
        generated = {source.config_file: json.dumps(self.config, indent=2) + "\n"}
        config, *others = (
            (source.model / name).as_posix() for name in ("tokenizer_config.json", *TOKENIZER_FILES)
        )
        stated = load_object(source.root / config) if config in source.copied else {}
        if {config, *others} & {*source.copied} and not stated.get("tokenizer_class"):
            text = source.text(config) if stated else "{}\n"
            # Otherwise the model type decides.
            tokenizer = source.config.get("tokenizer_class") or self.tokenizer
            generated[config] = edit(text, {("tokenizer_class",): tokenizer})
        return replace(
            source,
            config=self.config,
            weights=files,
            index=None,
            index_file="",
            generated=generated,
        )


def check_type(model_type: str) -> None:
    """Raise UnsupportedModelError if no model of a type has a twin."""
    if model_type not in SOURCE_TYPES:
        raise UnsupportedModelError(
            f"{model_type} models cannot be converted to other positions.", PASS_MODEL
        )


def find_conversion(model: OpenedModel, settings: Convert) -> Conversion:
    """Return the conversion of an open checkpoint; raise UnsupportedModelError if no model type has
    its twin.
    """
    checkpoint, (location, _), name = model.checkpoint, model.tables[0], model.ref.source
    model_type, given = model.architecture.family.model_type, model.checkpoint.config
    check_type(model_type)
    source_type = SOURCE_TYPES[model_type]
    if checkpoint.adapter_of or not checkpoint.has_config or model.ref.tensor:
        raise UnsupportedModelError(
            f"{name} cannot be converted: it is not a complete model.", PASS_MODEL
        )
    twin = next((twin for twin in source_type.twins if twin.scheme == settings.scheme), None)
    if twin is None:
        message = (
            f"{name} ({model_type}) cannot be converted to {settings.scheme}: no class of "
            "transformers"
        )
        message += (
            f" computes what {source_type.class_name}Model does with {SCHEMES[settings.scheme]} "
            "positions."
        )
        raise UnsupportedModelError(message, f"Use --scheme {source_type.twins[0].scheme}.")
    if settings.theta is not None and twin.has_angles:
        message = (
            f"--theta cannot be used with {twin.model_type}, whose angles transformers computes "
            "with 10,000."
        )
        raise MethodError(message, "Remove --theta.")
    if wrong := [
        key for key, values in source_type.required.items() if given.get(key) not in values
    ]:
        value = json.dumps(given[wrong[0]])
        message = (
            f"{checkpoint.config_file}: {wrong[0]} is {value}, which {twin.model_type} models do "
            "not support."
        )
        raise UnsupportedModelError(
            message, "Resize the checkpoint instead, with ctxextend resize."
        )
    length = settings.to
    (rows, columns), _, _ = describe_table(checkpoint, model.tables[0])
    check_width(location, columns, model.tables[0].name)
    max_len = location.positions(rows)
    length = max_len * int(length[:-1]) if isinstance(length, str) else length
    theta = None if twin.scheme != "rotary" or twin.has_angles else settings.theta or DEFAULT_THETA
    settings = replace(
        settings, to=length, theta=theta
    )  # recipes state the default too, in case it changes
    head = twins.BASE if settings.encoder_only else _find_head(model, source_type, twin)
    config = _twin_config(model, source_type, twin, settings) | {
        "architectures": [f"{twin.class_name}{head}"]
    }
    origins, dropped = _find_origins(model, source_type, twin, head)
    entries = (checkpoint.entries[origin.tensor] for origin in origins.values())
    if quantised := [entry for entry in entries if entry.dtype not in DTYPES]:
        message = (
            f"{name} has quantised weights ({quantised[0].name} is {quantised[0].dtype}), which "
            "cannot be added."
        )
        raise UnsupportedModelError(message, "Convert the checkpoint from before quantisation.")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if not (type(heads) is type(width) is int and heads > 0) or width % (
        heads * (1 + (twin.scheme == "rotary"))
    ):
        message = f"{checkpoint.config_file}: {heads} heads do not fit a width of {width}: "
        message += "the size of a head must be an integer, and an even one for rotary positions."
        raise UnsupportedModelError(message)
    found = f"{twin.class_name}{head}", config, origins, dropped
    return Conversion(model, settings, max_len, twin, *found, source_type.tokenizer)


def _find_head(model: OpenedModel, source_type: SourceType, twin: Twin) -> str:
    """Return how the name of the twin's class ends; raise UnsupportedModelError if no class has the
    same head.
    """
    stated = model.checkpoint.model_class
    hint = "To drop the head and convert the base model, add --encoder-only."
    head = re.sub(
        f"^(?:{'|'.join(item.class_name for item in SOURCE_TYPES.values())})", "", stated or ""
    )
    if stated is None:
        has_lm_head = any(
            "predictions." in name or "lm_head." in name for name in model.checkpoint.names
        )
        head = (
            twins.MASKED_LM
            if has_lm_head and twins.MASKED_LM in source_type.heads
            else source_type.default_head
        )
    if head not in source_type.heads:
        raise UnsupportedModelError(
            f"{twin.model_type} models have no head like that of {stated}.", hint
        )
    act = model.checkpoint.config.get("hidden_act", source_type.lm_act)
    if source_type.heads[head] == twins.MASKED_LM and source_type.lm_act not in (None, act):
        message = (
            f"hidden_act is {act}, but the LM head uses {source_type.lm_act}: {twin.model_type} "
            "has one for both."
        )
        raise UnsupportedModelError(message, hint)
    return source_type.heads[head]


def _twin_config(
    model: OpenedModel, source_type: SourceType, twin: Twin, settings: Convert
) -> dict[str, Any]:
    """Return the config of a twin: keys of the source, renamed, except those that only it has."""
    unused = *source_type.required, *source_type.unused, model.tables[0].location.table.config_key
    values = dict[str, Any](architectures=[], model_type=twin.model_type)
    for key, value in {**source_type.defaults, **model.checkpoint.config}.items():
        is_new = (
            key not in values or key in source_type.aliases
        )  # an alias overrides the other name
        if is_new and not any(Rule(pattern, "").applied(key) is not None for pattern in unused):
            values[twin.keys.get(key, key)] = value
    config = {**values, **twin.fixed, "max_position_embeddings": settings.to}
    if config.get("intermediate_size", 0) is None:
        config["intermediate_size"] = 4 * config["hidden_size"]
    if (theta := settings.theta) is not None:
        theta = int(theta) if theta == int(theta) else theta
        # Transformers 5 reads the first key, earlier versions and other programs the others.
        config["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": 1.0,
        }
        config |= {"rotary_pct": 1.0, "rotary_emb_base": theta}
    return config


def _find_origins(
    model: OpenedModel, kind: SourceType, twin: Twin, head: str
) -> tuple[dict[str, Origin], list[str]]:
    """Return how each tensor of a twin is computed, by name, and which tensors of the source are
    dropped.
    """
    location, table = model.tables[0]
    prefix = table.removesuffix(location.table.name)
    twin_prefix = "" if head == twins.BASE else twin.prefix
    rules = [Rule(prefix + rule.source, twin_prefix + rule.name, rule.how) for rule in twin.rules]
    if head != twins.BASE:
        rules += (*kind.rules, *(Rule("lm_head.weight", name) for name in (twin.lm_head,) if name))
    ignored = [Rule(prefix + name, "") for name in (location.table.name, *kind.ignored)]
    origins, dropped = dict[str, Origin](), list[str]()
    for tensor in model.checkpoint.entries:
        stem, _, last = tensor.rpartition(".")
        name = f"{stem}.{OLD_NAMES.get(last, last)}"
        found = next(((target, rule.how) for rule in rules if (target := rule.applied(name))), None)
        if found is not None:
            origins[found[0]] = Origin(tensor, found[1])
        elif any(rule.applied(name) is not None for rule in ignored):
            continue
        elif head == twins.BASE or name.removeprefix(prefix).startswith(DROPPED):
            dropped.append(tensor)
        else:
            message = (
                f"{tensor} is not a tensor of {kind.class_name} models that {twin.model_type} "
                "models have."
            )
            raise UnsupportedModelError(
                message, "To drop the head and convert the base model, add --encoder-only."
            )
    if head == twins.CAUSAL_LM and twin.lm_head:
        embeddings = next(
            origin.tensor for origin in origins.values() if origin.how == twins.PLUS_MEAN
        )
        origins.setdefault(twin.lm_head, Origin(embeddings, COPIED))
    is_tied = model.checkpoint.config.get("tie_word_embeddings") is not False
    bias = origins.get("cls.predictions.bias")
    if bias is not None and not is_tied:  # transformers then does not tie it either
        origins.setdefault("cls.predictions.decoder.bias", bias)
    return origins, dropped


@dataclass(frozen=True, eq=False, repr=False)
class ConversionPlan(ResizePlan, shows="summary max_len_before max_len_after"):
    """Everything a conversion will change; `execute` writes the output."""

    kind: ClassVar = "convert"
    tables: tuple[TablePlan, ...] = field(
        metadata=not_in_json
    )  # those of the twin, already at its length
    dropped: tuple[str, ...] = field(metadata=not_in_json)
    conversion: Conversion = field(kw_only=True, metadata=not_in_json)

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values of a plan that are not fields."""
        conversion = self.conversion
        more = super().json_more()
        shared = ("source", "revision", "files", "bytes_to_write", "bytes_shareable", "notes")
        return {key: more[key] for key in shared} | {
            "scheme": conversion.settings.scheme,
            "theta": conversion.settings.theta,
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
        before = self.conversion.model.architecture.family.model_type
        return f"{before} -> {self.conversion.twin.model_type} ({self.conversion.positions})"

    @property
    def details(self) -> tuple[str, ...]:
        """The conversion, its length, and the parameters that it adds."""
        lines = (self.summary, f"{self.max_len_before} -> {self.max_len_after} tokens")
        added = self.conversion.added_parameters
        why = "the LM head is separate from the embeddings"
        return (*lines, f"{counted(added, 'parameter')} added: {why}") if added else lines

    @property
    def consequences(self) -> str:
        """What to expect of the model's outputs before any training."""
        why = "since all weights were trained with learned positions"
        effects = f"Outputs are far from the source's, for short inputs too, {why}."
        return f"{output_files.UNTRAINED.format(self.max_len_after)} {effects}"

    @property
    def keep_hint(self) -> str:
        """The next command."""
        return "Train it with ctxextend train DIR --data TEXT --steps 200."

    def _generation(self) -> Iterator[str]:
        yield from generation_notes(self.model, self.tables, self.max_len_before, "")

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
        return Path(
            f"{self.checkpoint.source.name}-{self.conversion.settings.scheme}-{self.max_len_after}"
        )

    def _step(self, ref: CheckpointRef) -> Recipe:
        return Recipe(ref, convert=self.conversion.settings)

    def _facts(self, hashes: Iterator[str]) -> dict[str, Any]:
        before = self.conversion.model.architecture.family.model_type
        return {
            "model_type": before,
            "converted_to": self.model_type,
            "max_len_before": self.max_len_before,
        }

    def _fingerprint(self) -> str:
        return self.conversion.model.checkpoint.weights_fingerprint()

    def _card(self) -> str:
        source, conversion = self.checkpoint.source, self.conversion
        name = printable(source.hub_id or source.name)
        after = self.max_len_after
        title, card = printable(str(self.default_output)), output_files.read_card(self.checkpoint)
        rearranged = ", ".join(f"{count} {how}" for how, count in conversion.counts.items())
        section = (
            f"## Converted to {SCHEMES[conversion.twin.scheme]} positions, {after} tokens\n\n"
            f"{name} with its learned positions converted by ctxextend {__version__}: "
            f"{self.summary}, from "
            f"{self.max_len_before} to {after} tokens. Every tensor is one of the source's: "
            f"{rearranged}. "
            f"{' '.join((self.consequences, *self._warnings()))}{output_files.RECIPE_POINTER}\n"
        )
        base_model = output_files.known_base_model(conversion.model.checkpoint)
        return output_files.model_card(card, base_model, title=title, section=section)


def plan_conversion(model: OpenedModel, settings: Convert) -> ConversionPlan:
    """Plan the conversion of an open checkpoint; see `convert`."""
    conversion = find_conversion(model, settings)
    twin = identify_model(conversion.checkpoint, replace(model.ref, model_type=None))
    plan = plan_model(replace(twin, ref=model.ref), Resize(conversion.settings.to, fix_limits=True))
    # Where generated texts stop is the user's choice: it is not raised, but noted.
    plan = replace(plan, edits=tuple(edit for edit in plan.edits if not is_raised(edit)))
    return ConversionPlan(
        **{item.name: getattr(plan, item.name) for item in fields(plan)}, conversion=conversion
    )


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
    """Convert learned positions to rotary (arXiv:2104.09864) or ALiBi positions (arXiv:2108.12409);
    save the result.

    GPT-2 becomes GPT-NeoX (``rotary``) or Falcon (``alibi``); BERT, RoBERTa, CamemBERT, XLM-RoBERTa
    and ELECTRA become RoFormer (``rotary``). Every tensor is one of the source's: copied,
    transposed, regrouped by head, or with the mean position row added. Without positions, outputs
    are equal within float32 rounding. The output needs training.

    Args:
        reference: As in `resize`.
        scheme: ``"rotary"`` or ``"alibi"``.
        to: Context length of the output, as in `resize`.
        output: Output folder. Defaults to ``<name>-<scheme>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        settings: Other fields of `Convert` (``theta``, ``encoder_only``); ``revision``, … as in
            `resize`.

    Raises:
        UnsupportedModelError: No model type of transformers computes the same with these positions.
        CtxextendError: As `resize` and `ResizePlan.execute`.
    """
    ref, settings = split_ref(reference, settings)
    return plan_conversion(open_model(ref, check_type), Convert(scheme, to, **settings)).execute(
        output, force=force
    )
