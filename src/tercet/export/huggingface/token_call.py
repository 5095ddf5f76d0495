"""What `generate` calls for each new token of a packed model with a static cache on a GPU.

transformers would have torch compile its own layers: a product for each matrix, and a millisecond
of guards before each step of 32 layers. The lean decoder has all of it in one captured graph; it
takes the weights, the caches and the tokens that transformers has.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tercet.errors import TercetError, UnsupportedError
from tercet.export.huggingface.loaded_weights import LoadedWeights
from tercet.export.huggingface.packed_buffers import PackedBuffers
from tercet.export.huggingface.static_step import StaticStep
from tercet.models import Decoder

if TYPE_CHECKING:
    from transformers import CompileConfig, PreTrainedModel

_TAKEN = {"input_ids", "past_key_values", "attention_mask", "position_ids"}
# what `generate` sends along that changes nothing in the scores of one new token
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "use_cache": (True, None),
    "return_dict": (True, None),
    "logits_to_keep": (0, 1, None),
}
_PLAIN_MODULES = ("torch.nn.modules.", "transformers.activations", "tercet.")


@dataclass(frozen=True, eq=False)
class _State:
    """What a model is made of.

    Attributes:
        kinds: of each module its class, and whether it has hooks.
        tensors: all parameters and buffers; what they hold, which is kept, so that nothing else can
            lie there; and how often it was written to.
    """

    kinds: list[tuple[type, bool]]
    tensors: list[tuple[Tensor, Tensor, int]]

    def same(self, other: "_State") -> bool:
        """Whether no module or tensor was replaced, and no tensor written to."""
        if (self.kinds, len(self.tensors)) != (other.kinds, len(other.tensors)):
            return False
        return all(
            one is another
            and (held.data_ptr(), held.dtype, written)
            == (also_held.data_ptr(), also_held.dtype, also_written)
            for (one, held, written), (another, also_held, also_written) in zip(
                self.tensors, other.tensors, strict=True
            )
        )


@dataclass(eq=False)
class _Kept:
    """What was made of a model in that state."""

    state: _State
    decoder: Decoder
    step: StaticStep | None = None


# not in the model, which users copy and save whole
_KEPT: "weakref.WeakKeyDictionary[nn.Module, _Kept]" = weakref.WeakKeyDictionary()


def get_compiled_call(
    model: "PreTrainedModel", compile_config: "CompileConfig | None"
) -> Callable[..., Any]:
    """In the place of PreTrainedModel's, for a packed model.

    Args:
        model: whose method it is.
        compile_config: how torch is to compile; None leaves the choice to Tercet.
    """

    def compiled() -> Callable[..., Any]:
        call = cast("Callable[..., Callable[..., Any]]", type(model).get_compiled_call)
        return call(model, compile_config)

    return compiled() if compile_config is not None else _TokenCall(model, compiled)


class _TokenCall:
    """The model's forward during one call of `generate`."""

    def __init__(
        self, model: "PreTrainedModel", compiled: Callable[[], Callable[..., Any]]
    ) -> None:
        self._model, self._compiled = model, compiled
        self._other: Callable[..., Any] | None = None
        self._kept: _Kept | None = None

    def __call__(self, **inputs: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        if self._other is None:
            try:
                step = self._step_for(inputs)
            except TercetError as error:
                warnings.warn(
                    f"torch compiles the step of {type(self._model).__name__}, which takes longer "
                    f"and runs slower than Tercet's own: {error}",
                    stacklevel=2,
                )
                self._other = self._compiled()
            else:
                scores = step.run(inputs["input_ids"][:, 0], inputs["past_key_values"])
                return CausalLMOutputWithPast(
                    logits=scores.unsqueeze(1),  # pyright: ignore[reportArgumentType]
                    past_key_values=inputs["past_key_values"],
                )
        return self._other(**inputs)

    def _step_for(self, inputs: dict[str, Any]) -> StaticStep:
        """The step, ready for these inputs; UnsupportedError where it would not do the same."""
        ids = inputs.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] != 1:
            raise UnsupportedError("it takes the ids [B, 1] of one new token of each sequence")
        if self._kept is None:
            _check_inputs(inputs)
        cache = inputs["past_key_values"]
        _check_room(cache)
        if self._kept is None:
            _check_positions(inputs)
            self._kept = _keep(self._model)
        kept = self._kept
        if kept.step is None or not kept.step.take(cache):
            kept.step = None  # its memory is free for the next one's
            kept.step = StaticStep(kept.decoder, cache)
        return kept.step


