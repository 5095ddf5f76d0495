"""Tasks of lm-evaluation-harness on packed checkpoints and on uncompressed models."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

import torch

from tercet.checkpoints.packed.read import is_packed, open_packed
from tercet.checkpoints.seal import contents_sha256
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.child_process.untrusted import run_untrusted
from tercet.errors import CheckpointError, UnsupportedError
from tercet.evaluate.tasks.catalog import find_tasks
from tercet.evaluate.tasks.requirements import check_requirements
from tercet.evaluate.tasks.samples import RunSettings, Sample, check_run, keep_task, read_records
from tercet.evaluate.tasks.stored_rows import read_rows
from tercet.evaluate.tasks.task import Task
from tercet.evaluate.tasks.token_model import DecoderModel, TokenModel, TransformersModel
from tercet.models.decoder.kv_cache import check_kv_cache_dtype
from tercet.models.device import resolve_device
from tercet.records import Environment, Record
from tercet.runtime import load
from tercet.workflows.next_token_model import check_next_token
from tercet.workflows.teacher import open_uncompressed

Progress = Callable[[int, int, str], None]
"""A function called with (requests done, requests in all, task); (0, 0, task) when one begins."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What is asked, found and read before any model is opened.

    Attributes:
        tasks: in the order asked for.
        built: by task, the harness's tasks by name.
        sha256: by task, over its files; empty where the hub gives the rows.
        settings: without the model.
    """

    tasks: tuple[Task, ...]
    built: dict[str, dict[str, Any]]
    sha256: dict[str, str]
    settings: dict[str, Any]


def read_questions(
    names: Sequence[str],
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    max_tokens: int | None = None,
    chat: bool = False,
) -> Questions:
    """The questions of these tasks.

    Args:
        names: of the catalog.
        data: a folder with their files; None for the hub.
        limit: questions of each task (MMLU: of each subject), from the first; None for all.
        shots: examples before each question; None for the task's own number.
        max_tokens: the longest answer that is generated; None for the task's own number.
        chat: write prompts by the model's chat template.

    Raises:
        PlanError: an unknown task, or too few rows for so many examples.
        UnsupportedError: the extra `tasks` is not installed.
        CheckpointError: data are missing or damaged.
    """
    tasks = find_tasks(names)
    folder = Path(data) if data is not None else None
    if folder is not None and not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder: --task-data takes the folder of all data")
    check_requirements(tasks, folder)
    # the extra's packages are imported once they are known to be there
    from tercet.evaluate.tasks.harness_task import build

    rows = {task.name: read_rows(task, folder) for task in tasks} if folder is not None else {}
    return Questions(
        tasks=tuple(tasks),
        built={task.name: build(task, rows.get(task.name), shots, max_tokens) for task in tasks},
        sha256={name: found.sha256 for name, found in rows.items()},
        settings={
            "limit": limit,
            "shots": shots,
            "max_tokens": max_tokens,
            "chat": chat,
            "stored": folder is not None,
            "harness": version("lm-eval"),
        },
    )


def evaluate_tasks(
    model: str | Path,
    questions: Questions,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: torch.device | str | None = None,
    kv_cache_dtype: str | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Ask one model, task by task.

    Args:
        model: a packed checkpoint, or anything that `open_source` takes.
        questions: of `read_questions`.
        out: folder that gets every answer; None to keep the scores only.
        resume: go on with the run in `out`: tasks that it has answered are not asked again.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one. Activations are
            float32 on either.
        kv_cache_dtype: how a packed checkpoint keeps keys and values, as `tercet.load` takes it.
        progress: called as requests are done.

    Returns:
        A record for each task, in the order asked for.

    Raises:
        CheckpointError: the model is missing or damaged, or `out` holds something else.
        UnsupportedError: the model gives no logits or has no tokenizer, or there is no such device
            or dtype of a cache; or the decoder does not run it, which alone has such caches.
    """
    check_kv_cache_dtype(kv_cache_dtype)
    target = resolve_device(device)
    settings = RunSettings(
        model=str(model),
        weights=_identify(model),
        kv_cache_dtype=kv_cache_dtype,
        **questions.settings,
    )
    folder = Path(out) if out is not None else None
    done = check_run(folder, settings, resume) if folder is not None else []
    records = {name: read_records(folder)[name] for name in done} if folder is not None else {}
    pending = [task for task in questions.tasks if task.name not in done]
    if pending:
        with open_model(model, target, kv_cache_dtype) as (tokens, tokenizer):
            for task in pending:
                samples, records[task.name] = _ask(
                    task, tokens, tokenizer, questions, settings, target, progress
                )
                if folder is not None:
                    keep_task(folder, settings, task.name, samples, records[task.name])
    return [records[task.name] for task in questions.tasks]


