"""How to continue a prompt."""

from dataclasses import dataclass

from tercet.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of one generation; each is checked when made.

    Attributes:
        max_new_tokens: stop after so many, at the latest.
        temperature: 0 takes the likeliest token; above, tokens are drawn from softmax(logits / t).
        top_k: draw among the k likeliest only.
        top_p: draw among the fewest tokens whose probabilities reach this sum (arXiv:1904.09751).
        min_p: draw among tokens of at least this part of the likeliest one's probability
            (arXiv:2407.01082).
        repetition_penalty: divides the positive logits of tokens seen before, and multiplies the
            negative ones (arXiv:1909.05858); 1 does nothing.
        seed: of the draws; None takes a new one each time.
        ignore_stop: go on past end-of-text tokens, to measure speed.
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
        _check("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, 0 <= self.temperature < 100, "from 0 to 100")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "at least 1")
        _check("top_p", self.top_p, self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]")
        _check("min_p", self.min_p, self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0 < penalty < 100, "above 0 and below 100")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**63, "in [0, 2^63)")


def _check(name: str, value: float | None, allowed: bool, rule: str) -> None:
    if not allowed:
        raise UnsupportedError(f"{name} {value}: must be {rule}")
