"""IFEval, instructions whose following a program can verify (arXiv:2311.07911)."""

from tercet.evaluate.tasks.task import Task

TASKS = (
    Task(
        name="ifeval",
        title="IFEval: instructions whose following can be verified",
        definition="ifeval/ifeval.yaml",
        # the publisher's one file is called train on the hub
        files={"train": "ifeval/input_data.jsonl"},
        needed=("train",),
        metric="prompt_level_strict_acc",
        thoughtless="I would rather not say anything about that.",
        packages=("langdetect", "immutabledict", "nltk"),
        nltk_data="tokenizers/punkt_tab",
    ),
)