def _ask(
    task: Task,
    tokens: TokenModel,
    tokenizer: Any,
    questions: Questions,
    settings: RunSettings,
    device: torch.device,
    progress: Progress | None,
) -> tuple[list[Sample], Record]:
    from tercet.evaluate.tasks.language_model import PackedLM
    from tercet.evaluate.tasks.run import chance, evaluate_task, record

    model = PackedLM(tokens, tokenizer)
    if settings.chat and not tokenizer.chat_template:
        raise CheckpointError(f"{settings.model}: has no chat template: leave --chat out")
    if progress is not None:
        progress(0, 0, task.name)
        model.progress = lambda done, total: progress(done, total, task.name)
    start = perf_counter()
    samples = evaluate_task(
        model, questions.built[task.name], limit=settings.limit, chat=settings.chat
    )
    on_gpu = device.type == "cuda"
    shots = next(iter(questions.built[task.name].values())).get_config("num_fewshot")
    return samples, record(
        task,
        samples,
        subject=settings.model,
        settings={
            **settings.model_dump(exclude={"model"}),
            "shots": shots,
            "data_sha256": questions.sha256.get(task.name),
            "truncated_prompts": model.truncated,
            "sandbox_lacks": "; ".join(run_untrusted("").missing) if task.runs_answers else None,
            "device": device.type,
        },
        score_chance=chance(task, questions.built[task.name], samples),
        environment=Environment.here(torch.cuda.get_device_name(device) if on_gpu else None),
        seconds=perf_counter() - start,
    )


@contextmanager
def open_model(
    model: str | Path, device: torch.device, kv_cache_dtype: str | None = None
) -> Generator[tuple[TokenModel, Any], None, None]:
    """Within the block, a packed or uncompressed model and its tokenizer.

    Raises:
        UnsupportedError: it gives no logits, has no tokenizer, or is not run by the decoder, which
            alone keeps keys and values as codes.
    """
    if is_packed(Path(model)):
        directory = Path(model)
        tokens = _open_packed_model(directory, device, kv_cache_dtype)
        yield tokens, _tokenizer(directory, str(model))
        return
    if kv_cache_dtype is not None:
        raise UnsupportedError(
            f"{model} is not compressed: --kv-cache-dtype {kv_cache_dtype} is for packed "
            f"checkpoints; compress it, or leave the option out"
        )
    source = open_source(model)
    tokenizer = _source_tokenizer(source)
    with open_uncompressed(source, device, "tasks are") as found:
        yield TransformersModel(found), tokenizer


def _open_packed_model(
    directory: Path, device: torch.device, kv_cache_dtype: str | None
) -> TokenModel:
    check_next_token(open_packed(directory))
    try:
        found = load(directory, torch.float32, device, kv_cache_dtype=kv_cache_dtype)
        return DecoderModel(found.model)
    except UnsupportedError:
        if kv_cache_dtype is not None:
            raise
        # not of those that the lean decoder runs
        from transformers import AutoModelForCausalLM

        model = cast(Any, AutoModelForCausalLM).from_pretrained(directory).to(device)
        return TransformersModel(model)


def _source_tokenizer(source: ModelSource) -> Any:
    with TemporaryDirectory() as folder:
        source.save_companions(folder)
        return _tokenizer(Path(folder), source.reference)


def _tokenizer(directory: Path, model: str) -> Any:
    """transformers' tokenizer of the files in a directory, which the harness uses, too."""
    if not (directory / "tokenizer.json").is_file():
        raise UnsupportedError(
            f"{model}: has no tokenizer.json, so questions cannot be read: put the tokenizer's "
            f"files beside its weights"
        )
    from transformers import AutoTokenizer

    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(directory)
    if tokenizer.eos_token_id is None:
        raise UnsupportedError(
            f"{model}: its tokenizer_config.json names no eos_token, which ends answers and stands "
            f"before texts without a context: name one"
        )
    return tokenizer


def _identify(model: str | Path) -> str:
    """Which weights these are; read where no seal says it."""
    path = Path(model)
    return f"sha256:{contents_sha256(path) if is_packed(path) else open_source(model).sha256()}"
