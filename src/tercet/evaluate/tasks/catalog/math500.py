"""MATH-500, 500 competition problems of MATH (arXiv:2103.03874, arXiv:2305.20050)."""

from tercet.evaluate.tasks.task import Row, Task


def _read(row: Row) -> Row:
    """What is asked and scored; publishers differ in everything else."""
    return {"problem": row["problem"], "solution": row["solution"]}


TASKS = (
    Task(
        name="math500",
        title="MATH-500: problems of mathematics competitions",
        definition="minerva_math/minerva_math500.yaml",
        files={"test": "math500/math500.jsonl"},
        needed=("test",),
        metric="math_verify",
        read=_read,
        packages=("math_verify", "antlr4", "sympy"),
    ),
)
