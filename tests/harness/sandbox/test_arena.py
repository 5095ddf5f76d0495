"""Memory that two processes share: each takes from its half, and neither is taken at its word."""

import mmap
import os

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.harness.sandbox.arena import Arena, OwnMemory, attach
from tercet.harness.sandbox.guard import Zones, broken_zones, describe, view

SIZE = 1 << 22


@pytest.fixture
def arena():
    made = Arena("cpu", SIZE)
    yield made
    made.close()


def test_both_sides_see_the_same_bytes(arena: Arena) -> None:
    other = attach(arena.handle)
    mine, theirs = Zones(arena.memory), Zones(other)
    x, placement = mine.described("x", torch.empty(3, 5).t())
    x.copy_(torch.arange(15.0).reshape(5, 3))
    seen = view(other, describe(x, placement))
    assert torch.equal(seen, x)
    assert seen.stride() == (1, 5)
    y = theirs.place("y", torch.empty(4, dtype=torch.bfloat16))
    assert arena.memory.find(y.fill_(2)) is None or arena.memory.find(y) != other.find(y)
    offset = other.find(y)
    assert offset is not None
    assert offset >= SIZE // 2
    assert broken_zones(arena.memory, theirs.placed) == []
    y.untyped_storage()[theirs.placed[0]["start"] - 1] = 0
    assert broken_zones(arena.memory, theirs.placed) == ["1 bytes written past the start of y"]


def test_what_is_reset_is_taken_again(arena: Arena) -> None:
    first = arena.memory.take(1000)
    second = arena.memory.take(1000)
    assert second.offset == first.offset + 1024
    arena.memory.reset()
    assert arena.memory.take(1).offset == first.offset


def test_no_more_than_its_half(arena: Arena) -> None:
    arena.memory.take(SIZE // 2)
    with pytest.raises(MemoryError, match="1 bytes more than the 2,097,152"):
        arena.memory.take(1)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (SIZE - 2, 4), (0, SIZE + 1), (4, -2)])
def test_a_forged_place_is_refused(arena: Arena, offset: int, size: int) -> None:
    with pytest.raises(UnsupportedError, match="outside of the arena"):
        arena.memory.at(offset, size)


def test_a_forged_tensor_is_refused(arena: Arena) -> None:
    x, placement = Zones(arena.memory).described("x", torch.empty(4))
    forged = {**describe(x, placement), "shape": [1 << 20]}
    with pytest.raises(ValueError, match="larger than its memory"):
        view(arena.memory, forged)


def test_its_file_cannot_be_cut_off(arena: Arena) -> None:
    assert arena.descriptor is not None
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, mmap.PAGESIZE)


def test_own_memory_finds_what_lies_in_it() -> None:
    memory = OwnMemory("cpu")
    x = Zones(memory).place("x", torch.empty(4))
    assert memory.find(x) == x.data_ptr()
    assert memory.find(torch.empty(4)) is None


def test_a_tensor_is_found_while_another_thread_takes_memory() -> None:
    memory = OwnMemory("cpu")

    class Asked(torch.Tensor):
        """Asked for its size, it lets another call take memory, as a thread would at that point."""

        def numel(self) -> int:
            memory.take(64)
            return 0

    memory._blocks = {start: torch.empty(0).as_subclass(Asked) for start in (0, 1)}
    assert memory.find(torch.empty(4)) is None
    assert len(memory._blocks) > 2
