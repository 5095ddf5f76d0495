"""Arena: memory of the judge's, in which a candidate's process computes.

The judge makes it and puts inputs there; the process maps the same pages, takes from their other
half whatever an implementation allocates, and says where. So the judge sees for itself what was
written and what was left alone. On a CPU the pages are an anonymous file, on a GPU an allocation
that CUDA IPC shares. `OwnMemory` is for code that runs in the judge's process.
"""

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.sandbox.pages import ALIGN, anonymous_file, whole_pages

_KEPT_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some bytes of a memory: where they are, and a tensor of uint8 with a storage of its own."""

    offset: int
    octets: Tensor


class Memory(Protocol):
    """Where tensors of a judged call lie."""

    @property
    def device(self) -> torch.device:
        """Of its tensors."""
        ...

    def take(self, size: int) -> Block:
        """`size` fresh bytes, at a multiple of 256."""
        ...

    def at(self, offset: int, size: int) -> Tensor:
        """Bytes that were taken, here or by the other process. UnsupportedError outside of it."""
        ...

    def find(self, tensor: Tensor) -> int | None:
        """The offset of a tensor's first element; None where it lies elsewhere."""
        ...

    def reset(self) -> None:
        """Everything that was taken is free again."""
        ...


class OwnMemory:
    """Ordinary memory of this process; an offset is an address."""

    def __init__(self, device: str) -> None:
        self.device, self._blocks = torch.device(device), dict[int, Tensor]()

    def take(self, size: int) -> Block:
        """As Memory.take."""
        octets = torch.empty(size, dtype=torch.uint8, device=self.device)
        self._blocks[octets.data_ptr()] = octets
        return Block(offset=octets.data_ptr(), octets=octets)

    def at(self, offset: int, size: int) -> Tensor:
        """As Memory.at."""
        return self._blocks[offset][:size]

    def find(self, tensor: Tensor) -> int | None:
        """As Memory.find."""
        address = tensor.data_ptr()
        # a copy: another thread may take some meanwhile
        blocks = list(self._blocks.items())
        inside = (start <= address < start + octets.numel() for start, octets in blocks)
        return address if any(inside) else None

    def reset(self) -> None:
        """As Memory.reset."""
        self._blocks.clear()


class SharedMemory:
    """One side's view of pages that two processes map: it takes from its half, and reads both."""

    def __init__(
        self,
        view: Callable[[int, int], Tensor],
        size: int,
        address: int,
        *,
        second_half: bool,
        free: Callable[[int, int], None],
    ) -> None:
        self._view, self._size, self._address, self._free = view, size, address, free
        self.device = view(0, 1).device
        self._first = size // 2 if second_half else 0
        self._last = self._first + size // 2
        self._next, self._taking = self._first, threading.Lock()

    def take(self, size: int) -> Block:
        """As Memory.take."""
        with self._taking:
            offset = self._next
            if offset + size > self._last:
                has = self._last - self._first
                raise MemoryError(f"{size:,} bytes more than the {has:,} that a judged call has")
            self._next = offset + -(-size // ALIGN) * ALIGN
        return Block(offset=offset, octets=self._view(offset, size))

    def at(self, offset: int, size: int) -> Tensor:
        """As Memory.at."""
        if not 0 <= offset <= offset + size <= self._size:
            raise UnsupportedError(f"bytes {offset} to {offset + size} are outside of the arena")
        return self._view(offset, size)

    def find(self, tensor: Tensor) -> int | None:
        """As Memory.find."""
        offset = tensor.data_ptr() - self._address
        return offset if 0 <= offset < self._size else None

    def reset(self) -> None:
        """As Memory.reset."""
        self._free(self._first, self._next - self._first)
        self._next = self._first


class Arena:
    """The judge's side of a shared memory.

    Args:
        device: "cpu" or "cuda".
        size: in bytes, half of it for each side. A CPU's pages cost nothing before they are used.
        file: on a CPU, an anonymous file of that size which is there already.

    Attributes:
        memory: what the judge takes from.
        descriptor: of the file that a child must inherit; None on a GPU.
        handle: what the child's `attach` takes.
    """

    def __init__(self, device: str, size: int, file: int | None = None) -> None:
        size = whole_pages(size)
        self.descriptor: int | None = None
        self._counter: tuple[bytes, int] | None = None
        if device == "cpu":
            self.descriptor = anonymous_file(size) if file is None else file
            self.handle: dict[str, Any] = {"device": "cpu", "size": size, "file": self.descriptor}
            self.memory = _map_file(self.descriptor, size, second_half=False)
            return
        whole = torch.empty(size, dtype=torch.uint8, device=device)
        storage: Any = whole.untyped_storage()
        shared: list[Any] = list(storage._share_cuda_())
        plain = [each.hex() if isinstance(each, bytes) else each for each in shared]
        self.handle = {"device": device, "size": size, "shared": plain}
        self._counter = (shared[4], shared[5])
        self.memory = _over_cuda(whole, second_half=False)

    def close(self) -> None:
        """Frees the file; the pages go when nobody maps them any more. Call it last."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        if self._counter is not None:
            # of who maps the allocation: a child that was ended could not count itself out
            storage: Any = torch.UntypedStorage
            storage._release_ipc_counter(*self._counter, device=self.memory.device)
            self._counter = None


def attach(handle: dict[str, Any]) -> SharedMemory:
    """The child's side of an `Arena`, by its handle."""
    if handle["device"] == "cpu":
        return _map_file(handle["file"], handle["size"], second_half=True)
    # of what _share_cuda_ gave, these are bytes: the handles of memory, counter and event
    shared = [bytes.fromhex(each) if isinstance(each, str) else each for each in handle["shared"]]
    torch.cuda.init()
    storage: Any = torch.UntypedStorage._new_shared_cuda(*shared)  # pyright: ignore[reportPrivateUsage]
    whole = torch.empty(0, dtype=torch.uint8, device=handle["device"]).set_(storage)
    return _over_cuda(whole, second_half=True)


def _map_file(descriptor: int, size: int, *, second_half: bool) -> SharedMemory:
    pages = mmap.mmap(descriptor, size)
    whole = torch.frombuffer(pages, dtype=torch.uint8)

    def view(offset: int, size: int) -> Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(pages, dtype=torch.uint8, offset=offset, count=size)

    def free(first: int, used: int) -> None:
        if used > _KEPT_BYTES:
            page = mmap.PAGESIZE
            pages.madvise(mmap.MADV_REMOVE, -(-first // page) * page, used // page * page)

    return SharedMemory(view, size, whole.data_ptr(), second_half=second_half, free=free)


class _Span:
    """Some bytes of a GPU's memory, for torch to make a tensor of; keeps the whole alive."""

    def __init__(self, whole: Tensor, offset: int, size: int) -> None:
        self._whole = whole
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (whole.data_ptr() + offset, False),
            "version": 3,
        }


def _over_cuda(whole: Tensor, *, second_half: bool) -> SharedMemory:
    def view(offset: int, size: int) -> Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8, device=whole.device)
        return torch.as_tensor(_Span(whole, offset, size), device=whole.device)

    def free(first: int, used: int) -> None:
        del first, used

    return SharedMemory(view, whole.numel(), whole.data_ptr(), second_half=second_half, free=free)
