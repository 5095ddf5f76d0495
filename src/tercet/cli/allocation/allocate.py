"""tercet allocate SENSITIVITY --bits 2.6 | --bytes 60MB | --latency h200:1.2ms"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tercet.checkpoints.atomic import write_atomic
from tercet.checkpoints.named_path import demand_no_input
from tercet.checkpoints.sources.open import open_source
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, print_json, say
from tercet.compress.allocate.latency import LatencyLimit, parse_latency
from tercet.compress.allocate.sensitivity_file import Observed, Sensitivity, add_observed, load
from tercet.compress.allocate.solve import Allocation, Budget, solve
from tercet.compress.allocate.write_plan import allocation_plan, plan_yaml
from tercet.compress.plan import load_plan
from tercet.errors import CheckpointError, FormatError, PlanError
from tercet.workflows.allocation.verify import Verified, verify_allocation

if TYPE_CHECKING:
    from tercet.workflows.allocation.latency import Timed

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def allocate_command(
    sensitivity: Annotated[Path, typer.Argument(help="File that `tercet sensitivity` wrote.")],
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            help="Size of the checkpoint's weight files, everything counted: 60MB, 57MiB.",
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(help="Bits per weight of the allocated modules, scales counted: 2.6."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            help="Time of a token of one sequence: 1.2ms, h200:1.2ms, cpu:20ms. Formats are timed "
            "in the decoder once a device, and kept beside the sensitivity file.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Plan to write. Default: SENSITIVITY-BUDGET.yaml.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compress by the plan, and measure the divergence that was predicted, also on "
            "held-out text; what it gave corrects later predictions of the same file.",
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="With --verify, keep the packed checkpoint in this directory."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="With --verify or --latency, the source model. Default: as the file names it."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="With --verify, the calibration data of the sensitivity file."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="With --verify: cpu, cuda or cuda:N. Default: the GPU, if there is one."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the plan if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Choose a format for each module within a budget, and write the plan."""
    if not verify and (checkpoint or calibration or device or (model and latency is None)):
        raise PlanError("--checkpoint, --model, --calibration and --device are about --verify")
    wanted = _Wanted.of(size, bits, latency)
    target = out or Path(f"{sensitivity.name.split('.')[0]}-{wanted.word}.yaml")
    demand_no_input(target, [sensitivity, calibration])
    if target.exists() and not overwrite:
        raise CheckpointError(f"{target}: already exists; choose another --out, or --overwrite")
    _check_replaced(target)
    if checkpoint is not None and (checkpoint.is_file() or any(checkpoint.glob("*"))):
        raise CheckpointError(f"{checkpoint}: already exists; choose another --checkpoint")
    measured = load(sensitivity)
    found, timed = _solve(sensitivity, measured, wanted, model, as_json)
    plan = allocation_plan(measured.identity, found.formats, target.stem)
    counts = found.counts(measured)
    comment = (
        f"{found.size.bits_per_weight:.3f} bits per weight, {found.size.checkpoint_bytes:,} bytes, "
        f"predicted KL {found.predicted_kl_nats:.4f} nats per token"
    )
    comment += f", {_in_words(timed)}" if timed is not None else ""
    write_atomic(target, plan_yaml(plan, comment).encode())
    if not as_json:
        _show(target, found, counts, timed)
    verified = None
    if verify:
        with follow(as_json) as tell:
            verified = verify_allocation(
                measured.identity,
                plan,
                model=model,
                calibration=calibration,
                checkpoint=checkpoint,
                device=device,
                progress=tell,
            )
        kl = verified.windows.kl_nats or 0.0
        add_observed(sensitivity, Observed(sum_nats=found.sum_nats, observed_kl_nats=kl))
    if as_json:
        print_json(_content(target, found, counts, timed, verified))
    elif verified is not None:
        _show_verified(found, verified)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The budget, and what it is called in a file's name."""

    word: str
    budget: Budget | None = None
    limit: LatencyLimit | None = None

    @classmethod
    def of(cls, size: str | None, bits: float | None, latency: str | None) -> "_Wanted":
        """PlanError where it is not one of the three."""
        if sum(one is not None for one in (size, bits, latency)) != 1:
            raise PlanError("give one of --bytes 60MB, --bits 2.6 and --latency 1.2ms")
        if latency is not None:
            return cls(word=latency.replace(":", "-"), limit=parse_latency(latency))
        budget = Budget(size_bytes=None if size is None else parse_bytes(size), bits=bits)
        return cls(word=size or f"{bits:g}", budget=budget)


