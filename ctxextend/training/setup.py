"""Setup of a training run: fill in settings, tokenize the text, choose objective and trainable
parameters.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from ctxextend.checkpoints.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.checkpoints.folder import MODULES
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    DataError,
    SourceError,
    TrainingError,
    counted,
    flag_name,
    install_command,
)
from ctxextend.evaluation import eval_model
from ctxextend.evaluation.embedding import read_pooling
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, ModelFiles
from ctxextend.held_out import (
    NO_HELD_OUT,
    HeldOut,
    read_ids,
    text_key,
    trained_on_warnings,
    trained_texts,
)
from ctxextend.models.load import loads_from_folder, match_parameters
from ctxextend.plan.find_tables import describe_table, open_model
from ctxextend.recipe import FROZEN, MIN_LENGTH, Train
from ctxextend.recipe_file import (
    BaseCheckpoint,
    Provenance,
    find_base,
    learned_before,
    read_provenance,
)
from ctxextend.tables.apply import learned_rows
from ctxextend.training import train_data
from ctxextend.training.memory import checkpoint_activations, disable_dropout, micro_batch_sizes
from ctxextend.training.objectives import Contrastive, Distillation, LanguageModeling
from ctxextend.training.train_data import (
    Masking,
    PairDataset,
    SequenceDataset,
    SequenceSettings,
    Text,
)
from ctxextend.training.training_run import RunFolder

if TYPE_CHECKING:
    from accelerate import PartialState

Names = Mapping[str, str]  # of parameters or layers, by tensor
# Peak learning rate of a position table, relative to the root mean square of its values. On
# tiny-gpt2 and a byte-level GPT-2 (200 steps at 4 times the length), 0.2 is better than 0.05; on a
# distilled MiniLM, it is worse.
TABLE_RATE, CAUSAL_TABLE_RATE = 0.05, 0.2
RATE, WIDTH = (
    3e-4,
    768,
)  # peak learning rate of all weights at GPT-2 small's width; narrower models tolerate more
ENCODER_RATE = (
    2e-5  # peak learning rate of all weights of an encoder, whose embeddings should change little
)
CONTRASTIVE_RATE = 5e-5  # the same in contrastive training, measured on MiniLM
ENCODER_LR = 1e-4  # the same of an encoder after a conversion: better than 2e-5 and 2e-4 on MiniLM
# default weight after a conversion: better than 1 after 100 steps on gpt2-byte-128 and tiny-gpt2
DISTILL = 4.0
CONTRASTIVE_DISTILL = 5.0  # default weight in contrastive training, measured on MiniLM
LONG_SEQUENCE = 1024  # tokens above which activations are recomputed to save memory
# Size of the held-out set: maximum tokens; in short runs, where evaluation would take most of the
# time, sequences per training step, and their minimum.
EVAL_TOKENS, EVAL_PER_STEP, MIN_EVAL = 32_768, 2, 4
MIN_READ = (
    20 * 65_536
)  # minimum tokens to read, if the text has as many: one in 20 of them is held out


@dataclass(frozen=True)
class TrainingTask:
    """The checkpoint, settings, devices and text of a training run; the weights are not
    loaded yet.
    """

    files: ModelFiles
    settings: Train  # with sequence length and precision filled in
    devices: "PartialState"
    micro_batches: list[int]  # sizes to try, in sequences, largest first
    train: Text
    held_out: Text
    provenance: Mapping[
        str, Any
    ]  # for the recipe: files of ``data`` and ``eval_data``, ``held_out`` windows
    planned_steps: int  # the steps of the first start; a resumed run may have others
    notes: tuple[str, ...]  # about what is trained
    warnings: tuple[
        str, ...
    ]  # if the held-out text was trained on before, or new rows stay untrained
    rows: NDArray[np.bool_] | None = (
        None  # mask of the table's trainable rows, shape (rows,); None is all
    )
    base: BaseCheckpoint | None = None  # None if unknown
    was_converted: bool = False  # to another position scheme, according to its recipe
    short_positions: int | None = (
        None  # those that the base has; None if unknown, or if sequences use no others
    )

    @property
    def span(self) -> int:
        """Positions available to a sequence."""
        return self.settings.seq_len or self.files.max_len

    @property
    def dtype(self) -> str:
        """The precision of the parameters: that of a source in half precision is kept if bf16 is
        used.
        """
        return (
            "bf16"
            if self.settings.precision == "bf16" and self.files.checkpoint.weights.is_half
            else "fp32"
        )

    @property
    def length(self) -> int:
        """Tokens per sequence, special tokens included."""
        return self.settings.window or self.span

    @property
    def text_length(self) -> int:
        """Tokens per sequence without special tokens."""
        return self.length - self.files.tokenizer.num_special


def open_task(
    files: ModelFiles,
    settings: Train,
    devices: "PartialState",
    folder: RunFolder,
    notify: Callable[[str], None] = lambda text: None,
    *,
    # whether no recipe describes what to train, because it is the base with other tables
    is_base: bool = False,
) -> TrainingTask:
    """Fill in unset settings, and tokenize the text into the run folder unless it is there
    already.
    """
    _check_libraries(settings)
    source, maximum, special = files.ref.source, files.max_len, files.tokenizer.num_special
    if settings.save_adapter and not loads_from_folder(files.checkpoint):
        message = (
            f"transformers does not load the weights of {source} by themselves, so an adapter "
            "for them has no base."
        )
        raise TrainingError(message, "Save merged weights: remove --save-adapter.")
    provenance = None if is_base else read_provenance(files.checkpoint)
    base = None if is_base else find_base(provenance, settings.base, files.ref.tokenizer)
    settings, notes = files.choose_trainable(settings)
    rows = _new_rows(files, base) if settings.trainable == "new" and not is_base else None
    minimum = max(MIN_LENGTH, special + 2)
    for label, length in (
        ("--seq-len", settings.seq_len),
        ("--window", settings.window),
        ("A sequence of", minimum),
    ):
        if length is not None and length > maximum:
            hint = f"Resize it first: ctxextend resize {source} --to {length}"
            raise TrainingError(
                f"{label} {length} is more than the {maximum} positions of {source}.", hint
            )
    kind = devices.device.type
    precision = settings.precision
    span = settings.seq_len or maximum
    if kind == "cpu" and precision == "fp16":
        raise TrainingError(
            "Training in fp16 is not supported on a CPU.", "Use --precision bf16 or fp32."
        )
    precision = eval_model.auto_precision(kind) if precision == "auto" else precision
    settings = replace(settings, seq_len=span, precision=precision)
    length = settings.window or span
    micro_batches = micro_batch_sizes(devices, settings, length)

    text_length = length - special
    tokenizer = files.tokenizer
    # Short runs read more text than they train on, so that enough is held out.
    trained = math.ceil(settings.steps * settings.batch_size * text_length * 20 / 19)
    has_pairs = settings.contrastive == "pairs"
    texts = {"data": (settings.data, max(trained, MIN_READ) + 2 * span)}
    if settings.eval_data:
        texts["eval_data"] = settings.eval_data, EVAL_TOKENS + text_length
    texts_file = folder.path / "texts.json"
    if devices.is_main_process and not texts_file.exists():
        read, pairs = ({name: list[Any]() for name in texts} for _ in range(2))
        for name, (paths, maximum) in texts.items():
            ids = read_ids(
                paths,
                settings.text_field,
                tokenizer.encode,
                tokenizer.separator,
                maximum,
                read[name],
            )
            ids = (
                train_data.read_pairs(paths, tokenizer, pairs[name], read[name])
                if has_pairs
                else ids
            )
            train_data.write_tokens(ids, folder.path / f"{name}.bin", notify)
        with os_errors_as_output_error(texts_file), atomic_file(texts_file) as staged:
            staged.write_text(json.dumps([read, pairs]), "utf-8")
    facts, pairs = json.loads(texts_file.read_text("utf-8"))
    tokens, *others = (train_data.open_tokens(folder.path / f"{name}.bin") for name in texts)
    before = trained_texts(files.trainings)
    seen = [file for file in facts["eval_data" if others else "data"] if text_key(file) in before]
    use = (
        "a sequence requires" if others else "one sequence to train on and one to hold out require"
    )
    required = 0 if has_pairs else text_length if others else 2 * text_length
    for name, text in zip(texts, (tokens, *others), strict=True):
        if len(text) < required:
            label = f"The text{f' of {flag_name(name)}' * bool(others)}"
            hint = (
                "Pass more text with --data, held-out text with --eval-data, or use a shorter "
                "--seq-len or --window."
            )
            raise DataError(f"{label} has {len(text):,} tokens, but {use} {required:,}.", hint)
    if has_pairs:
        spans, *other_spans = (np.array(rows) for rows in pairs.values())
        positives = np.unique(spans[:, 2], return_inverse=True)[1]
        is_held_out = np.isin(
            positives, HeldOut.for_text(int(positives.max()) + 1, 1).spans[:, 0]
        ) & (not others)
        train, held_out = Text(tokens, spans[~is_held_out]), Text(tokens, spans[is_held_out])
        held_out = Text(others[0], other_spans[0]) if others else held_out
    elif others:
        train, held_out = Text.whole(tokens), Text.whole(others[0])
    else:
        # If there is enough text, hold out windows of full length, which `evaluate` can use too.
        whole = span - special
        chosen = HeldOut.for_text(len(tokens), whole if len(tokens) >= 10 * whole else text_length)
        # Keep what an earlier run held out of this text, since the rest was trained on.
        rules = {
            rule and replace(rule, tokens=len(tokens))
            if key == [file["first_token"], settings.text_field]
            else None
            for file in seen
            for rule, *key in before[text_key(file)]
        }
        match [*rules]:
            case [HeldOut() as rule] if rule.window >= text_length and rule.spans[:1, 0].any():
                chosen = rule
                seen = []
        train, held_out = Text(tokens, chosen.trained_spans), Text(tokens, chosen.spans)
        facts["held_out"] = asdict(chosen)
    names = [file["name"] for file in seen]
    planned_steps = folder.planned_steps or settings.steps
    warnings = trained_on_warnings(source, names, f"{NO_HELD_OUT} text with --eval-data.")
    warnings += _untrained_row_warnings(files, settings, provenance)
    was_converted = provenance is not None and any(step.convert for step in provenance.chain)
    short_positions = _short_positions(files, base, span)
    data = train, held_out, facts, planned_steps, notes, tuple(warnings)
    return TrainingTask(
        files, settings, devices, micro_batches, *data, rows, base, was_converted, short_positions
    )


def _untrained_row_warnings(
    files: ModelFiles, settings: Train, provenance: Provenance | None
) -> Iterator[str]:
    """Yield a warning if no sequence reaches some new rows, unless an earlier run may have trained
    them.
    """
    span, trains_rows = (
        settings.seq_len or files.max_len,
        files.has_rows and settings.trainable not in FROZEN,
    )
    if span < files.max_len and trains_rows and provenance and provenance.trainable in FROZEN:
        learned = learned_before(provenance.chain, files.table, files.reserved_rows, files.rows)
        if learned is not None and (rest := int((~learned[span:]).sum())):
            yield (
                f"--seq-len {span} leaves {counted(rest, 'new row')} untrained, from position "
                f"{span} on. Remove it, or "
                f"use --window {settings.window or span} instead, which trains all positions."
            )


def _new_rows(files: ModelFiles, base: BaseCheckpoint | None) -> NDArray[np.bool_]:
    """Return a mask of new rows, shape (rows,), from recipes or by comparing with the base;
    reserved rows are False.
    """
    name, reserved = files.ref.source, files.reserved_rows
    try:
        if base is None:
            raise CheckpointError("no recipe names its base checkpoint.")
        learned = learned_before(base.chain, files.table, reserved, files.rows)
        if learned is None or len(learned) != files.max_len:
            opened = open_model(base.ref)
            eval_model.check_source(opened.checkpoint, base.ref, base.hashes)
            before, table = opened.read_table(), files.read_table()
            if (
                before is None
                or table is None
                or before.shape[1:] != table.shape[1:]
                or before.dtype != table.dtype
            ):
                raise CheckpointError(f"The table of {base.ref.source} has another width or dtype.")
            learned = learned_rows(before[reserved:], table[reserved:])
    except CtxextendError as error:
        hint = (
            "Pass its base checkpoint with --base, or train the whole table with --trainable "
            "positions."
        )
        raise TrainingError(
            f"Cannot determine which rows of {name} are new: {error.message}", hint
        ) from error
    if learned.all():
        raise TrainingError(
            f"{name} has no new rows: all are learned rows.",
            "Train them with --trainable positions.",
        )
    return np.concatenate([np.zeros(reserved, np.bool_), ~learned])


def _short_positions(files: ModelFiles, base: BaseCheckpoint | None, span: int) -> int | None:
    """Return `TrainingTask.short_positions`, from recipes or, of a base that the user named, from
    its files.
    """
    length: Any = None
    if base is not None and base.chain:
        facts = base.chain[-1].values.get("provenance") or {}
        rows = base.chain[-1].rows.get(files.table)
        length = (
            rows[0] - files.reserved_rows if rows else facts.get("max_len_before")
        )  # of a conversion
    elif base is not None:
        opened = open_model(base.ref)
        length = opened.tables[0].location.positions(
            describe_table(opened.checkpoint, opened.tables[0])[0][0]
        )
    return length if isinstance(length, int) and 0 < length < span else None


class TrainableParameters:
    """The trainable parameters of a model, `names` by tensor; all others are frozen.

    `rows` is a mask of the trainable rows of the parameter `table`, shape (rows,); None is all.
    `adapters` are the names of layers with an adapter, by the tensor of their weight.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Names,
        table: str,
        rows: NDArray[np.bool_] | None,
        adapters: Names,
    ) -> None:
        self.model = model
        self.names = names
        self.table = table
        self.rows = rows
        self.adapters = adapters
        model.requires_grad_(False)
        for name in names.values():
            model.get_parameter(name).requires_grad_(True)
        if rows is not None:
            weight = model.get_parameter(table)
            frozen = torch.from_numpy(~rows)[:, None]
            weight.register_hook(
                lambda gradient: gradient.masked_fill(frozen.to(gradient.device), 0)
            )  # type: ignore[no-untyped-call]

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name, tied ones once."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def count(self) -> int:
        """The number of trainable parameters, in values."""
        frozen = (
            0
            if self.rows is None
            else int((~self.rows).sum()) * self.model.get_parameter(self.table).shape[1]
        )
        return sum(value.numel() for value in self.parameters.values()) - frozen

    @property
    def save_bytes(self) -> int:
        """Bytes of a saved state: parameters, AdamW's two moments, and the best parameters so far,
        in float32.
        """
        return 4 * 4 * sum(value.numel() for value in self.parameters.values())

    @cached_property
    def masters(self) -> dict[str, torch.Tensor]:
        """The values that an optimizer updates, by name: a float32 parameter itself, or a float32
        copy.
        """
        return {
            name: value if value.dtype == torch.float32 else value.detach().float()
            for name, value in self.parameters.items()
        }

    def value(self, name: str) -> torch.Tensor:
        """Return the trained value of a parameter, which may be tied to one of another name, on the
        CPU.
        """
        parameter = self.model.get_parameter(name)
        master = next(
            self.masters[other] for other, value in self.parameters.items() if value is parameter
        )
        return master.detach().cpu()

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set the values of parameters by name."""
        with torch.no_grad():
            for name, value in values.items():
                self.masters[name].copy_(value)
                self.model.get_parameter(name).copy_(self.masters[name])

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer of the parameters update `masters` instead, and copy them after each
        step.

        Frozen rows are restored: weight decay and Adam's moments change rows without a gradient
        too.

        Source: the float32 copy of Micikevicius et al. 2018, section 3.1, arXiv:1710.03740.
        """
        parameters = self.parameters
        masters = {id(value): self.masters[name] for name, value in parameters.items()}
        for group in optimizer.param_groups:
            group["params"] = [masters[id(value)] for value in group["params"]]
        pairs = [
            (self.masters[name], value)
            for name, value in parameters.items()
            if self.masters[name] is not value
        ]
        if self.rows is not None:
            table = self.masters[self.table]
            frozen = torch.from_numpy(np.flatnonzero(~self.rows)).to(table.device)
            kept = table.detach()[frozen].clone()

        def before(*_: object) -> None:
            for master, parameter in pairs:
                master.grad = None if parameter.grad is None else parameter.grad.float()

        def after(*_: object) -> None:
            with torch.no_grad():
                if self.rows is not None:
                    table[frozen] = kept
                for master, parameter in pairs:
                    parameter.copy_(master)
                    master.grad = None

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def gather(self, *, keep: bool) -> None:
        """Replace sharded `masters` by whole ones on the CPU, or drop them; all processes
        call it.
        """
        for name, value in self.masters.items():
            if isinstance(value, DTensor):
                whole = value.full_tensor()
                self.masters[name] = whole.to("cpu") if keep else whole.new_empty(0)


