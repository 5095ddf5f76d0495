"""Student: a causal language model that is trained, seen as hidden states and a head."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.compress.qat.linear import QatLinear
from tercet.compress.qat.positions import one_sequence_a_row
from tercet.compress.qat.swap import Quantized
from tercet.compress.skeleton import repeated_layers
from tercet.errors import PlanError, UnsupportedError


class Student:
    """A model whose loss is taken from its last hidden states, so that logits never exist whole.

    Args:
        model: a causal language model of transformers.
        quantized: its modules that train in a format; none for a teacher.
        dtype: of hidden states and head in the loss.

    Raises:
        UnsupportedError, PlanError: logits are not head times hidden states.
    """

    def __init__(self, model: nn.Module, quantized: Quantized, dtype: torch.dtype) -> None:
        self.model, self.quantized, self.dtype = model, quantized, dtype
        anything = cast(Any, model)
        self.config = anything.config
        self._base, self._head = anything.base_model, anything.get_output_embeddings()
        if self._head is None or self._base is model:
            raise UnsupportedError(
                f"{type(model).__name__} has no head that gives logits: training is for causal "
                f"language models"
            )
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(self.config, name, None) not in (None, 1, 1.0):
                raise UnsupportedError(
                    f"{type(model).__name__} has {name} {getattr(self.config, name)}: losses are "
                    f"taken from head times hidden states, without it"
                )
        if isinstance(self._head, QatLinear) and self._head.options.activation is not None:
            raise PlanError(
                "the head has a quantized input, which losses from hidden states do not see: give "
                "its rule activation: null"
            )
        if getattr(self._head, "bias", None) is not None:
            raise UnsupportedError(f"{type(model).__name__}: a head with a bias is not supported")

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states [B, T, H] of ids [B, T], the final norm included."""
        with one_sequence_a_row():
            return self._base(input_ids=ids, use_cache=False).last_hidden_state.to(self.dtype)

    def head(self) -> Tensor:
        """The head [V, H]; what a gradient of it goes through."""
        head = self._head
        weight = head.trainable_values() if hasattr(head, "trainable_values") else head.weight
        return weight.to(self.dtype)

    def logits(self, ids: Tensor) -> Tensor:
        """Scores [B, T, V] by the model itself."""
        with one_sequence_a_row():
            return cast(Any, self.model)(input_ids=ids, use_cache=False).logits

    def parameters(self) -> list[nn.Parameter]:
        """What is trained; tied weights once."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def tables(self) -> list[nn.Parameter]:
        """The embedding and the head, whose rows belong to tokens; once where they are tied."""
        found = [cast(Any, self.model).get_input_embeddings().weight]
        weight = getattr(self._head, "weight", None)
        return found if weight is None or weight is found[0] else [*found, weight]

    def checkpoint_activations(self) -> None:
        """Layers are computed again in the backward pass, and keep their inputs only."""
        anything = cast(Any, self.model)
        # renamed in transformers 5.2x, the old name warns
        enable = getattr(anything, "activation_checkpointing_enable", None)
        (enable or anything.gradient_checkpointing_enable)({"use_reentrant": False})

    def compile(self, *, keep_inputs: bool = False) -> None:
        """Every layer under torch.compile, one graph for all: it compiles once, however many.

        Args:
            keep_inputs: codes of narrow inputs are kept for the backward pass, not made again: a
                byte an element, 0.8 GB of 8192 tokens of Llama-3.2-1B, for 1 % of a step.
        """
        # inductor takes a second to import
        from tercet.compress.qat.graph_passes.layer import LayerPass

        # equal options: after 8 graphs of one function torch gives up, and the rest runs eagerly
        options = {"joint_custom_pre_pass": LayerPass(keep_inputs=keep_inputs)}
        for layer in self.layers():
            layer.compile(options=options)

    def layers(self) -> list[nn.Module]:
        """The repeated layers."""
        return list(repeated_layers(self.model)[1])

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device
