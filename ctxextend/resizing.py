"""Resize or convert a checkpoint as the commands do: plan, tune, write, train, verify."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.errors import (
    MethodError,
    RemoteWeightsError,
    ResizeError,
    TrainingError,
)
from ctxextend.notes import warning_texts
from ctxextend.output.prepare import must_write
from ctxextend.output.write import no_check, output_path
from ctxextend.plan.for_runtime import plan_for_runtime
from ctxextend.plan.opened_model import OpenedModel, open_model
from ctxextend.plan.plan import Plan
from ctxextend.planned import (
    Planned,
    Reference,
    ResizeResult,
    prepare_convert,
    prepare_plan,
    prepare_resize,
)
from ctxextend.progress import Events, Silence
from ctxextend.recipe import (
    TABLE_KEYS,
    CheckpointRef,
    Convert,
    Recipe,
    Resize,
    Train,
    accepts_settings,
    path_names,
    split_ref,
)
from ctxextend.runtimes.rules.of_llama_cpp import LLAMA_CPP
from ctxextend.runtimes.runtimes import find_runtime
from ctxextend.tables.rope_types import NONE
from ctxextend.text_data import check_beginnings

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

TUNING_SECONDS = 60

Texts = Reference | Sequence[Reference]


class ResizeOptions(NamedTuple):
    """What a resize does besides its settings; recipes do not contain it."""

    tune: tuple[str, ...] = ()  # text to tune a table on
    budget: int | None = None  # with `tune`: seconds; None: `TUNING_SECONDS`
    edit_only: bool = False  # write only edited and created files, and no weights
    link: bool = False  # link weights files that stay as they are instead of copying them
    verify: bool = False  # verify the output before it is moved into place
    # A runtime that must read the output right: its key in `RUNTIMES`.
    runtime: str | None = None

    def check(
        self,
        *,
        is_trained: bool,
    ) -> None:
        """Check that the options apply to a resize.

        Args:
            is_trained: Whether the output is trained.

        Raises:
            ResizeError: They exclude each other, or a setting, or the runtime is unknown.
        """
        if self.runtime is not None:
            find_runtime(self.runtime)
        self._check_budget()
        if self.verify and is_trained:
            message = "--verify cannot be used with --train."
            raise ResizeError(message, "Remove one of them.")
        if self.edit_only and (is_trained or self.verify):
            other = "--train" if is_trained else "--verify"
            message = f"--edit-only cannot be used with {other}, which needs weights."
            raise ResizeError(message, "Remove one of them.")
        if self.edit_only and self.link:
            message = "--link cannot be used with --edit-only, which writes no weights."
            raise ResizeError(message, "Remove one of them.")
        _check_link(self.link, is_trained=is_trained)

    def _check_budget(self) -> None:
        """Check the time for a text.

        Raises:
            ResizeError: A time is given without a text, or is invalid.
        """
        if self.budget is not None and not self.tune:
            raise ResizeError("--budget requires --tune.", "Add --tune, or remove --budget.")
        if self.budget is not None and self.budget < 1:
            message = f"--budget must be at least 1 second, got {self.budget}."
            raise ResizeError(message, f"The default is {TUNING_SECONDS}.")


def _check_link(link: bool, *, is_trained: bool) -> None:
    """Check that no weights are linked that training changes.

    Raises:
        ResizeError: They are.
    """
    if link and is_trained:
        message = "--link cannot be used with --train, which writes all weights."
        raise ResizeError(message, "Remove one of them.")


@accepts_settings(CheckpointRef, Resize)
def resize(
    reference: Reference,
    to: int | str,
    method: str | None = None,
    *,
    output: Reference | None = None,
    force: bool = False,
    tune: Texts = (),
    budget: int | None = None,
    edit_only: bool = False,
    link: bool = False,
    runtime: str | None = None,
    train: Texts = (),
    steps: int | None = None,
    verify: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Resize the positions of a checkpoint, and save the result as a new checkpoint.

    Args:
        reference: A local folder, weights file or GGUF file, the name of a bundled checkpoint, or a
            Hub id (downloaded if needed).
        to: The new context length, in usable positions (reserved rows are added): an integer ≥ 1,
            ``"4,096"``, ``"4k"`` for 4,096, ``"1m"`` for 1,048,576, or ``"4x"`` for four times the
            current length.
        method: A method name from `list_methods`, optionally with settings, such as
            ``"bands:sigma=4,gain=1.2"``. Defaults to ``"auto"``, or ``"truncate"`` when shrinking.
        output: Output folder, or GGUF file if `reference` is one. Defaults to ``<name>-<to>`` in
            the current folder.
        force: Replace an existing checkpoint folder or GGUF file, once the new one is complete.
        tune: Text files or folders. The rows of a table are trained so that a window of the old
            length predicts the same everywhere; what is not better on held-out text by more than
            its 95 % interval is not kept.
        budget: With `tune`: seconds, by default 60.
        edit_only: Write only edited and created files, and no weights.
        link: Link weights files that stay as they are instead of copying them: by hard links or,
            from the Hub cache, by symbolic links.
        runtime: The runtime that must read the output right: ``"vllm"``, ``"llama.cpp"``, … (see
            ``ctxextend resize --help``). A method that it applies is chosen.
        train: Text files or folders to train on after the resize; requires `steps`.
        steps: Optimizer steps of the training.
        verify: Verify the output before it is moved into place.
        settings: Other fields of `Resize` (``keep_first``, ``part``,
            ``fix_limits``) and of `CheckpointRef` (``revision``, …,
            and ``tensor`` for a custom model type), as keyword arguments.

    Raises:
        SourceError: The reference does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no known position table.
        ResizeError: The length, method or another setting is invalid for this model.
        DataError: The text cannot be read or is too short.
        OutputError: The output exists, or cannot be written.
        VerificationError: `verify` is set, and the output does not match the plan.
        TrainingError: Training failed to start or finish.
    """
    ref, others = split_ref(reference, settings)
    training = short_training(train, steps)
    options = ResizeOptions(
        tune=path_names(tune, "tune"),
        budget=budget,
        edit_only=edit_only,
        link=link,
        verify=verify,
        runtime=runtime,
    )
    options.check(is_trained=training is not None)
    recipe = Recipe(ref, resize=Resize(to, method=method, **others), train=training)
    return resize_checkpoint(recipe, options, output, force=force)


