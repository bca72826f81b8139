"""The commands that serve or convert a folder."""

import shlex

from ctxextend.errors import not_an_option
from ctxextend.runtimes.rule_schema import Runtime
from ctxextend.runtimes.runtime_statements import RuntimeStatement

# Tasks of Optimum, which infers none from a folder, by how the names of classes end in
# transformers; of models that generate, with a cache of keys and values. The first row that fits
# applies. Source: optimum/exporters/tasks.py, 2.3.
EXPORT_TASKS = {
    "WhisperForConditionalGeneration": "automatic-speech-recognition-with-past",
    "ForConditionalGeneration": "text2text-generation-with-past",
    "ForCausalLM": "text-generation-with-past",
    "LMHeadModel": "text-generation-with-past",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "feature-extraction",
}


def export_task(model_class: str | None) -> str:
    """Return the task of Optimum for a class of transformers; TASK if it is not known."""
    for ending, task in EXPORT_TASKS.items():
        if model_class is not None and model_class.endswith(ending):
            return task
    return "TASK"


def serving_command(
    runtime: Runtime,
    statement: RuntimeStatement | None,
    folder: str,
    max_len: int,
    task: str = "TASK",
) -> str:
    """Return the command that serves a folder, or converts it for a runtime.

    Args:
        runtime: The runtime, which has a command.
        statement: What it does with the folder, by a rule if there is one.
        folder: The path of the folder.
        max_len: The context length, in tokens.
        task: As Optimum names what the model does; it infers none from a folder.
    """
    command = runtime.command.format(folder=_argument(folder), max_len=max_len, task=task)
    if statement is not None and statement.option:
        command = f"{command} {statement.option}"
    return command


def file_command(statement: RuntimeStatement, file: str, max_len: int) -> str:
    """Return the command that serves a GGUF file.

    Args:
        statement: What a runtime does with it, which has a command for that.
        file: The path of the file.
        max_len: The context length, in tokens.
    """
    command = statement.runtime.file_command.format(file=_argument(file), max_len=max_len)
    if statement.option:
        command = f"{command} {statement.option}"
    return command


def _argument(path: str) -> str:
    return shlex.quote(not_an_option(path))
