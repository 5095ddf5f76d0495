"""What an export and its verification found, and the same as records."""

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.errors import UnsupportedError
from tercet.records import Environment, Outcome, Record


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModuleReport(_Frozen):
    """One packed module there.

    Attributes:
        module: its name.
        format: Tercet's name of its format.
        kind: the target's.
        bits_per_weight: there.
        bit_equal: whether the target's own library reads our values, every bit; None unverified.
    """

    module: str
    format: str
    kind: str
    bits_per_weight: float
    bit_equal: bool | None = None


class ClientReport(_Frozen):
    """What the real client computed; errors are |a - b|_rms / |b|_rms over all logits.

    Attributes:
        client: distribution and version.
        tokens: the prompt.
        error: of the client's logits to ours.
        twin_error: of the same model in float32, in the same client, to ours.
        activation_error: that rounding the inputs to int8 as the client does makes in our model.
        rounded_error: of the client's logits to our model's with inputs rounded in that way; None
            where it does not round.
        bound: what `error` may be: MARGIN times the sum of the two, and 2e-5. Of the twin's error
            counts what arithmetic can be the reason of: 1 %, and the error by rounded inputs.
        top1_agreement: share of positions with the same most likely token.
        greedy, our_greedy: continuations.
        text, our_text: the same as text; None without a tokenizer.
    """

    client: str
    tokens: tuple[int, ...]
    error: float
    twin_error: float
    activation_error: float
    rounded_error: float | None
    bound: float
    top1_agreement: float
    greedy: tuple[int, ...]
    our_greedy: tuple[int, ...]
    text: str | None = None
    our_text: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the logits are within the bound."""
        return self.error <= self.bound


class ExportReport(_Frozen):
    """An export, and what its verification found.

    Attributes:
        directory: the packed checkpoint.
        model: what was compressed.
        format: that most of its modules have.
        target, out: where it went.
        size_bytes: of everything written.
        packed_size_bytes: of the checkpoint's weight files.
        modules: every packed module.
        differences: a line for each norm, bias, unpacked weight or setting that did not arrive as
            it was; None unverified, or where the target gives none to read back.
        client: what the real client computed; None unverified.
    """

    directory: str
    model: str
    format: str
    target: str
    out: str
    size_bytes: int
    packed_size_bytes: int
    modules: tuple[ModuleReport, ...]
    differences: tuple[str, ...] | None = None
    client: ClientReport | None = None

    @property
    def passed(self) -> bool:
        """True unless verification found a difference."""
        equal = all(module.bit_equal is not False for module in self.modules)
        passed = self.client is None or self.client.passed
        return equal and not self.differences and passed

    @property
    def main_module(self) -> ModuleReport:
        """A module of the kind that most modules have."""
        kind = Counter(module.kind for module in self.modules).most_common(1)[0][0]
        return next(module for module in self.modules if module.kind == kind)


def model_name(checkpoint: PackedCheckpoint) -> str:
    """What the compressed model was called."""
    manifest = checkpoint.manifest
    return Path(manifest.source.reference).name if manifest else checkpoint.directory.name


def record(report: ExportReport) -> Record:
    """A verified export as a record of kind "export".

    Raises:
        UnsupportedError: it was not verified.
    """
    client = report.client
    if client is None:
        raise UnsupportedError("an export that was not verified is no measurement: use --verify")
    main = report.main_module
    wrong = sum(module.bit_equal is False for module in report.modules)
    settings = {
        "model": report.model,
        "format": report.format,
        "kind": main.kind,
        "client": client.client,
        "text": client.text,
        "our_text": client.our_text,
    }
    metrics = {
        "modules": float(len(report.modules)),
        "bit_equal_modules": float(len(report.modules) - wrong),
        "logits_error": client.error,
        "twin_error": client.twin_error,
        "activation_error": client.activation_error,
        **({} if client.rounded_error is None else {"rounded_error": client.rounded_error}),
        "bound": client.bound,
        "top1_agreement": client.top1_agreement,
        "greedy_equal_tokens": float(_same(client.greedy, client.our_greedy)),
        "greedy_tokens": float(len(client.our_greedy)),
        "bits_per_weight": main.bits_per_weight,
        "size_bytes": float(report.size_bytes),
        "packed_size_bytes": float(report.packed_size_bytes),
    }
    return Record(
        kind="export",
        subject=report.target,
        settings=dict(settings),
        metrics=metrics if report.passed else {},
        outcome=Outcome.OK if report.passed else Outcome.WRONG,
        reason=None if report.passed else _failure(report),
        environment=Environment.here(),
    )


def dominant_format(checkpoint: PackedCheckpoint) -> str:
    """The format that most packed modules have, and their inputs' where it is quantized."""
    found = Counter((entry.format, entry.activation) for entry in checkpoint.modules.values())
    (kind, activation), _ = found.most_common(1)[0]
    return kind if activation is None else f"{kind}, {activation} inputs"


def refusal(directory: str | Path, target: str, reason: str) -> Record:
    """A refused export as a record: FAILED, with the reason that was given."""
    checkpoint = open_packed(directory)
    return Record(
        kind="export",
        subject=target,
        settings={"model": model_name(checkpoint), "format": dominant_format(checkpoint)},
        outcome=Outcome.FAILED,
        reason=reason,
        environment=Environment.here(),
    )


def _same(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _failure(report: ExportReport) -> str:
    wrong = [module.module for module in report.modules if module.bit_equal is False]
    if wrong:
        return f"{len(wrong)} modules are not bit-equal, the first {wrong[0]}"
    if report.differences:
        return f"{len(report.differences)} unpacked parts differ: {report.differences[0]}"
    client = report.client
    assert client is not None
    found = f"logits are off by {client.error:.3g}, {client.bound:.3g} is the client's arithmetic"
    if 2 * client.twin_error > client.bound:
        found += f"; the same model in float32 is off by {client.twin_error:.3g} there, too"
    return found
