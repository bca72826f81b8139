"""The model card of a trained output: the source's card with a section about the training."""

from ctxextend.card import LOG_POINTER, RECIPE_POINTER, extended_card
from ctxextend.checkpoint.source import public_name
from ctxextend.errors import counted, printable
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_result import TrainResult
from ctxextend.version import __version__

# What each objective trains a model to do, for the card.
OBJECTIVES = {
    "causal": "to predict the next token",
    "masked": "to predict masked tokens",
    "contrastive": (
        "to find the text of each pair, such as the document of a passage, among those of a batch"
    ),
    "distilled": (
        "to reproduce, on long texts, the hidden states of its base checkpoint on windows that it "
        "can read"
    ),
}
# What a table learns from its base, which reads windows from position 0 on.
DISTILLED_TABLE = "to predict anywhere what its base checkpoint predicts in windows it can read"


def trained_card(run: TrainingRun, result: TrainResult) -> str:
    """Return the source's card with a section about the training."""
    data = ", ".join(f"`{printable(public_name(path))}`" for path in run.settings.data)
    losses = f"Held-out loss: {result.loss_before:.4f} before training"
    if result.saves_trained:
        losses += f", {result.loss_after:.4f} after step {result.saved_step} (these weights)."
    else:
        losses += "; no later evaluation was lower, so these are the untrained weights."
    section = (
        f"## Trained at {result.seq_len}\n\n"
        f"Trained with ctxextend {__version__} {_objective_text(result)}: "
        f"{run.settings.trained_text} ({counted(result.parameters, 'parameter')}), "
        f"{result.steps_text}, on {data}; peak learning rate {result.lr:.3g}. {losses}"
        f"{LOG_POINTER}{RECIPE_POINTER}\n"
    )
    return extended_card(
        run.files.checkpoint,
        run.provenance,
        title=printable(result.output.name),
        section=section,
        trained_at=run.files.max_len,
    )


def _objective_text(result: TrainResult) -> str:
    if result.distils_table and result.distill == 1:
        return DISTILLED_TABLE
    text = OBJECTIVES[result.objective]
    if result.distill:
        text += f" and, with weight {result.distill:g}, to stay close to its base checkpoint"
    return text
