"""Options of the algorithm "qat": how a weight is quantized while it trains."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


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
