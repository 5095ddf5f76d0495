"""Forward passes of students: nothing on the way is read from the device."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, masking_utils

from tercet.compress.qat.positions import one_sequence_a_row
from tercet.compress.qat.student import Student


class Reads(TorchDispatchMode):
    """Counts what waits for a GPU: numbers of a tensor that the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
        )
        return func(*args, **kwargs or {})


def test_a_forward_pass_reads_nothing_and_finds_the_same() -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).train()
    student = Student(model, {}, torch.float32)
    ids = torch.arange(24).reshape(2, 12) % 32
    with Reads() as alone:
        wanted = model(input_ids=ids, use_cache=False).logits
    assert alone.count > 0, "transformers reads nothing any more: positions.py has no use"
    with Reads() as reads:
        found = student.logits(ids)
        hidden = student.hidden(ids)
    assert reads.count == 0
    assert torch.equal(found, wanted)
    assert torch.equal(hidden @ student.head().T, wanted)


def test_transformers_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])

    def found() -> Any:
        return masking_utils.find_packed_sequence_indices(packed)

    before = found()
    # as in a CUDA graph
    monkeypatch.setattr(masking_utils, "is_tracing", lambda _=None: True)
    with one_sequence_a_row():
        assert found() is None
        assert not masking_utils.is_tracing(None)
    assert masking_utils.is_tracing(None)
    monkeypatch.undo()
    assert torch.equal(found(), before)
    # a transformers without them
    for name in ("find_packed_sequence_indices", "is_tracing"):
        monkeypatch.delattr(masking_utils, name)
    with one_sequence_a_row():
        assert not hasattr(masking_utils, "find_packed_sequence_indices")
        assert not hasattr(masking_utils, "is_tracing")
