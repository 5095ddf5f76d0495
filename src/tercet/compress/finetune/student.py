"""PackedStudent: a packed checkpoint as values that are trained, in its teacher's module tree.

With p the teacher's distribution of the token after each, and q the student's, the loss is

    mean over tokens of KL(p || q)

as in distillation (arXiv:1503.02531) and in the second phase of EfficientQAT (arXiv:2407.11062),
which trains scales alone.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor
from torch.func import functional_call

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.compress.algorithm import Quantized
from tercet.compress.blockwise.latent_vector import LatentVector
from tercet.compress.blockwise.latent_weight import LatentWeight
from tercet.compress.calibration.module_hooks import transforming
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.qat.positions import one_sequence_a_row
from tercet.compress.qat.student import Student
from tercet.compress.skeleton import Skeleton, name_of
from tercet.errors import CheckpointError, UnsupportedError
from tercet.models.input_transform import InputTransform
from tercet.models.packed_modules import load_transform
from tercet.ops.linear_kl import linear_kl


class PackedStudent:
    """A packed model beside its teacher, on the same tokens.

    Args:
        teacher: the uncompressed model, its weights in memory.
        checkpoint: made from it.
        settings: what is trained.

    Attributes:
        weights: levels and scales that are trained, by module.
        vectors: norms and biases that are, by parameter.

    Raises:
        UnsupportedError: nothing of the checkpoint can be trained, the model has no head, or layers
            are to be compiled whose linears transform their inputs.
    """

    def __init__(
        self,
        teacher: Skeleton,
        checkpoint: PackedCheckpoint,
        settings: FineTuning,
    ) -> None:
        self._device = teacher.device
        self._dtype = product_dtype(self._device)
        self._teacher = Student(teacher.model, {}, self._dtype)
        self._base: Any = cast(Any, teacher.model).base_model
        self._prefix = f"{teacher.model.base_model_prefix}."
        self._check_whole(checkpoint)
        self._quantized: dict[str, Quantized] = {}
        self.weights: dict[str, LatentWeight] = {}
        self.vectors: dict[str, LatentVector] = {}
        self._transforms: dict[str, InputTransform] = {}
        self._fixed: dict[str, Tensor] = {}
        trained = trained_modules(teacher, checkpoint, settings)
        for name in checkpoint.modules:
            self._take_module(checkpoint, name, settings, trained=name in trained)
        if not self.weights:
            raise UnsupportedError(
                f"{checkpoint.directory}: no linear of its layers has integer levels, which are "
                f"what is trained: compress it to ternary, nonary or an int format"
            )
        for name in checkpoint.names():
            self._take_tensor(checkpoint, name, settings)
        model = cast(Any, teacher.model)
        head = name_of(model.get_output_embeddings(), teacher.model)
        embedding = name_of(model.get_input_embeddings(), teacher.model)
        here = {*self._fixed, *self.latents}
        self._head = f"{head}.weight" if f"{head}.weight" in here else f"{embedding}.weight"
        self._tables = (head, embedding)
        self._teacher_head = self._teacher.head()
        # the head is not called: its input is transformed here
        self._before_head = self._transforms.pop(head, InputTransform())
        self._linears = {name: teacher.module(name) for name in self._transforms}
        # what is compiled is so for batches of this size
        self._whole_batch = settings.batch if settings.compile else None
        if settings.compile:
            self._compile(checkpoint)

    def _compile(self, checkpoint: PackedCheckpoint) -> None:
        if self._transforms:
            raise UnsupportedError(
                f"{checkpoint.directory}: {next(iter(self._transforms))} transforms its input, and "
                f"layers that do are not compiled: leave compile at false"
            )
        # no rows of unknown number, or each kernel would be made for any number of them
        for layer in self._teacher.layers():
            layer.compile(dynamic=False)

    def _take_module(
        self, checkpoint: PackedCheckpoint, name: str, settings: FineTuning, *, trained: bool
    ) -> None:
        packed = checkpoint.read_packed(name)
        transform = load_transform(checkpoint, name, self._device)
        if not transform.identity:
            self._transforms[name] = transform
        if not trained:
            self._fixed[f"{name}.weight"] = packed.dequantize().to(self._device)
            return
        packed = packed.to(self._device)
        self._quantized[name] = Quantized(
            packed=packed,
            input_scale=transform.scale,
            hadamard=transform.hadamard,
            activation=transform.activation,
        )
        self.weights[name] = LatentWeight(packed, None, name, levels=settings.levels)

    def _take_tensor(self, checkpoint: PackedCheckpoint, name: str, settings: FineTuning) -> None:
        stored = checkpoint.tensor(name)
        value = stored.to(self._device, torch.float32)
        if settings.norms and value.ndim == 1 and name.startswith(self._prefix):
            self.vectors[name] = LatentVector(value, stored.dtype)
        else:
            self._fixed[name] = value

    def _check_whole(self, checkpoint: PackedCheckpoint) -> None:
        """What is missing would be the teacher's own."""
        modules = {f"{name}.weight": entry.shape for name, entry in checkpoint.modules.items()}
        shapes = modules | {name: checkpoint.layout[name][1] for name in checkpoint.names()}
        for name, value in self._base.named_parameters():
            found = shapes.get(self._prefix + name)
            if found != tuple(value.shape):
                raise CheckpointError(
                    f"{checkpoint.directory}: {self._prefix}{name} is "
                    f"{'not in it' if found is None else list(found)}, the teacher's is "
                    f"{list(value.shape)}: give the model that it was made from as --teacher"
                )

    @property
    def latents(self) -> dict[str, LatentWeight | LatentVector]:
        """All that is trained, by parameter."""
        return {**{f"{name}.weight": one for name, one in self.weights.items()}, **self.vectors}

    def packed(self) -> dict[str, Quantized]:
        """The modules that are trained, by name, as they are now."""
        return {
            name: replace(one, packed=self.weights[name].pack())
            for name, one in self._quantized.items()
        }

    def rates(self, settings: FineTuning) -> dict[str, float]:
        """Learning rates of levels, for `tune`: those of embedding and head."""
        rate = settings.embedding_learning_rate
        return {f"{name}.weight": rate for name in self._tables if name in self.weights}

    def loss(self, tokens: Tensor, values: Mapping[str, Tensor], indices: Tensor) -> Tensor:
        """KL divergence [], nats a token, of the sequences of these indices, for `tune`.

        Args:
            tokens: ids [sequences, length] on the teacher's device.
            values: what is trained, by parameter.
            indices: int64 [batch] on that device.
        """
        ids = tokens[indices]
        on_gpu = self._device.type == "cuda"
        autocast = torch.autocast("cuda", self._dtype) if on_gpu else nullcontext()
        with autocast, self._layers_for(len(indices)):
            with torch.no_grad():
                wanted = self._teacher.hidden(ids)
            values = {**self._fixed, **values}
            head = values[self._head].to(self._dtype)
            return linear_kl(self._hidden(ids, values), head, wanted, self._teacher_head)

    def _layers_for(self, batch: int) -> AbstractContextManager[object]:
        """Within it, layers run for so many sequences as compiled code, or as they are."""
        if self._whole_batch is None:
            return nullcontext()
        if batch != self._whole_batch:
            # the last batch of an epoch is not worth a compilation
            return torch.compiler.set_stance("force_eager")
        return _compiling()

    def _hidden(self, ids: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The last hidden states [B, T, H] under these values, as the head reads them."""
        own = {
            name.removeprefix(self._prefix): value
            for name, value in values.items()
            if name.startswith(self._prefix)
        }
        with one_sequence_a_row(), transforming(self._linears, self._transforms):
            found: Any = functional_call(
                self._base, own, (), {"input_ids": ids, "use_cache": False}
            )
        return self._before_head(found.last_hidden_state).to(self._dtype)


@contextmanager
def _compiling() -> Generator[None]:
    """While it compiles, torch looks for gradients of weights that are not leaves, and warns."""
    with catch_warnings():
        filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
        yield


def product_dtype(device: torch.device) -> torch.dtype:
    """The dtype of products in training on that device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def trained_modules(
    teacher: Skeleton, checkpoint: PackedCheckpoint, settings: FineTuning
) -> set[str]:
    """The modules whose levels or scales are trained: those of integer levels.

    Linears of the layers, and embedding and head where these have a learning rate.
    """
    model, layers = cast(Any, teacher.model), f"{teacher.layers_name}."
    tables: set[str] = set()
    if settings.embedding_learning_rate:
        both = (model.get_input_embeddings(), model.get_output_embeddings())
        tables = {name_of(one, teacher.model) for one in both if one is not None}
    return {
        name
        for name, entry in checkpoint.modules.items()
        if (name.startswith(layers) or name in tables) and entry.scheme.element.integer
    }
