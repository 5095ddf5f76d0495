"""Recipe: how one student is made; and those that are."""

from dataclasses import dataclass
from typing import Any

from tercet.compress.plan import Plan
from tercet.compress.qat.plan import training_plan


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one student is made.

    Attributes:
        name: of the student.
        body, embedding: formats of the layers' linears, and of the embedding with its tied head.
        method: of `fake_quantize`, for the body.
        rate: the highest learning rate of weights; vectors and steps have a tenth of it.
        embedding_share: of that rate, for the embedding: most of its rows are of rare tokens, which
            Adam would move as far as all others, at random.
        share: of the time.
        warmup: share of its own time in which the rate rises.
        fall: the rate falls with this power of the time that is left: 1 for linearly.
    """

    name: str
    body: str
    embedding: str
    method: str
    rate: float
    share: float
    embedding_share: float = 0.2
    warmup: float = 0.03
    fall: float = 1.0

    def plan(self) -> Plan:
        """As a plan of `tercet distill`."""
        rules: list[dict[str, Any]] = [
            {"match": "*embed_tokens", "format": self.embedding, "algorithm": "qat"},
            {"match": "lm_head", "format": self.embedding, "algorithm": "qat"},
            {
                "match": "*.layer*.*",
                "format": self.body,
                "algorithm": "qat",
                "options": {"method": self.method},
            },
        ]
        return training_plan(Plan.model_validate({"name": self.name, "rules": rules}))

    def rate_at(self, done: float) -> float:
        """The learning rate when that share of the time is over."""
        if done < self.warmup:
            return self.rate * done / self.warmup
        return self.rate * max(0.0, (1 - done) / (1 - self.warmup)) ** self.fall


RECIPES = (
    Recipe(
        name="nonary-g64", body="nonary-g64", embedding="int8-g64", method="learned",
        rate=3e-4, share=0.20,
    ),
    Recipe(
        name="ternary-g64", body="ternary-g64", embedding="int4-g64", method="stretched",
        rate=1.75e-3, share=0.52, fall=2.0,
    ),
    Recipe(
        name="ternary-20x", body="ternary-channel", embedding="ternary-channel",
        method="stretched", rate=1.5e-3, share=0.28, embedding_share=0.5,
        fall=2.0,
    ),
)  # fmt: skip
