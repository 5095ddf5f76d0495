"""qat: the rounding that training uses, of weights as they are.

`tercet distill` and `tercet train` train the weights of a rule with this algorithm; under
`tercet compress` it gives the model that such a training begins with.
"""

from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.qat.codes import check_activation, first_step, pack
from tercet.compress.qat.options import Options
from tercet.formats import Scheme, check_weight
from tercet.ops.fake_quantize import fake_quantize


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
