"""Tasks as objects of lm-evaluation-harness: its own definitions, on rows that are given."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import datasets
import lm_eval.api.task as harness
import lm_eval.tasks
import lm_eval.utils
from lm_eval.tasks._yaml_loader import load_yaml  # pyright: ignore[reportPrivateUsage]
from tqdm import tqdm

from tercet.errors import CheckpointError, PlanError
from tercet.evaluate.tasks.stored_rows import StoredRows
from tercet.evaluate.tasks.task import Row, Task

_DEFINITIONS = Path(lm_eval.tasks.__file__).parent
# of lm_eval.defaults: what the harness's own command draws examples with
EXAMPLES_SEED = 1234


def build(
    task: Task, rows: StoredRows | None, shots: int | None, max_tokens: int | None = None
) -> dict[str, Any]:
    """The harness's tasks by name: one, or one a subject.

    Args:
        task: which.
        rows: its rows; None to load them from the hub.
        shots: examples before each question; None for the definition's number. A definition that
            fixes none (0) keeps none, as in the harness's own command.
        max_tokens: the longest answer that is generated; None for the definition's number.

    Raises:
        PlanError: too few rows to draw so many examples from.
        CheckpointError: the hub did not give the data.
    """
    with quiet():
        if not task.subjects:
            definition = _read_definition(task, task.definition, max_tokens)
            return {task.name: _build_one(task, definition, task.name, rows, shots)}
        return {
            f"{task.name}_{subject}": _build_one(
                task,
                _read_definition(task, task.definition.format(subject=subject), max_tokens),
                f"{task.name}_{subject}",
                None if rows is None else _of_subject(rows, subject),
                shots,
            )
            for subject in task.subjects
        }


@contextmanager
def quiet() -> Generator[None]:
    """The harness draws no bars of its own and logs errors only, within the block."""
    logger, bars = logging.getLogger("lm_eval"), harness.tqdm
    level = logger.level
    logger.setLevel(logging.ERROR)
    harness.tqdm = partial(tqdm, disable=True)
    mapping = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        harness.tqdm = bars
        if not mapping:
            datasets.enable_progress_bars()


@contextmanager
def compile_templates_once() -> Generator[None]:
    """Within the block the harness compiles a template of prompts once, not for each question.

    MMLU's 14,042 questions with five examples each fill one in 98,000 times: of 487 of them, model
    left out, 84 s of 122 on a busy machine went to compiling.
    """
    templates: Any = lm_eval.utils.env
    templates.from_string = lru_cache(templates.from_string)
    try:
        yield
    finally:
        del templates.from_string


def _of_subject(rows: StoredRows, subject: str) -> StoredRows:
    return StoredRows(
        splits={
            split: [row for row in found if row.get("subject") == subject]
            for split, found in rows.splits.items()
        },
        sha256=rows.sha256,
    )


def _read_definition(task: Task, path: str, max_tokens: int | None) -> dict[str, Any]:
    config: dict[str, Any] = load_yaml(_DEFINITIONS / path, resolve_func=task.resolve)
    config |= task.overrides
    if max_tokens is not None and config["output_type"] == "generate_until":
        config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": max_tokens}
    return config


def _build_one(
    task: Task, config: dict[str, Any], name: str, rows: StoredRows | None, shots: int | None
) -> Any:
    config["task"] = name
    fixed = config.get("num_fewshot")
    count = (fixed or 0) if fixed == 0 or shots is None else shots
    config["num_fewshot"] = count
    if rows is not None:
        _use_rows(config, task, rows, count)
    built = _construct(task, config)
    built.set_fewshot_seed(seed=EXAMPLES_SEED)
    return built


def _use_rows(config: dict[str, Any], task: Task, rows: StoredRows, shots: int) -> None:
    """Rows in memory take the place of the hub's; splits that have none are left out."""
    splits = {split: found for split, found in rows.splits.items() if found}
    config["custom_dataset"] = partial(_datasets, splits)
    for entry in ("training_split", "validation_split", "test_split"):
        if config.get(entry) not in splits:
            config[entry] = None
    given = config.get("fewshot_split") or config.get("training_split")
    if config.get("fewshot_split") not in splits:
        config.pop("fewshot_split", None)
    source = config.get("fewshot_split") or config["training_split"] or config["validation_split"]
    examples: dict[str, Any] = config.get("fewshot_config") or {}
    if shots and "samples" not in examples:
        found = splits.get(source, []) if source is not None else []
        needs_all = source == config["validation_split"] and config["test_split"] is None
        if len(found) < shots or needs_all:
            wanted = task.files.get(given or "train", "of a split with examples")
            raise PlanError(
                f"{task.name}: {shots} examples before each question, but the data hold "
                f"{0 if needs_all else len(found)} to draw them from: add {wanted}, or give "
                f"--shots 0"
            )


def _datasets(splits: dict[str, list[Row]], **_: Any) -> dict[str, datasets.Dataset]:
    return {split: datasets.Dataset.from_list(found) for split, found in splits.items()}


def _construct(task: Task, config: dict[str, Any]) -> Any:
    if "custom_dataset" in config:
        return cast(Any, harness.ConfigurableTask)(config=config)
    try:
        return cast(Any, harness.ConfigurableTask)(config=config)
    except (OSError, ValueError) as error:
        # datasets raises ConnectionError, FileNotFoundError or ValueError where a data set cannot
        # be had, according to how far it came
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{task.name}: the hub did not give {config['dataset_path']} ({text}): give a folder "
            f"with its files by --task-data (docs/guides/evaluate-tasks.md says which)"
        ) from error
