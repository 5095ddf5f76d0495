"""tercet run DIR --prompt TEXT."""

import sys
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tercet.checkpoints.seal import Verification
from tercet.checkpoints.sources.fetch import find_packed
from tercet.cli.lazy import importing
from tercet.cli.options.device import Device
from tercet.cli.options.kv_cache import KvCacheDtype
from tercet.cli.options.tensor_parallel import TensorParallel
from tercet.cli.show import Json, mebibytes, print_json, say
from tercet.errors import UnsupportedError
from tercet.records import peak_resident_bytes
from tercet.runtime import Generation, GenerationSettings
from tercet.runtime.prompt import check_text
from tercet.runtime.tensor_parallel.messages import Job
from tercet.runtime.tensor_parallel.processes import open_ranks


def run_command(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of a packed checkpoint, or the name of one that `tercet fetch` knows."
        ),
    ],
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt", help="Text to answer or continue; - reads it from standard input."
        ),
    ],
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 128,
    temperature: Annotated[
        float,
        typer.Option(help="Sampling temperature; 0 always picks the most probable token (greedy)."),
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Top-k sampling: keep only the k most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Nucleus sampling: keep the smallest set of tokens with total probability p."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="RNG seed for sampling. Default: a new seed each run.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            help="Whether to format the prompt with the model's chat template. Default: yes, if "
            "the model has one."
        ),
    ] = None,
    ignore_stop: Annotated[
        bool,
        typer.Option(help="Do not stop at an end-of-text token; for speed measurements."),
    ] = False,
    device: Device = None,
    kv_cache_dtype: KvCacheDtype = None,
    tensor_parallel: TensorParallel = 1,
    verify: Annotated[
        bool, typer.Option(help="Check every file against the checkpoint's hashes first.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Generate text with a packed checkpoint, printing tokens as they are generated."""
    # a wrong setting is found here, before a model is opened
    settings = GenerationSettings(
        max_new_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        ignore_stop=ignore_stop,
    )
    if prompt == "-":
        prompt = _read_standard_input()
    check_text(prompt)
    directory = find_packed(directory, say, demand=True)
    # hashed in threads while torch is imported
    check = Verification(directory) if verify else False
    if tensor_parallel == 1:
        # not above: `--help` and a wrong setting need no torch, which takes a second
        with importing():
            from tercet.runtime import load

        model = load(directory, device=device, verify=check, kv_cache_dtype=kv_cache_dtype)
        chunks = model.stream(prompt, chat=chat, **asdict(settings))
        _echo(chunks, as_json)
        _report(chunks.result, peak_resident_bytes(), as_json)
        return
    job = Job(
        directory=directory,
        prompt=prompt,
        chat=chat,
        settings=settings,
        world_size=tensor_parallel,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
    )
    with open_ranks(job, check) as ranks:
        _echo(ranks, as_json)
        _report(ranks.result, ranks.peak_bytes, as_json)


def _echo(chunks: Iterable[str], as_json: bool) -> None:
    """Prints text as it comes; with --json it is only read."""
    for chunk in chunks:
        if not as_json:
            typer.echo(chunk, nl=False)


def _report(done: Generation, peak_bytes: int, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "text": done.text,
                "ids": list(done.ids),
                "prompt_tokens": done.prompt_tokens,
                "reason": done.reason,
                "prefill_tokens_per_s": done.prefill_tokens_per_s,
                "decode_tokens_per_s": done.decode_tokens_per_s,
                "peak_resident_bytes": peak_bytes,
            }
        )
        return
    typer.echo()
    say(
        f"{len(done.ids)} tokens, {done.decode_tokens_per_s:.1f} tokens/s, prompt "
        f"{done.prefill_tokens_per_s:.0f} tokens/s, peak memory "
        f"{mebibytes(peak_bytes)}",
        style="dim",
    )


def _read_standard_input() -> str:
    """Its text, without the end of its last line and without a mark of the byte order."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise UnsupportedError(
            "--prompt - reads standard input, which is closed: give the text itself, or a pipe"
        )
    # as bytes: the terminal's encoding is not that of a file
    given = sys.stdin.buffer.read().removeprefix(BOM_UTF8)
    try:
        return given.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UnsupportedError(
            f"the prompt is not UTF-8: byte {error.start + 1} of standard input is "
            f"{given[error.start]:#04x}"
        ) from error
