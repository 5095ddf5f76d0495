"""fake_quantize: a weight as int8 codes, scales and its dequantized self, for training."""

from tercet.ops.fake_quantize.changed import count_changed
from tercet.ops.fake_quantize.op import FakeQuantized, fake_quantize, fake_quantize_gradient
from tercet.ops.fake_quantize.together import MOST_TOGETHER, fits_together, quantize_together

__all__ = [
    "MOST_TOGETHER",
    "FakeQuantized",
    "count_changed",
    "fake_quantize",
    "fake_quantize_gradient",
    "fits_together",
    "quantize_together",
]
