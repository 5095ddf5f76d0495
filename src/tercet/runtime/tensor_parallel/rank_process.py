"""One rank of a command: loads its part of the model, and generates with the others."""

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist

from tercet.errors import TercetError, UnsupportedError
from tercet.models.device import resolve_device
from tercet.records import peak_resident_bytes
from tercet.runtime.session import load
from tercet.runtime.tensor_parallel.messages import Done, Failed, Job, Loaded, Text


def run_rank(rank: int, job: Job, store: Path, connection: Connection) -> None:
    """The whole life of a rank; it stays until the process that started it ends it, or ends.

    Args:
        rank: which one it is.
        job: that of all.
        store: a file by which the ranks find each other.
        connection: to the process that started them.
    """
    Thread(target=_exit_with_parent, daemon=True).start()
    try:
        _generate(rank, job, store, connection)
    except Exception as error:  # noqa: BLE001 the parent raises it: it sees which rank failed first
        connection.send(_describe(error))
    # a rank that left would have the others fail as well
    _exit_with_parent()


def _exit_with_parent() -> None:
    """Waits for the end of the parent, which may be killed; then nobody else ends this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _generate(rank: int, job: Job, store: Path, connection: Connection) -> None:
    device = _choose_device(job, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(torch.get_num_threads() // job.world_size, 1))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=job.world_size,
        device_id=device if device.type == "cuda" else None,
    )
    # the parent checks the files' hashes, once for all ranks
    model = load(
        job.directory,
        device=device,
        verify=False,
        kv_cache_dtype=job.kv_cache_dtype,
        process_group=dist.group.WORLD,
    )
    connection.send(Loaded())
    chunks = model.stream(job.prompt, chat=job.chat, **vars(job.settings))
    for chunk in chunks:
        if rank == 0:
            connection.send(Text(chunk=chunk))
    connection.send(Done(result=chunks.result, peak_bytes=peak_resident_bytes()))


def _choose_device(job: Job, rank: int) -> torch.device:
    device = resolve_device(job.device)
    if device.type == "cpu":
        return device
    if device != torch.device("cuda"):
        raise UnsupportedError(
            f"device {job.device}: tensor parallelism takes GPUs 0 to {job.world_size - 1}; say "
            f"cuda, and choose others with CUDA_VISIBLE_DEVICES"
        )
    count = torch.cuda.device_count()
    if count < job.world_size:
        raise UnsupportedError(
            f"tensor parallelism over {job.world_size} GPUs: there are {count} here; take "
            f"--tensor-parallel {count}, or --device cpu"
        )
    return torch.device("cuda", rank)


def _describe(error: Exception) -> Failed:
    known = [kind for kind in type(error).__mro__ if kind.__module__ == TercetError.__module__]
    return Failed(
        kind=(known or [type(error)])[0].__name__,
        refused=bool(known),
        message=str(error),
        trace="".join(traceback.format_exception(error)),
    )
