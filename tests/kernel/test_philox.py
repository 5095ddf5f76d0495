"""Philox: the known answers of Random123, and what its uniform numbers look like."""

import torch

from tercet.kernel.device.philox import coarse_uniform, philox, uniform

# kat_vectors of Random123, philox4x32 10: counter, key, answer
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


def test_known_answers() -> None:
    for counter, key, answer in KNOWN:
        assert philox(words(key), words(counter)) == words(answer)


def test_uniform_numbers() -> None:
    u = uniform(torch.tensor(7), 300, 401)
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() < 1
    assert torch.equal(u * 2**23, (u * 2**23).round()), "23 bits"
    # 120,300 draws: the mean is off by 0.0008 at one standard deviation
    assert abs(u.mean().item() - 0.5) < 0.0033
    assert abs(u.var().item() - 1 / 12) < 0.001
    neighbours = ((u[:, 1:] - 0.5) * (u[:, :-1] - 0.5)).mean().item() * 12
    assert abs(neighbours) < 0.012, "neighbours are not correlated"
    assert u.unique().numel() > 119_000


def test_first_word_of_the_first_block() -> None:
    """Element [0, 0] under seed 0 is word 0 of the first known answer, [0, 5] word 1 of block 1."""
    u = uniform(torch.tensor(0), 1, 8)
    assert u[0, :4].tolist() == [(int(w, 16) >> 9) * 2**-23 for w in KNOWN[0][2].split()]
    one = philox(words("0 0"), words("1 0 0 0"))
    assert u[0, 5].item() == (int(one[1]) >> 9) * 2**-23


def test_coarse_numbers_are_the_halves_of_words() -> None:
    """Eight of a block, the lower half first; a row of 13 columns has two blocks of its own."""
    u = coarse_uniform(torch.tensor(9), 2, 13)
    assert u.shape == (2, 13)
    for row, column in ((0, 0), (0, 7), (0, 12), (1, 1), (1, 8)):
        block = philox(words("9 0"), words(f"{row * 2 + column // 8:x} 0 0 0"))
        word = int(block[column % 8 // 2])
        half = word >> 16 if column % 2 else word & 0xFFFF
        assert u[row, column].item() == half / 65536
    many = coarse_uniform(torch.tensor(5), 300, 401)
    assert abs(many.mean().item() - 0.5) < 0.003
    assert many.min() >= 0
    assert many.max() < 1
