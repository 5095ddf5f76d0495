"""swap in a training loop of the user's own: no weight is left out, and no stale code is read."""

import copy
import io
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM

from tercet.compress.qat.swap import Quantized, find_quantized, finish_gradients, refresh, swap
from tercet.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*slow path"),
    # Python 3.12 on forking; the children use one thread each
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
IDS = (torch.arange(48).view(4, 12) * 7) % 64
FORMATS = ["nonary", "nonary-a8", "ternary", "ternary-a8"]


def opened(model: Path, form: str) -> tuple[Any, Quantized]:
    found = LlamaForCausalLM.from_pretrained(model)
    return found, swap(found, form)


def take_gradients(model: Any, quantized: Quantized, ids: Tensor = IDS) -> dict[str, Tensor]:
    model(input_ids=ids, labels=ids).loss.backward()
    finish_gradients(quantized)
    return {name: p.grad for name, p in find_parameters(model) if p.grad is not None}


def find_parameters(model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters()]


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_in_eval_mode_learns_as_well(form: str, model: Path) -> None:
    # as from_pretrained gives it
    network, quantized = opened(model, form)
    assert not network.training
    refresh(quantized)
    found = take_gradients(network, quantized)
    assert found.keys() == dict(network.named_parameters()).keys()
    trained, again = opened(model, form)
    trained.train()
    refresh(again)
    for name, wanted in take_gradients(trained, again).items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", FORMATS)
def test_stale_codes_are_not_read(form: str, model: Path) -> None:
    network, quantized = opened(model, form)
    with pytest.raises(UnsupportedError, match=r"no codes yet: call refresh\(quantized\)"):
        network(IDS)
    refresh(quantized)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    with torch.no_grad():
        before = network(IDS).logits
    take_gradients(network, quantized)
    optimizer.step()
    for train in (True, False):
        network.train(train)
        with pytest.raises(UnsupportedError, match=r"was changed .* call refresh"):
            network(IDS)
    refresh(quantized)
    with torch.no_grad():
        assert not torch.equal(network(IDS).logits, before)
    other, its = opened(model, form)
    refresh(its)
    other.load_state_dict(network.state_dict())
    with pytest.raises(UnsupportedError, match="was changed"), torch.no_grad():
        other(IDS)
    refresh(its)
    with torch.no_grad():
        assert torch.equal(other(IDS).logits, network(IDS).logits)


@pytest.mark.parametrize("form", FORMATS)
def test_copies_learn_and_know_their_codes(form: str, model: Path) -> None:
    network, quantized = opened(model, form)
    refresh(quantized)
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    wanted = take_gradients(network, quantized)
    copies = [copy.deepcopy(network), torch.load(file, weights_only=False)]
    for each in copies:
        own = find_quantized(each)
        assert own.keys() == quantized.keys()
        assert not {id(m) for m in own.values()} & {id(m) for m in quantized.values()}
        with torch.no_grad():
            assert torch.equal(each(IDS).logits, network(IDS).logits)
        each.zero_grad()
        found = take_gradients(each, own)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with torch.no_grad():
        next(iter(quantized.values())).weight.mul_(2)
    with pytest.raises(UnsupportedError, match="was changed"):
        copy.deepcopy(network)(IDS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["nonary", "ternary-a8"])
def test_another_dtype_is_quantized_anew(form: str, dtype: torch.dtype, model: Path) -> None:
    network, quantized = opened(model, form)
    refresh(quantized)
    with torch.no_grad():
        before = network(IDS).logits
    network.to(dtype)
    with pytest.raises(UnsupportedError, match="no codes yet"):
        network(IDS)
    if dtype == torch.float64:
        network.float()
    refresh(quantized)
    with torch.no_grad():
        after = network(IDS).logits
    assert after.dtype == (torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
    limit = 0.2 if dtype == torch.bfloat16 else 1e-6
    assert (after.float() - before).abs().max() <= limit * before.abs().max()
    assert take_gradients(network, quantized).keys() == dict(network.named_parameters()).keys()


def work(model: Path, out: Path, form: str, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    network, quantized = opened(model, form)
    network.train()
    parallel = DistributedDataParallel(network)
    found: list[dict[str, Tensor]] = []
    for _ in range(3):
        refresh(quantized)
        found.append(take_gradients(parallel, quantized, IDS.chunk(2)[rank]))
        with torch.no_grad():
            for _, p in find_parameters(network):
                assert p.grad is not None
                p -= 0.1 * p.grad
                p.grad = None
    torch.save(found, out / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("form", ["nonary", "ternary-a8"])
def test_data_parallel_processes_stay_alike(form: str, model: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(model, tmp_path, form, rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(600)
        assert rank.exitcode == 0
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    network, quantized = opened(model, form)
    network.train()
    for mine, its in zip(one, other, strict=True):
        refresh(quantized)
        wanted = take_gradients(network, quantized)
        assert mine.keys() == its.keys() == wanted.keys()
        for name, gradient in wanted.items():
            assert torch.equal(mine[name], its[name]), name
            scale = float(gradient.abs().max())
            assert float((mine[name] - gradient).abs().max()) <= 1e-3 * scale, name
        with torch.no_grad():
            for name, p in find_parameters(network):
                p -= 0.1 * mine[name]
                p.grad = None
