"""Generation: what a model generated, and how long it took; without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Generated text with its timings.

    Attributes:
        text: the generated text, without the prompt.
        ids: ids of the generated tokens, without the end-of-text token.
        prompt_tokens: number of tokens in the prompt.
        reason: why generation ended: "stop" at an end-of-text token, "length" at max_new_tokens or
            at the model's last position.
        prefill_s: time to first token (TTFT) in seconds, including the prompt's.
        decode_s: time in seconds for all tokens after the first.
    """

    text: str
    ids: tuple[int, ...]
    prompt_tokens: int
    reason: str
    prefill_s: float
    decode_s: float

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second of prefill."""
        return self.prompt_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Generated tokens per second, not counting the first."""
        return (len(self.ids) - 1) / self.decode_s if self.decode_s else 0.0
