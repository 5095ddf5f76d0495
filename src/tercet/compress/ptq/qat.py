"""qat: the rounding that training uses, of weights as they are.

`tercet distill` and `tercet train` train the weights of a rule with this algorithm; under
`tercet compress` it gives the model that such a training begins with.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.ptq.qat_codes import check_activation, first_step, pack
from tercet.formats import Scheme, check_weight
from tercet.ops.fake_quantize import fake_quantize


class Options(BaseModel):
    """How a weight is quantized while it trains, and what its layer does to its input.

    Attributes:
        method: of `fake_quantize`: scales from the weights ("absmean", "absmax"), or learned
            ("learned", LSQ, arXiv:1902.08153; "stretched", SEQ of ParetoQ, arXiv:2502.02631).
        activation: "int8_token": the input is quantized to 8 bits a token, and products are of
            codes, which needs one scale a channel or tensor; None: it stays as it is.
        weight_gradient: of `linear_qat`, with quantized inputs: "float", or "int8" rounded at
            random.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["absmean", "absmax", "learned", "stretched"] = "learned"
    activation: Literal["int8_token"] | None = None
    weight_gradient: Literal["float", "int8"] = "float"


def _quantize_group(
    weights: dict[str, Tensor], _: Statistics | None, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    results: dict[str, Quantized] = {}
    for name, weight in weights.items():
        check_weight(weight, name)
        check_activation(name, scheme, options.activation)
        step = first_step(weight, scheme, options.method)
        made = fake_quantize(weight, step, scheme=scheme.name, method=options.method)
        packed = pack(made.codes, made.scale, scheme, options.method)
        results[name] = Quantized(packed=packed, activation=options.activation)
    return results


ALGORITHM = Algorithm(name="qat", options=Options, needs_inputs=False, quantize=_quantize_group)
