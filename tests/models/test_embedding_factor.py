"""What Gemma's embedding multiplies its rows by goes along with whatever takes its place."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2TextScaledWordEmbedding

from tercet.compress.plan import Plan
from tercet.compress.qat.embedding import QatEmbedding
from tercet.compress.qat.swap import refresh, swap
from tercet.errors import UnsupportedError
from tercet.models.embedding_factor import embedding_factor


class Shifted(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def test_the_factor_of_a_module() -> None:
    assert embedding_factor(nn.Embedding(4, 8), torch.float32) == 1.0
    scaled = Gemma2TextScaledWordEmbedding(4, 8, 0, embed_scale=3584**0.5)
    assert embedding_factor(scaled, torch.float32) == pytest.approx(59.8665, rel=1e-6)
    assert embedding_factor(scaled, torch.bfloat16) == 59.75
    with pytest.raises(UnsupportedError, match="Shifted is an embedding that does more than look"):
        embedding_factor(Shifted(4, 8), torch.float32)


@pytest.mark.parametrize("training", [True, False])
def test_training_scales_the_rounded_rows(training: bool) -> None:
    old = Gemma2TextScaledWordEmbedding(40, 32, 0, embed_scale=32**0.5)
    rule = {"match": "*", "format": "int8-channel", "algorithm": "qat"}
    plan = Plan.model_validate({"name": "one", "rules": [rule]})
    ids, exact = torch.arange(40), old(torch.arange(40)).detach()
    (module,) = (quantized := swap(nn.Sequential(old), plan)).values()
    assert isinstance(module, QatEmbedding)
    refresh(quantized)
    found = module.train(training)(ids).detach()
    # half a step of 255 levels of each row
    assert ((found - exact).abs() <= exact.abs().amax(1, keepdim=True) / 250).all()
    assert not torch.equal(found, exact)
