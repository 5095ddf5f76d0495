"""PackedTensor: a weight in storage form. Its docstring is its contract."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats.chunks import chunk_rows
from tercet.formats.scheme import Scheme

_WEIGHTS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class PackedTensor:
    """A weight W [N, K] as codes, scales and zero points.

    With (br, bk) = scheme.scaling.block((N, K)) and i, j running over rows and columns:

        W[i, j] = (levels[code[i, j]] - zero[i // br, j // bk]) * scale[i // br, j // bk] * second

    Invariants, checked by `validate`:

        code          = scheme.storage.unpack(codes, K), each < len(scheme.element.levels) and
                        none whose level is NaN
        codes.dtype   = uint8,           codes.shape = [N, scheme.storage.row_bytes(K)]
        scale.dtype   = scheme's,        scale.shape = [ceil(N / br), ceil(K / bk)], finite, >= 0
        zero          = None or scheme's dtype and scale's shape, finite
        second        = None, or a float32 scalar, finite, >= 0, where the scheme has a second level

    Attributes:
        codes, scale, zero, second: the tensors above.
        scheme: the number format.
        shape: (N, K), the logical shape.
    """

    codes: Tensor
    scale: Tensor
    scheme: Scheme
    shape: tuple[int, int]
    zero: Tensor | None = None
    second: Tensor | None = None

    @property
    def size_bytes(self) -> int:
        """Total size in bytes of codes, scales and zero points."""
        return sum(part.numel() * part.element_size() for part in self.parts().values())

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors that are not None, by their name in a checkpoint."""
        named = {
            "packed": self.codes,
            "scale": self.scale,
            "zero": self.zero,
            "second": self.second,
        }
        return {name: part for name, part in named.items() if part is not None}

    def to(self, device: torch.device) -> "PackedTensor":
        """The same on a device."""
        return replace(
            self,
            codes=self.codes.to(device),
            scale=self.scale.to(device),
            zero=None if self.zero is None else self.zero.to(device),
            second=None if self.second is None else self.second.to(device),
        )

    def validate(self, name: str = "tensor") -> None:
        """Raise FormatError, naming the tensor, if an invariant does not hold."""
        self.validate_shapes(name)
        self.validate_values(name)

    def validate_shapes(self, name: str = "tensor") -> None:
        """As `validate`, of which tensors there are, their dtypes and their shapes."""
        expected = expected_parts(self.scheme, self.shape)
        found = self.parts()
        if set(found) != set(expected):
            raise FormatError(
                f"{name}: scheme {self.scheme.name!r} has {sorted(expected)}, found {sorted(found)}"
            )
        for part, (dtype, shape) in expected.items():
            tensor = found[part]
            if tensor.dtype != dtype or tuple(tensor.shape) != shape:
                raise FormatError(
                    f"{name}.{part}: expected {dtype} {list(shape)}, "
                    f"found {tensor.dtype} {list(tensor.shape)}"
                )

    def validate_values(self, name: str = "tensor") -> None:
        """As `validate`, of what the tensors hold; they have passed `validate_shapes`."""
        found = self.parts()
        for part in sorted(set(found) - {"packed"}):
            values = found[part].float()
            low = -torch.inf if part == "zero" else 0.0
            wrong = ~values.isfinite() | (values < low)
            if bool(wrong.any()):
                raise FormatError(
                    f"{name}.{part}: {int(wrong.sum())} values not finite or negative"
                )
        self._validate_codes(name)

    def _validate_codes(self, name: str) -> None:
        broken = self.scheme.storage.invalid_words(self.codes)
        if broken:
            raise FormatError(
                f"{name}.packed: {broken} words are none of storage {self.scheme.storage.name!r}"
            )
        self._validate_numbers(name)
        levels = len(self.scheme.element.levels)
        if levels < self.scheme.storage.code_count and self.codes.numel():
            highest = int(self.unpack().max()) if self.shape[1] else 0
            if highest >= levels:
                raise FormatError(
                    f"{name}.packed: code {highest}, but {self.scheme.element.name!r} "
                    f"has codes below {levels}"
                )

    def _validate_numbers(self, name: str) -> None:
        # only 8-bit elements have patterns that are not numbers, so a code is a byte
        patterns = self.scheme.element.table().isnan()
        if not bool(patterns.any()):
            return
        wrong = patterns.to(self.codes.device)[self.unpack().long()]
        if bool(wrong.any()):
            raise FormatError(
                f"{name}.packed: {int(wrong.sum())} codes of {self.scheme.element.name!r} are NaN "
                f"or inf"
            )

    def unpack(self) -> Tensor:
        """Unpack the codes: uint8 [N, K]."""
        return self.scheme.storage.unpack(self.codes, self.shape[1])

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """Return W [N, K], computed in float32 (in float64 for float64) and rounded to dtype.

        It is written into `out` [N, K] of that dtype, where that is given.
        """
        values = out
        if values is None:
            values = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        for rows, part in self.dequantize_by_rows(dtype):
            values[rows] = part
        return values

    def dequantize_by_rows(
        self, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield W [N, K] as `dequantize` returns it, in blocks of rows: which rows, and those."""
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = self.scale.to(work)
        if self.second is not None:
            scale = scale * self.second.to(work)
        zero = self.zero.to(work) if self.zero is not None else None
        rows, columns = self.scheme.scaling.block(self.shape)
        # codes as indices take 8 bytes each: some rows at a time, whole blocks of them
        most = max(_WEIGHTS_AT_ONCE // (rows * max(columns, self.shape[1], 1)), 1) * rows
        for part in chunk_rows(self.shape[0], most):
            codes = self.scheme.storage.unpack(self.codes[part], self.shape[1])
            blocks = slice(part.start // rows, -(-part.stop // rows))
            values = apply_scale(
                self.scheme.element.decode(codes, work),
                (rows, columns),
                scale[blocks],
                zero[blocks] if zero is not None else None,
            )
            yield part, values.to(dtype)

    def magnitude(self) -> Tensor:
        """(|level| + |zero|) scale [N, K], float64: what a rounding in W is relative to."""
        block = self.scheme.scaling.block(self.shape)
        sizes = self.scheme.element.decode(self.unpack(), torch.float64).abs()
        if self.zero is not None:
            sizes = sizes + expand_blocks(self.zero.double().abs(), block, self.shape)
        sizes = sizes * expand_blocks(self.scale.double(), block, self.shape)
        return sizes if self.second is None else sizes * self.second.double()


def expected_parts(
    scheme: Scheme, shape: tuple[int, int]
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """dtype and shape of each tensor that W [N, K] in this scheme is made of."""
    scales = scheme.scaling.scale_shape(shape)
    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "packed": (torch.uint8, (shape[0], scheme.storage.row_bytes(shape[1]))),
        "scale": (scheme.scaling.torch_dtype, scales),
    }
    zero = scheme.scaling.zero_torch_dtype
    if zero is not None:
        parts["zero"] = (zero, scales)
    if scheme.scaling.second_level:
        parts["second"] = (torch.float32, ())
    return parts


def expand_blocks(blocks: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Values per block [ceil(N/br), ceil(K/bk)] to values per weight [N, K]."""
    wide = blocks.repeat_interleave(block[0], dim=0)[: shape[0]]
    return wide.repeat_interleave(block[1], dim=1)[:, : shape[1]]


def apply_scale(
    levels: Tensor, block: tuple[int, int], scale: Tensor, zero: Tensor | None
) -> Tensor:
    """(levels - zero) * scale for levels [N, K] and scale, zero [ceil(N/br), ceil(K/bk)]."""
    shape = (levels.shape[0], levels.shape[1])
    if zero is not None:
        levels = levels - expand_blocks(zero, block, shape)
    return levels * expand_blocks(scale, block, shape)
