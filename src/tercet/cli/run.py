"""tercet run DIR --prompt TEXT."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, mebibytes, print_json, say
from tercet.records import peak_resident_bytes
from tercet.runtime import load


def run_command(
    directory: Annotated[Path, typer.Argument(help="A packed checkpoint.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What to answer or continue.")],
    max_tokens: Annotated[int, typer.Option(help="Stop after so many tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest p.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    chat: Annotated[
        bool | None, typer.Option(help="Use the chat template; default: where there is one.")
    ] = None,
    ignore_stop: Annotated[
        bool, typer.Option(help="Go on past end-of-text, to measure speed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Generate text from a packed checkpoint; tokens appear as they come."""
    pieces = load(directory).stream(
        prompt,
        chat=chat,
        max_new_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        ignore_stop=ignore_stop,
    )
    for piece in pieces:
        if not as_json:
            typer.echo(piece, nl=False)
    done = pieces.result
    if as_json:
        print_json(
            {
                "text": done.text,
                "ids": list(done.ids),
                "prompt_tokens": done.prompt_tokens,
                "reason": done.reason,
                "prefill_tokens_per_s": done.prefill_tokens_per_s,
                "decode_tokens_per_s": done.decode_tokens_per_s,
                "peak_resident_bytes": peak_resident_bytes(),
            }
        )
        return
    typer.echo()
    say(
        f"[dim]{len(done.ids)} tokens, {done.decode_tokens_per_s:.1f} tokens/s, prompt "
        f"{done.prefill_tokens_per_s:.0f} tokens/s, peak memory "
        f"{mebibytes(peak_resident_bytes())}[/dim]"
    )
