"""RankSource: the weights of one rank of tensor parallelism, of a source of whole ones."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.models.architecture import Architecture
from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.tensor_parallel.cut import (
    MOST_RANKS,
    check_cut,
    cut_modules,
    describe_fitting,
)
from tercet.models.decoder.tensor_parallel.cut_weight import (
    cut_entry,
    cut_packed,
    find_misfit,
    take_rows,
)
from tercet.models.weight_source import MappedSource, WeightSource


class RankSource:
    """A WeightSource of one rank's parts: cut modules in their smaller shapes, others whole.

    The bias of a product whose columns are cut is 0 on all ranks but the first, so that their sum
    has it once.

    Args:
        source: the whole weights.
        architecture: of the decoder.
        config: of the whole decoder.
        rank: whose part.
        world_size: how many ranks there are.

    Raises:
        UnsupportedError: the decoder, or a format of its weights, cannot be cut over so many ranks.
    """

    def __init__(
        self,
        source: WeightSource,
        architecture: Architecture,
        config: DecoderConfig,
        rank: int,
        world_size: int,
    ) -> None:
        check_cut(architecture, config, world_size)
        _check_formats(source, architecture, config, world_size)
        self._source, self._first = source, rank == 0
        self._view = source.view if isinstance(source, MappedSource) else source.tensor
        self._cuts = cut_modules(architecture, config, rank, world_size)
        self._modules = dict(source.modules)
        for name in self._cuts.keys() & source.modules.keys():
            self._modules[name] = cut_entry(source.modules[name], self._cuts[name])

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the whole model."""
        return self._source.config

    @property
    def modules(self) -> Mapping[str, PackedModule]:
        """The packed modules, in the shapes of this rank's parts."""
        return self._modules

    def names(self) -> Iterable[str]:
        """Tensors that belong to no packed module."""
        return self._source.names()

    def tensor(self, name: str) -> Tensor:
        """This rank's part of one of those tensors."""
        module, _, kind = name.rpartition(".")
        cut = self._cuts.get(module)
        if cut is None:
            return self._source.tensor(name)
        whole = self._view(name)
        if cut.rows:
            return take_rows(whole, cut.rows)
        if kind == "bias":
            return whole.clone() if self._first else torch.zeros_like(whole)
        assert cut.columns is not None
        return whole[:, cut.columns.start : cut.columns.stop].clone(
            memory_format=torch.contiguous_format
        )

    def read_packed(self, module: str) -> PackedTensor:
        """This rank's part of the weight of a packed module."""
        whole, cut = self._source.read_packed(module), self._cuts.get(module)
        return whole if cut is None else cut_packed(whole, cut, module)

    def input_scale(self, module: str) -> Tensor:
        """What multiplies the inputs of this rank's columns."""
        whole, cut = self._source.input_scale(module), self._cuts.get(module)
        if cut is None or cut.columns is None:
            return whole
        return whole[cut.columns.start : cut.columns.stop].contiguous()


def _check_formats(
    source: WeightSource, architecture: Architecture, config: DecoderConfig, world_size: int
) -> None:
    found = _first_misfit(source, architecture, config, world_size)
    if found is None:
        return
    module, why = found
    fitting = [n for n in range(1, MOST_RANKS + 1) if _fits(source, architecture, config, n)]
    entry = source.modules[module]
    raise UnsupportedError(
        f"tensor parallelism over {world_size} devices: {module} [{entry.shape[0]}, "
        f"{entry.shape[1]}] of format {entry.format} would be cut through {why}; this checkpoint "
        f"{describe_fitting(fitting)}"
    )


def _fits(
    source: WeightSource, architecture: Architecture, config: DecoderConfig, world_size: int
) -> bool:
    try:
        check_cut(architecture, config, world_size)
    except UnsupportedError:
        return False
    return _first_misfit(source, architecture, config, world_size) is None


def _first_misfit(
    source: WeightSource, architecture: Architecture, config: DecoderConfig, world_size: int
) -> tuple[str, str] | None:
    """A packed module that some rank's part does not fit, and why; None where all fit."""
    for rank in range(world_size):
        for module, cut in cut_modules(architecture, config, rank, world_size).items():
            entry = source.modules.get(module)
            why = None if entry is None else find_misfit(entry, cut)
            if why is not None:
                return module, why
    return None