@dataclass(frozen=True)
class TrainingSetup:
    """A model with its objective, trainable parameters and data, ready for training."""

    task: TrainingTask
    model: EvalModel
    objective: torch.nn.Module  # returns the ``loss`` to minimise
    trainable: TrainableParameters
    sequences: SequenceSettings
    lr: float  # peak learning rate
    dataset: Callable[..., SequenceDataset]  # from a text, `sequences` and their number

    @property
    def held_out(self) -> SequenceDataset:
        """The sequences of the held-out loss: the same for every batch size, and for a
        resumed run.
        """
        count = min(
            max(EVAL_TOKENS // self.task.length, 1),
            max(EVAL_PER_STEP * self.task.planned_steps, MIN_EVAL),
        )
        return self.dataset(self.task.held_out, self.sequences, count, shuffled=False)


def _check_libraries(settings: Train) -> None:
    """Raise TrainingError if a library that only some settings need is not installed, before text
    is read.
    """
    needed = dict[str, str]()
    if settings.lora is not None:
        needed["peft"] = "--lora"
    if settings.contrastive:
        needed["sentence_transformers"] = "--contrastive"
    for library, flag in needed.items():
        if find_spec(library) is None:
            name = library.replace("_", "-")
            raise TrainingError(
                f"{flag} requires {name}, which is not installed.", install_command(library)
            )


def load_task(task: TrainingTask) -> tuple[TrainingTask, EvalModel, Names, EvalModel | None]:
    """Fill in settings that depend on the kind of the model; also return the model,
    `match_parameters`, the teacher.
    """
    files, settings, base = task.files, task.settings, task.base
    # A sharded model is loaded on the CPU: none of the devices may hold all of it.
    model = eval_model.load_eval_model(
        files, task.dtype, "cpu" if settings.fsdp else settings.device
    )
    teacher = None
    trains_rows = files.has_rows and settings.trainable not in FROZEN
    is_encoder = model.kind == ENCODER
    names = match_parameters(model.model, files.checkpoint, [files.table] * trains_rows)
    if task.was_converted and is_encoder and not (settings.contrastive or settings.lora):
        settings = replace(settings, lr=settings.lr or ENCODER_LR)
    elif settings.distill is None and (
        base if settings.contrastive else task.was_converted and not is_encoder
    ):
        settings = replace(
            settings, distill=CONTRASTIVE_DISTILL if settings.contrastive else DISTILL
        )
    if base and (settings.distill or (is_encoder and not settings.contrastive)):
        try:
            teacher = eval_model.open_eval_model(base.ref, task.dtype, base.hashes, settings.device)
        except SourceError as error:
            message = (
                f"Cannot distil from the base checkpoint of {files.ref.source}: {error.message}"
            )
            hint = "Pass it with --base" + (
                "." if is_encoder else ", or train without: --distill 0."
            )
            raise TrainingError(message, hint) from error
    return replace(task, settings=settings), model, names, teacher


def set_up(
    model: EvalModel, names: Names, task: TrainingTask, teacher: EvalModel | None
) -> TrainingSetup:
    """Prepare a loaded model for training, in place; `names` are from `match_parameters`."""
    settings = task.settings
    position_ids = task.span > task.length
    eval_model.check_vocabulary(
        model, np.array([text.tokens.max() for text in (task.train, task.held_out)], np.int64)
    )
    objective: torch.nn.Module
    is_encoder = model.kind == ENCODER
    weight = settings.distill
    if settings.contrastive and not is_encoder:
        message = (
            f"--contrastive and --pairs apply to encoders without an LM head: {model.name} has one."
        )
        raise TrainingError(message, "Remove them.")
    if is_encoder and weight is not None and not settings.contrastive:
        message = (
            f"--distill applies to language models: {model.name} has no LM head, and is always "
            "distilled."
        )
        raise TrainingError(message, "Remove --distill.")
    if teacher is None and (weight or (is_encoder and not settings.contrastive)):
        message = f"{model.name} is to be distilled" if weight else f"{model.name} has no LM head"
        raise TrainingError(
            f"{message}, and its base checkpoint is unknown.", "Pass --base to distil from it."
        )
    if settings.contrastive:
        objective = Contrastive(
            model, teacher if weight else None, weight or 0.0, position_ids=position_ids
        )
    elif is_encoder and teacher is not None:
        poolings = read_pooling(model.root) if (model.root / MODULES).is_file() else ()
        objective = Distillation(model, teacher, poolings, position_ids=position_ids)
    else:
        objective = LanguageModeling(
            model, teacher if weight else None, weight or 0.0, position_ids=position_ids
        )
        vars(objective)["short_positions"] = task.short_positions
    trainable = choose_parameters(model, names, task)
    masking = Masking.for_model(model) if model.kind == MASKED else None
    lengths = (task.length, task.span)
    tokenizer = model.tokenizer
    sequences = SequenceSettings(
        tokenizer.before,
        tokenizer.after,
        *lengths,
        model.kind,
        masking,
        settings.window_skip,
        settings.seed,
    )
    lr = settings.lr or _learning_rate(trainable, settings, model)
    dataset = (
        partial(PairDataset, model=model, batch=settings.batch_size)
        if settings.contrastive
        else SequenceDataset
    )
    return TrainingSetup(task, model, objective, trainable, sequences, lr, dataset)


def choose_parameters(model: EvalModel, names: Names, task: TrainingTask) -> TrainableParameters:
    """Freeze all but the parameters to train, and disable dropout, in place; see `set_up`."""
    settings, table = task.settings, task.files.table
    reachable = task.span - (
        model.kind == CAUSAL
    )  # a causal model predicts nothing from its last position
    if task.rows is not None and not task.rows[model.reserved_rows :][:reachable].any():
        first = int(task.rows.argmax()) - model.reserved_rows
        message = (
            f"--seq-len {task.span} does not reach any new row: the first is at position {first}."
        )
        raise TrainingError(
            message, f"Use a --seq-len above {first + (model.kind == CAUSAL)}, or remove it."
        )
    adapters = dict[str, str]()
    is_frozen = settings.trainable in FROZEN
    if settings.lora is None:
        trained = (
            {**_all_names(model, names, settings)}
            if settings.trains_weights
            else {table: names[table]}
        )
    else:
        from ctxextend.training.adapters import add_adapters

        adapters = add_adapters(model, names, settings)
        if settings.save_adapter and not is_frozen and not names[table].endswith(".weight"):
            message = f"{table} is not the weight of a module, so a PEFT adapter cannot contain it."
            raise TrainingError(message, "Save merged weights: remove --save-adapter.")
        trained = {
            name: name for name, value in model.model.named_parameters() if value.requires_grad
        }
        trained |= {} if is_frozen else {table: names[table]}
    if is_frozen:
        tables = {
            id(model.model.get_parameter(names[name]))
            for _, name in task.files.tables
            if name in names
        }
        trained = {
            name: value
            for name, value in trained.items()
            if id(model.model.get_parameter(value)) not in tables
        }
    trainable = TrainableParameters(model.model, trained, names.get(table, ""), task.rows, adapters)
    disable_dropout(model.model)
    if task.length > LONG_SEQUENCE:
        checkpoint_activations(model.model)
    return trainable


def _all_names(model: EvalModel, names: Names, settings: Train) -> Names:
    """Return the parameters to train by tensor: all except a pooler, which no objective uses."""
    names = {tensor: parameter for tensor, parameter in names.items() if "pooler." not in parameter}
    trained_ids = {id(model.model.get_parameter(parameter)) for parameter in names.values()}
    others = [
        (name, value) for name, value in model.model.named_parameters() if "pooler." not in name
    ]
    if missing := [name for name, value in others if id(value) not in trained_ids]:
        message = (
            f"{', '.join(missing[:3])} of {model.name} cannot be trained: its weights files do "
            "not contain them."
        )
        hint = (
            "Train only the table with --trainable positions."
            if settings.trainable == "all"
            else None
        )
        raise CheckpointError(message, hint)
    return names


def _learning_rate(trainable: TrainableParameters, settings: Train, model: EvalModel) -> float:
    """Return the default peak: Adam changes a value by about the rate per step, so a table's scales
    with its values.
    """
    # A frozen table may have no parameter, or the width of one head.
    is_frozen = settings.trainable in FROZEN or not trainable.table
    weight = (
        model.model.get_input_embeddings().weight
        if is_frozen
        else model.model.get_parameter(trainable.table)
    )
    share = CAUSAL_TABLE_RATE if model.kind == CAUSAL else TABLE_RATE
    rate = float(share * weight.detach().float().square().mean().sqrt())
    if not (is_frozen or math.isfinite(rate)):
        raise TrainingError(
            "The position table contains NaN or infinity.", "Find the rows with ctxextend inspect."
        )
    if rate and not settings.trains_weights:
        return rate
    encoder_rate = CONTRASTIVE_RATE if settings.contrastive else ENCODER_RATE
    all_weights = encoder_rate if model.kind == ENCODER else RATE * (WIDTH / weight.shape[1]) ** 0.5
    # Adapters learn best at 10 times that rate (Schulman et al. 2025, "LoRA Without Regret"); the
    # table needs its.
    return (
        min(10 * all_weights, rate if rate and not is_frozen else math.inf)
        if settings.lora
        else all_weights
    )
