"""swap in a training loop of the user's own: no weight is left out, and no stale code is read."""

import copy
import io
import subprocess
import sys
from pathlib import Path

import own_loop
import pytest
import torch
from own_loop import IDS, PARALLEL, opened, take_gradients, take_step

from tercet.compress.qat.swap import find_quantized, refresh
from tercet.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*slow path"),
]
FORMATS = ["nonary", "nonary-a8", "ternary", "ternary-a8"]


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


def test_data_parallel_processes_stay_alike(model: Path, tmp_path: Path) -> None:
    # started anew: torch's threads do not survive a fork
    ranks = [
        subprocess.Popen([sys.executable, own_loop.__file__, str(rank), model, tmp_path])
        for rank in range(2)
    ]
    assert [rank.wait(600) for rank in ranks] == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for form in PARALLEL:
        network, quantized = opened(model, form)
        network.train()
        for mine, its in zip(one[form], other[form], strict=True):
            refresh(quantized)
            wanted = take_gradients(network, quantized)
            assert mine.keys() == its.keys() == wanted.keys()
            for name, gradient in wanted.items():
                assert torch.equal(mine[name], its[name]), name
                scale = float(gradient.abs().max())
                assert float((mine[name] - gradient).abs().max()) <= 1e-3 * scale, name
            take_step(network, mine)
