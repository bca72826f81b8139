"""Notes about rotary settings that give long inputs other frequencies than short ones."""

from collections.abc import Iterator, Sequence

from ctxextend.plan.table_plan import TablePlan, switches


def switch_notes(tables: Sequence[TablePlan]) -> Iterator[str]:
    """Yield what to know of inputs that cross the old length, or that share a batch.

    Transformers chooses the list of factors by the longest sequence of each call.
    """
    for table in tables:
        if not switches(table):
            continue
        length = table.max_len_before
        yield (
            f"An input of up to {length} tokens gets the frequencies of long ones in a batch with "
            "a longer one: batch them apart."
        )
        rope = table.location.table.rope
        assert rope is not None
        if rope.drops_cache:
            yield (
                f"generate() reads an input again when it grows past {length} tokens, since keys "
                "in its cache have the frequencies of short inputs."
            )
        else:
            yield (
                f"An input that grows past {length} tokens in generate() keeps the keys that were "
                "cached with the frequencies of short inputs."
            )
