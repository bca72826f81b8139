"""The output of a training run: a checkpoint with recipe, card and log."""

import json

from ctxextend.card import CARD_FILE, LOG_FILE, UNDECODED
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.json_edit import edit
from ctxextend.checkpoint.writing import NewTensors, Output
from ctxextend.limits.edits import in_existing_objects, missing_engine_keys
from ctxextend.positions.rotary_dialects import both_dialects
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_result import TrainResult
from ctxextend.training.trained_card import trained_card
from ctxextend.training.trained_recipe import trained_recipe


def trained_output(run: TrainingRun, result: TrainResult) -> Output:
    """Return the output of a finished run, to be written by `write_output`.

    Its tensors are known before it is written, so its recipe is complete. The recipe, card and log
    of the run replace files of the same name.

    Raises:
        CheckpointError: A file of the trained checkpoint cannot be read.
    """
    trainable = run.trainable
    source = trainable.checkpoint
    files = {name: text.encode() for name, text in source.generated.items()}
    # What transformers does not write: rotary settings in both dialects, since it writes only
    # ``rope_parameters`` when it saves a model, and keys of the length for other engines.
    changes = missing_engine_keys(run.files.opened)
    changes |= both_dialects(run.files.opened.architecture.locations)
    if changes and source.has_config:
        text = source.text(source.config_file)
        changes = in_existing_objects(source.config, changes)
        files[source.config_file] = edit(text, changes).encode()
    recipe = trained_recipe(run, result)
    texts = {
        RECIPE_FILE: recipe,
        CARD_FILE: trained_card(run, result),
        LOG_FILE: "".join(f"{json.dumps(line)}\n" for line in result.log),
    }
    files |= {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}
    return Output(
        source=source,
        path=result.output,
        layouts=trainable.layouts,
        texts=files,
        compute=lambda path: NewTensors(tensor=trainable.tensor, recipe=files[RECIPE_FILE]),
    )