@accepts_settings(CheckpointRef, Convert, without=TABLE_KEYS)
def convert(
    reference: Reference,
    scheme: str,
    to: int | str | None = None,
    *,
    output: Reference | None = None,
    force: bool = False,
    link: bool = False,
    train: Texts = (),
    steps: int | None = None,
    verify: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Convert a model to another position scheme, or to attention windows, and save the result.

    GPT-2 becomes GPT-NeoX (``rotary``, arXiv:2104.09864) or Falcon (``alibi``, arXiv:2108.12409);
    BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA become RoFormer (``rotary``). Every tensor is
    one of the source's: copied, transposed, regrouped by head, or with the mean position row added.
    Without positions, outputs are equal within float32 rounding. A rotary model becomes one without
    positions (``none``, arXiv:2512.12167): its settings rotate nothing, and its weights stay. These
    outputs need training.

    With ``window``, the encoders become Longformer, and BART becomes LED (arXiv:2004.05150): tokens
    attend to those near by, at a cost that is linear in the length. Every tensor is one of the
    source's; queries, keys and values are copied for global attention too, and the position table
    is extended as by `resize`. Inputs of up to half a window give the source's outputs within
    float32 rounding, if padded on the right.

    Args:
        reference: As in `resize`.
        scheme: ``"rotary"``, ``"alibi"``, ``"window"`` or ``"none"``.
        to: Context length of the output, as in `resize`. Defaults to the old one with ``"none"``.
        output: Output folder. Defaults to ``<name>-<scheme>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        link, train, steps, verify: As in `resize`; only ``"none"`` leaves weights files as
            they are.
        settings: Other fields of `Convert` (``theta``, ``encoder_only``, ``attention_window``,
            ``method``); ``revision``, … as in `resize`.

    Raises:
        UnsupportedModelError: No model type of transformers computes the same with these positions.
        MethodError: The classes of a rotary model have no settings that rotate nothing.
        CtxextendError: As `resize`.
    """
    ref, others = split_ref(reference, settings)
    training = short_training(train, steps)
    options = ResizeOptions(link=link, verify=verify)
    options.check(is_trained=training is not None)
    recipe = Recipe(ref, train=training, convert=Convert(scheme, to, **others))
    return convert_checkpoint(recipe, output, force=force, link=link, verify=verify)


def short_training(data: Texts, steps: int | None) -> Train | None:
    """Return the training after a resize or conversion; None without text.

    Raises:
        ResizeError: Only one of both is given.
    """
    paths = path_names(data, "train")
    if bool(paths) != (steps is not None):
        message = "--train and --steps must be used together."
        raise ResizeError(message, "Add the other, or remove both.")
    if steps is None:
        return None
    return Train(paths, steps)


def resize_checkpoint(
    recipe: Recipe,
    options: ResizeOptions | None = None,
    output: Reference | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    events: Events | None = None,
) -> ResizeResult:
    """Resize a checkpoint as a recipe says; see `resize`.

    Args:
        recipe: The source, the settings, and the training after it.
        options: What else to do.
        output, force: As in `resize`.
        dry_run: Only plan: write nothing.
        events: What the steps report.
    """
    options = options or ResizeOptions()
    events = events or Silence()
    assert recipe.resize is not None
    if options.tune:
        check_beginnings(options.tune)
    planned = _open_and_plan(recipe, options, dry_run=dry_run)
    if options.tune:
        _check_tunes(planned.plan, recipe, options)
    planned = _with_options(planned, options)
    if not dry_run:
        # Fail before notes about an output that will not be written, and before measurements.
        check_can_write(recipe, planned, output, force=force)
    announce(planned, events)
    if not dry_run:
        recipe = replace(recipe, resize=planned.plan.settings)
    if options.tune and not dry_run:
        return _tune(recipe, planned, options, output, events, force=force)
    return _make(
        recipe, planned, output, events, force=force, dry_run=dry_run, verify=options.verify
    )


def _with_options(planned: Planned, options: ResizeOptions) -> Planned:
    """Return a planned output without weights, or with links to them, if the options say so."""
    if options.edit_only:
        return planned.without_weights()
    if options.link:
        return planned.with_links()
    return planned


def _open_and_plan(recipe: Recipe, options: ResizeOptions, *, dry_run: bool) -> Planned:
    """Open a checkpoint, and plan its resize; the weights of a Hub id are downloaded if needed."""
    writes_weights = not (options.edit_only or dry_run)
    reads_text = bool(options.tune) or recipe.train is not None
    if writes_weights or reads_text:
        return _plan_opened(recipe, options, only_headers=False)
    try:
        return _plan_opened(recipe, options, only_headers=True)
    except RemoteWeightsError as error:
        if options.edit_only:
            raise must_write([error.file]) from error
        return _plan_opened(recipe, options, only_headers=False)


def _plan_opened(recipe: Recipe, options: ResizeOptions, *, only_headers: bool) -> Planned:
    """Open a checkpoint, perhaps only the headers of its weights, and plan its resize."""
    assert recipe.resize is not None
    model = open_model(recipe.checkpoint, reads_gguf=True, only_headers=only_headers)
    if gguf_of(model.checkpoint) is not None:
        _check_gguf_options(model.checkpoint, recipe, options)
    if options.runtime is None:
        return prepare_resize(model, recipe.resize)
    for_runtime = plan_for_runtime(model, recipe.resize, options.runtime)
    return prepare_plan(for_runtime.plan, for_runtime=for_runtime)


def _check_gguf_options(checkpoint: Checkpoint, recipe: Recipe, options: ResizeOptions) -> None:
    """Check that no step is requested that a GGUF file cannot take.

    Raises:
        MethodError: One is.
    """
    assert recipe.resize is not None
    if recipe.train is not None or options.tune:
        flag = "--train" if recipe.train is not None else "--tune"
        message = f"{flag} runs the model in transformers, and does not apply to a GGUF file."
        raise MethodError(message, f"Remove {flag}, or use it on the checkpoint it was made from.")
    if options.runtime not in (None, LLAMA_CPP):
        message = f"--for {options.runtime}: a GGUF file is planned as llama.cpp reads it."
        hint = (
            "Use --for llama.cpp, or resize the checkpoint that it was made from, a folder, with "
            f"--for {options.runtime}."
        )
        raise MethodError(message, hint)


def convert_checkpoint(
    recipe: Recipe,
    output: Reference | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    link: bool = False,
    verify: bool = False,
    events: Events | None = None,
) -> ResizeResult:
    """Convert a checkpoint as a recipe says; see `convert`.

    Args:
        recipe: The source, the settings, and the training after it.
        output, force, link, verify: As in `convert`.
        dry_run: Only plan: write nothing.
        events: What the steps report.
    """
    events = events or Silence()
    assert recipe.convert is not None
    model = _open_source(recipe.checkpoint, recipe.convert)
    planned = prepare_convert(model, recipe.convert)
    if link:
        planned = planned.with_links()
    if not dry_run:
        check_can_write(recipe, planned, output, force=force)
    announce(planned, events)
    return _make(recipe, planned, output, events, force=force, dry_run=dry_run, verify=verify)


def _open_source(ref: CheckpointRef, settings: Convert) -> OpenedModel:
    """Open the source of a conversion; one of a type without a twin fails before any download.

    Raises:
        CtxextendError: As `convert`.
    """
    if settings.scheme == NONE:
        return open_model(ref)
    from ctxextend.conversion.find import check_type

    return open_model(ref, partial(check_type, scheme=settings.scheme))


def check_can_write(
    recipe: Recipe, planned: Planned, output: Reference | None, *, force: bool
) -> None:
    """Check that the output of a resize or conversion can be written, and its text be read.

    Raises:
        OutputError: The output exists, or cannot be written.
        TrainingError: A library is missing.
        DataError: The text to train on cannot be read.
    """
    planned.check_output(output, force=force)
    if recipe.train is None:
        return
    from ctxextend.training.training_run import RunFolder
    from ctxextend.training.training_source import check_libraries, check_train_texts

    check_libraries(recipe.train)
    folder = RunFolder.for_output(output_path(output, planned.output.default_folder))
    if folder.save is None:  # else it has the text already
        check_train_texts(recipe.train)


def announce(planned: Planned, events: Events) -> None:
    """Report the warnings of an output before it is written."""
    events.warning(*warning_texts(planned.notes))


def _tune(
    recipe: Recipe,
    planned: Planned,
    options: ResizeOptions,
    output: Reference | None,
    events: Events,
    *,
    force: bool,
) -> ResizeResult:
    """Tune a table on a text, and write it; what the text does not improve stays as planned."""
    from ctxextend.comparison.tune_table import TuningRequest, tune_table
    from ctxextend.report.tuning import describe_tuning

    _check_run_folder(output_path(output, planned.output.default_folder), force=force)
    request = TuningRequest(
        recipe=recipe,
        data=options.tune,
        budget=options.budget or TUNING_SECONDS,
        output=output,
        force=force,
        check=_check_trained if options.verify else no_check,
    )
    tuning, trained = tune_table(planned, request, events)
    events.note(describe_tuning(tuning, planned.plan.method))
    if trained is None:
        result = _make(
            recipe, planned, output, events, force=force, dry_run=False, verify=options.verify
        )
    else:
        result = replace(_trained_result(planned, trained), verified=options.verify)
    return replace(result, tuning=tuning)


def _check_run_folder(output: Path, *, force: bool) -> None:
    """Check that no interrupted run of another training would be discarded.

    Raises:
        TrainingError: One would.
    """
    from ctxextend.training.training_run import RunFolder

    folder = RunFolder.for_output(output)
    if folder.save is not None and not force:
        message = f"{folder.path} contains an interrupted run, which tuning would discard."
        raise TrainingError(message, "Resume that run, or choose another --output.")


def _check_trained(folder: Path) -> None:
    """Verify a trained output by its recipe."""
    from ctxextend.verification.verify import check_recorded_output

    check_recorded_output(folder)


def _check_tunes(plan: Plan, recipe: Recipe, options: ResizeOptions) -> None:
    """Check that a table can be tuned with the other options.

    Raises:
        MethodError: The positions have no rows to train.
        ResizeError: It cannot.
        TrainingError: A library is missing.
    """
    from ctxextend.comparison.tuning_settings import check_tunable
    from ctxextend.training.training_source import check_libraries

    check_tunable(plan)
    reason = "cannot be used with --tune, which trains the position table"
    if recipe.train is not None:
        hint = "Remove one of them, or train the output afterwards: ctxextend train OUTPUT"
        raise ResizeError(f"--train {reason}.", hint)
    for flag, is_given in (("--edit-only", options.edit_only), ("--link", options.link)):
        if is_given:
            raise ResizeError(f"{flag} {reason}.", "Remove one of them.")
    check_libraries()


def _make(
    recipe: Recipe,
    planned: Planned,
    output: Reference | None,
    events: Events,
    *,
    force: bool,
    dry_run: bool,
    verify: bool,
) -> ResizeResult:
    """Write a planned output, train it, or only say what would be written."""
    if dry_run:
        return replace(planned.dry_run(output, force=force), train=recipe.train)
    if recipe.train is not None:
        return _train(recipe, planned, output, events, force=force)
    with events.progress("Writing") as progress:
        if verify:
            from ctxextend.verification.verify import check_output

            check = partial(check_output, planned)
            written = planned.execute(output, force=force, progress=progress, check=check)
            return replace(written, verified=True)
        return planned.execute(output, force=force, progress=progress)


def _train(
    recipe: Recipe,
    planned: Planned,
    output: Reference | None,
    events: Events,
    *,
    force: bool,
) -> ResizeResult:
    """Write a planned output and train it; a run that was interrupted is resumed."""
    from ctxextend.pipeline import run_recipe
    from ctxextend.training.train_result import TrainResult
    from ctxextend.training.training_run import RunFolder

    folder = RunFolder.for_output(output_path(output, planned.output.default_folder))
    resume = not force and folder.save is not None
    run = run_recipe(recipe, planned, output, force=force, resume=resume, events=events)
    assert isinstance(run.train, TrainResult)
    return _trained_result(planned, run.train)


def _trained_result(planned: Planned, trained: "TrainResult") -> ResizeResult:
    """Return the result of a resize whose output was trained before it was written."""
    files = [path for path in Path(trained.output).rglob("*") if path.is_file()]
    return ResizeResult(
        planned=planned,
        output=trained.output,
        notes=planned.notes,
        bytes_written=sum(path.stat().st_size for path in files),
        seconds=round(trained.cost.seconds, 3),
        train=trained,
    )
