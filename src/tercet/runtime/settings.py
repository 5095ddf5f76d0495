"""Settings of text generation."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from tercet.errors import UnsupportedError, unknown_name


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of one generation; UnsupportedError for a value out of range.

    Attributes:
        max_new_tokens: maximum number of tokens to generate.
        temperature: 0 picks the most probable token (greedy); t > 0 samples from
            softmax(logits / t).
        top_k: top-k sampling: keep only the k most probable tokens; None keeps all.
        top_p: nucleus sampling: keep the smallest set of tokens with total probability p
            (arXiv:1904.09751); None keeps all.
        min_p: keep only tokens with at least min_p times the highest token probability
            (arXiv:2407.01082); None keeps all.
        repetition_penalty: divides the positive logits of tokens that occurred before, and
            multiplies their negative logits (arXiv:1909.05858); 1 changes nothing.
        seed: RNG seed for sampling; None for a new seed each time.
        ignore_stop: do not stop at end-of-text tokens; for speed measurements.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_stop: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "seed"):
            _check_type(name, getattr(self, name), Integral, "a whole number")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _check_type(name, getattr(self, name), Real, "a number")
        _check("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, 0 <= self.temperature < 100, "from 0 to 100")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "at least 1")
        _check("top_p", self.top_p, self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]")
        _check("min_p", self.min_p, self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0 < penalty < 100, "above 0 and below 100")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**63, "in [0, 2^63)")


def read_settings(values: Mapping[str, Any]) -> GenerationSettings:
    """The settings of these names; UnsupportedError for a name or a value that is none."""
    known = [each.name for each in fields(GenerationSettings)]
    for name in values:
        if name not in known:
            raise UnsupportedError(unknown_name("setting", name, known))
    return GenerationSettings(**values)


def _check_type(name: str, value: object, kind: type, allowed: str) -> None:
    optional = name in ("top_k", "top_p", "min_p", "seed")
    if optional and value is None:
        return
    # True counts as 1 elsewhere, which nobody means
    if isinstance(value, bool) or not isinstance(value, kind):
        none = " or None" if optional else ""
        raise UnsupportedError(
            f"{name} {value!r} of type {type(value).__name__}: must be {allowed}{none}"
        )


def _check(name: str, value: float | None, allowed: bool, rule: str) -> None:
    if not allowed:
        raise UnsupportedError(f"{name} {value}: must be {rule}")
