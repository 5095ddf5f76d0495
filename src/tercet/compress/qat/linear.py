"""QatLinear: a linear layer in training."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tercet.compress.ptq.qat import Options
from tercet.compress.qat.sharding.weights import GatheredCodes
from tercet.compress.qat.weight import QuantizedWeight
from tercet.formats import Scheme
from tercet.models.input_transform import fake_quantize_int8
from tercet.ops.linear_packed import linear_packed
from tercet.ops.linear_qat import linear_qat
from tercet.ops.quantize_activation import quantize_activation


class QatLinear(QuantizedWeight):
    """y [.., N] = x^ W^^T + bias, with W^ the quantized weight and x^ the quantized input.

    With "int8_token" both are codes and the product is `linear_qat`'s, whose bits are those of the
    packed checkpoint. Without, it is one of floats; in eval mode and without gradients it is
    `linear_packed`'s, on the packed weight, so that what is evaluated is what is served.

    Args:
        name, scheme, options, dtype: as QuantizedWeight.
        old: the layer whose parameters these are.
    """

    def __init__(
        self, name: str, old: nn.Linear, scheme: Scheme, options: Options, dtype: torch.dtype
    ) -> None:
        super().__init__(name, cast(nn.Parameter, old.weight), scheme, options, dtype)
        self.in_features, self.out_features = old.in_features, old.out_features
        self.bias = cast(nn.Parameter | None, old.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to y [.., N], in x's dtype, or in the values' under autocast."""
        x = x.to(self.dtype)
        if self.products_of_codes:
            self.check_fresh()
            # on its own: torch.compile then quantizes once for all layers that share an input
            x_codes, x_scale, _ = quantize_activation(x.detach())
            codes, scale = self.codes, self.scale
            if isinstance(self.weight, GatheredCodes):
                codes, scale = self.weight.codes, self.weight.scale
            return linear_qat(
                x,
                codes,
                scale,
                self.weight,
                bias=self.bias,
                x_codes=x_codes,
                x_scale=x_scale,
                weight_gradient=self.options.weight_gradient,
                seed=self.seed,
            )
        if self.serves:
            activation = "none" if self.options.activation is None else "int8"
            return linear_packed(x, self.prepare_product(), self.bias, activation=activation)
        if self.options.activation is not None:
            x = fake_quantize_int8(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, self.trainable_values(), bias)