def _check_inputs(inputs: dict[str, Any]) -> None:
    from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

    for name, value in inputs.items():
        allowed = _HARMLESS.get(name, (None, False))
        if name not in _TAKEN and (isinstance(value, Tensor) or value not in allowed):
            raise UnsupportedError(f"it takes no {name!r}")
    cache = inputs.get("past_key_values")
    kinds = (StaticLayer, StaticSlidingWindowLayer)
    layers: list[Any] = cache.layers if type(cache) is StaticCache else []
    if not layers or any(type(one) not in kinds for one in layers):
        raise UnsupportedError("it takes a StaticCache of plain layers")
    if len({one.max_cache_len for one in layers}) > 1:
        raise UnsupportedError("it takes no cache that is longer than a sliding window")


def _check_room(cache: Any) -> None:
    """A layer whose window is full moves what it holds."""
    for layer in cache.layers:
        if layer.is_sliding and layer.cumulative_length_int >= layer.max_cache_len:
            raise UnsupportedError("it takes no sequence beyond a sliding window")


def _check_positions(inputs: dict[str, Any]) -> None:
    """Every sequence must be as long as the cache is filled, and see all of it."""
    layer = inputs["past_key_values"].layers[0]
    seen, capacity = layer.cumulative_length, layer.keys.shape[2]
    visible = torch.arange(capacity, device=seen.device) <= seen
    for mask in _masks(inputs.get("attention_mask")):
        if mask.ndim != 4 or mask.shape[1:] != (1, 1, capacity):
            raise UnsupportedError(f"it takes no attention_mask of shape {list(mask.shape)}")
        shown = mask if mask.dtype == torch.bool else mask == 0
        if not torch.equal(shown, visible.expand_as(shown)):
            raise UnsupportedError("it takes sequences of one length, without padding")
    places = inputs.get("position_ids")
    if places is not None and not torch.equal(places, seen.to(places).expand_as(places)):
        raise UnsupportedError("it takes no positions other than those of the cache")


def _masks(masks: Any) -> list[Tensor]:
    """One mask for all layers, or one for each kind of layer; None for none."""
    found = list(cast("dict[str, Any]", masks).values()) if isinstance(masks, dict) else [masks]
    return [one for one in found if one is not None]


def _keep(model: "PreTrainedModel") -> _Kept:
    """The decoder of a model's weights as they are now."""
    kept, state = _KEPT.get(model), _state_of(model)
    if kept is not None and kept.state.same(state):
        return kept
    _KEPT.pop(model, None)
    _check_modules(model)
    decoder = Decoder.from_checkpoint(LoadedWeights(model), model.dtype, model.device)
    if decoder.config.score_cap is not None and model.config._attn_implementation == "sdpa":  # pyright: ignore[reportPrivateUsage]
        raise UnsupportedError("sdpa leaves out the caps on attention's scores")
    kept = _KEPT[model] = _Kept(state=state, decoder=decoder)
    return kept


def _state_of(model: nn.Module) -> _State:
    kinds, tensors = list[tuple[type, bool]](), list[tuple[Tensor, Tensor, int]]()
    # by hand: named_modules and its like are recursive generators, and this is for each `generate`
    left = [model]
    while left:
        module = left.pop()
        own = vars(module)
        kinds.append((type(module), _is_hooked(module)))
        for one in (*own["_parameters"].values(), *own["_buffers"].values()):
            if one is not None:
                tensors.append((one, one.detach(), 0 if one.is_inference() else one._version))
        left += [child for child in own["_modules"].values() if child is not None]
    return _State(kinds=kinds, tensors=tensors)


def _check_modules(model: "PreTrainedModel") -> None:
    """The model must be transformers' own, as it was loaded."""
    own = type(model).__module__
    if not own.startswith("transformers.models."):
        raise UnsupportedError(f"{own} is not one of transformers' own models")
    modules = _modules(model)
    for name, module in modules.items():
        where = type(module).__module__
        if where != own and not where.startswith(_PLAIN_MODULES):
            raise UnsupportedError(f"{name} is a {where}.{type(module).__name__}")
        if _is_hooked(module):
            raise UnsupportedError(f"{name or 'the model'} has hooks, which would not be called")
    for name, parameter in model.named_parameters():
        if (parameter.dtype, parameter.device) != (model.dtype, model.device):
            raise UnsupportedError(
                f"{name} is {parameter.dtype} on {parameter.device}, the model {model.dtype} on "
                f"{model.device}"
            )
    if any(isinstance(one, PackedBuffers) and ".experts." in name for name, one in modules.items()):
        raise UnsupportedError("it would hold the experts of a mixture a second time")


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(cast("Iterator[tuple[str, nn.Module]]", model.named_modules()))


def _is_hooked(module: nn.Module) -> bool:
    """Whether a call of the module is more, or something else, than its class's forward."""
    own = vars(module)
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own)
