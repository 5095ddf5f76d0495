"""Questions stored as one text with lettered choices, taken apart again.

Some publishers store "Question: Q\n A. first\n B. second\nAnswer:" with the place of the right
choice; the harness asks Q and scores each choice's text.
"""

import re

from tercet.errors import CheckpointError
from tercet.evaluate.tasks.task import Row

_CHOICE = re.compile(r"\n [A-H]\. ")
_LETTERS = "ABCDEFGH"


def split_choices(row: Row, question: str) -> Row:
    """The row with `choices` {text, label} and `answerKey`, the question under that name.

    A row that has them already is given back as it is.

    Raises:
        CheckpointError: the text has other choices than the row counts.
    """
    if "query" not in row:
        return row
    text = row["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
    asked, *choices = _CHOICE.split(text)
    if len(choices) != len(row["choices"]):
        raise CheckpointError(
            f"question {row.get('id')}: {len(row['choices'])} choices are counted, {len(choices)} "
            f"are in its text: lines must begin with a letter, as in '\\n A. text'"
        )
    labels = list(_LETTERS[: len(choices)])
    return {
        "id": row["id"],
        question: asked,
        "choices": {"text": choices, "label": labels},
        "answerKey": labels[row["gold"]],
    }