def _solve(
    path: Path, measured: Sensitivity, wanted: _Wanted, model: str | None, as_json: bool
) -> "tuple[Allocation, Timed | None]":
    if wanted.limit is None:
        assert wanted.budget is not None
        return solve(measured, wanted.budget), None
    # imports the decoder
    from tercet.workflows.allocation.latency import allocate_latency, kept_path

    def config() -> dict[str, Any]:
        return open_source(model or measured.identity.source.reference).config

    with follow(as_json) as tell:
        kept = kept_path(path, wanted.limit)
        timed = allocate_latency(measured, wanted.limit, kept, config, progress=tell)
    return timed.allocation, timed


def _in_words(timed: "Timed") -> str:
    us = timed.predicted_us if timed.measured_us is None else timed.measured_us
    how = "predicted" if timed.measured_us is None else "measured"
    return f"{us / 1e3:.4g} ms a token {how} on {timed.device} behind {timed.context:,} positions"


def _check_replaced(target: Path) -> None:
    """CheckpointError where something else than a plan would be lost."""
    if not target.exists():
        return
    try:
        load_plan(target)
    except (PlanError, FormatError) as error:
        raise CheckpointError(
            f"{target}: is no plan, and --overwrite replaces nothing else: choose another --out"
        ) from error


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 60MB, 1.5GB, 57MiB or 60000000; PlanError where it is none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg]i?)?b)?", text.strip().lower())
    if found is None:
        raise PlanError(f"--bytes {text!r}: give a number of bytes, or 60MB, 1.5GB, 57MiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def _show(target: Path, found: Allocation, counts: dict[str, int], timed: "Timed | None") -> None:
    console.print(
        f"predicted KL {found.predicted_kl_nats:.4f} nats per token, "
        f"{found.size.bits_per_weight:.3f} bits per weight, "
        f"{found.size.checkpoint_bytes:,} bytes",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        "modules: " + ", ".join(f"{count} {form}" for form, count in counts.items()),
        highlight=False,
        soft_wrap=True,
    )
    if timed is not None:
        console.print(_in_words(timed), highlight=False, soft_wrap=True)
    if found.estimated:
        say(f"{found.estimated} costs are the proxy's, scaled by the divergences that are known")
    say(f"{target}: next: tercet compress MODEL --plan {target}")


def _show_verified(found: Allocation, verified: Verified) -> None:
    for where, quality in (("windows", verified.windows), ("held-out", verified.held_out)):
        kl = quality.kl_nats or 0.0
        off = f"{found.predicted_kl_nats / kl - 1:+.1%}" if kl else "-"
        console.print(
            f"{where}: KL {kl:.4f} nats per token measured, {found.predicted_kl_nats:.4f} "
            f"predicted ({off}), perplexity {quality.perplexity:.2f}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"uncompressed: perplexity {verified.teacher_perplexity:.2f} on the held-out windows; "
        f"checkpoint {verified.checkpoint_bytes:,} bytes",
        highlight=False,
        soft_wrap=True,
    )


def _content(
    target: Path,
    found: Allocation,
    counts: dict[str, int],
    timed: "Timed | None",
    verified: Verified | None,
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "plan": str(target),
        "predicted_kl_nats": found.predicted_kl_nats,
        "checkpoint_bytes": found.size.checkpoint_bytes,
        "bits_per_weight": found.size.bits_per_weight,
        "modules": counts,
        "estimated": found.estimated,
    }
    if timed is not None:
        content["latency"] = {
            "device": timed.device,
            "context": timed.context,
            "predicted_us": timed.predicted_us,
            "measured_us": timed.measured_us,
        }
    if verified is not None:
        content["verified"] = {
            "windows": verified.windows.metrics(),
            "held_out": verified.held_out.metrics(),
            "teacher_perplexity": verified.teacher_perplexity,
            "checkpoint_bytes": verified.checkpoint_bytes,
        }
    return content
