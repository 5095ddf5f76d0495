"""LAMBADA, the last word of a passage (arXiv:1606.06031), in OpenAI's preparation."""

from tercet.evaluate.tasks.task import Row, Task


def _read(row: Row) -> Row:
    """The whole passage, which the harness cuts at its last space."""
    if "text" in row:
        return row
    return {"text": f"{row['query']} {row['answers_text'][0]}"}


TASKS = (
    Task(
        name="lambada",
        title="LAMBADA: the last word of a passage",
        definition="lambada/lambada_openai.yaml",
        files={"test": "lambada/test.jsonl"},
        needed=("test",),
        metric="acc",
        read=_read,
    ),
)
