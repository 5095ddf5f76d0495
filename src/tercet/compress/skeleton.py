"""A model without its weights: the transformers module tree, filled and emptied piece by piece.

Parameters live on the meta device until `fill` reads them from the source; `empty` gives them back.
Buffers that no file holds (rotary frequencies) are real from the start.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.checkpoints.sources.open import ModelSource
from tercet.compress.config_error import config_error
from tercet.errors import CheckpointError, UnsupportedError
from tercet.models.saved_buffers import saved_buffers
from tercet.models.special_floats import decode_floats
from tercet.models.split_experts import expert_name, fused_experts, split
from tercet.models.transposed_linear import straighten

# what older files hold beside weights: tables that follow from config.json
_NO_WEIGHT = re.compile(r"(rotary_emb\.inv_freq|position_ids|attn\.(masked_)?bias)$")


class Skeleton:
    """The module tree of a source model.

    Attributes:
        model: the transformers model, parameters on the meta device.
        layers_name: the name of the list of repeated layers, as in "model.layers".
        layers: that list.
        kept: weights of the source by stored name that were read already and are still to be used.
        device: where parameters are put, and buffers are.
        unused: weights of the source that the model has no parameter for.

    Raises:
        UnsupportedError: transformers does not know the model, or has nothing like layers in it.
        CheckpointError: a weight is missing, or what config.json ties is not equal.
    """

    def __init__(self, source: ModelSource, device: torch.device | None = None) -> None:
        self.source = source
        self.device = device or torch.device("cpu")
        self.model = _empty_model(source.config)
        for module in self.model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_meta:
                    raise UnsupportedError(
                        f"{type(self.model).__name__} makes buffers of its weights, as {name!r} of "
                        f"{type(module).__name__}: such a model is not compressed"
                    )
                setattr(module, name, buffer.to(self.device))
        self._split_experts()
        self._transposed = {f"{name}.weight" for name in straighten(self.model)}
        self.kept: dict[str, Tensor] = {}
        self._read_buffers()
        self.layers_name, self.layers = repeated_layers(self.model)
        self._check_names()
        self._check_ties()
        self.unused = self._find_unused()

    def _split_experts(self) -> None:
        """Takes experts apart where files hold them apart."""
        fused = fused_experts(self.model)
        split(self.model, fused)
        for name, module in fused.items():
            if self.stored_name(f"{name}.0.gate_proj.weight") is None:
                self.model.set_submodule(name, module)

    def _read_buffers(self) -> None:
        """Buffers that files hold have what they hold there."""
        for name, buffer in saved_buffers(self.model).items():
            stored = self.stored_name(name)
            if stored is None:
                continue
            value = self.source.read(stored)
            if value.shape != buffer.shape:
                raise CheckpointError(
                    f"{self.source.reference}: {name} has shape {list(value.shape)}, "
                    f"config.json calls for {list(buffer.shape)}"
                )
            buffer.copy_(value)

    def buffers(self, below: str | None) -> list[str]:
        """Names of the saved buffers below a module; None for those outside of the layers."""
        if below is not None:
            return [f"{below}.{name}" for name in saved_buffers(self.module(below))]
        inside = self.layers_name + "."
        return [name for name in saved_buffers(self.model) if not name.startswith(inside)]

    def _check_names(self) -> None:
        """Every parameter must be in the source: a model half random is worth nothing."""
        names = [name for name, _ in self.model.named_parameters()]
        missing = [name for name in names if self.stored_name(name) is None]
        for name in missing:
            kind = type(self.model.get_submodule(name.rpartition(".")[0])).__name__
            if kind.endswith("Experts"):
                raise UnsupportedError(
                    f"{self.source.reference}: {name} of {kind} is made of matrices that the files "
                    f"hold apart: experts are taken apart where they compute what Qwen3's do"
                )
        if missing and (reason := _conversion(self.model, missing[0])):
            raise UnsupportedError(
                f"{self.source.reference}: {missing[0]} is not in the files: transformers makes it "
                f"of others as it loads {type(self.model).__name__} ({reason}), which compressing "
                f"does not follow"
            )
        if missing:
            raise CheckpointError(
                f"{self.source.reference}: {len(missing)} weights of "
                f"{type(self.model).__name__} are not in the files, the first is {missing[0]!r}: "
                f"check that config.json belongs to these weights"
            )

    def _check_ties(self) -> None:
        """Weights that are one in the model must be equal where the files hold both."""
        groups: dict[int, set[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            stored = self.stored_name(name)
            if stored is not None:
                groups.setdefault(id(parameter), set()).add(stored)
        for one, *others in map(sorted, groups.values()):
            for other in others:
                if not torch.equal(self.source.read(one), self.source.read(other)):
                    raise CheckpointError(
                        f"{self.source.reference}: {one} and {other} differ, but config.json ties "
                        f"them (tie_word_embeddings true): set tie_word_embeddings to false if "
                        f"both are meant, or remove the one that is not from the files"
                    )

    def _find_unused(self) -> list[str]:
        """Stored weights that no parameter or buffer is read from."""
        model: Any = self.model
        parameters = self.model.named_parameters(remove_duplicate=False)
        used = {self.stored_name(name) for name, _ in parameters}
        # most buffers are in no file, and are no reason to look for other names
        used |= {self._listed_name(name) for name, _ in self.model.named_buffers()}
        ignored = [re.compile(str(one)) for one in model._keys_to_ignore_on_load_unexpected or ()]
        return [
            name
            for name in self.source.names()
            if name not in used and not any(one.search(name) for one in (*ignored, _NO_WEIGHT))
        ]

    def stored_name(self, parameter: str) -> str | None:
        """The source's name of a parameter: its own, an alias, with the base prefix changed, or one
        that transformers renames when it loads."""
        return self._listed_name(parameter) or self._renamed.get(parameter)

    def _listed_name(self, name: str) -> str | None:
        """The source's name of a parameter or buffer, where it differs in the base prefix alone."""
        prefix = f"{self.model.base_model_prefix}."
        for candidate in (name, prefix + name, name.removeprefix(prefix)):
            if candidate in self._listed:
                return self._listed[candidate]
        return None

    @cached_property
    def _listed(self) -> dict[str, str]:
        """The source's names and aliases -> what is stored."""
        return {**self.source.aliases, **{name: name for name in self.source.names()}}

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """As the function: asked for only where a name is not among the source's."""
        return _renamed(self.model, self.source.names())

    def read(self, parameter: str) -> Tensor:
        """One parameter from the source, float32, in memory of its own on the device.

        The weight of a linear is [N, K], however the files hold it.
        """
        stored = self.read_stored(parameter)
        own = stored.device != self.device
        # the narrower dtype goes to the device
        found = stored.to(self.device).to(torch.float32, copy=not own)
        return found.T.contiguous() if parameter in self._transposed else found

    def read_stored(self, parameter: str) -> Tensor:
        """One parameter in the source's dtype: what is kept, or else from the file; read only.

        A buffer that no file holds is what the model's class makes it.
        """
        stored = self.stored_name(parameter)
        if stored is None:
            return self.model.get_buffer(parameter)
        return self.kept[stored] if stored in self.kept else self.source.read(stored)

    def numbers(self, name: str) -> int:
        """How many numbers a parameter has; a buffer is small, and is not counted."""
        module, _, part = name.rpartition(".")
        parameter = getattr(self.module(module), part)
        return parameter.numel() if isinstance(parameter, nn.Parameter) else 0

    def as_stored(self, parameter: str, value: Tensor) -> Tensor:
        """A value of a parameter in the form that files hold it in."""
        return value.T.contiguous() if parameter in self._transposed else value

    def release(self, parameters: list[str]) -> None:
        """Keeps these no longer: no work needs them again."""
        for parameter in parameters:
            self.kept.pop(self.stored_name(parameter) or parameter, None)

    def layer_names(self) -> list[str]:
        """The names of the repeated layers, in order."""
        return [f"{self.layers_name}.{i}" for i in range(len(self.layers))]

    def outside(self) -> list[str]:
        """Parameters that belong to no repeated layer; tied ones once, under their first name."""
        return [
            name
            for name, _ in self.model.named_parameters()
            if not name.startswith(self.layers_name + ".")
        ]

    def module(self, name: str) -> nn.Module:
        """The module of that name."""
        return self.model.get_submodule(name)

    @contextmanager
    def materialize(self, prefixes: list[str]) -> Generator[None, None, None]:
        """Reads all parameters below the given modules or parameters, and drops them afterwards."""
        names = [
            name
            for name, _ in self.model.named_parameters()
            if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        ]
        for name in names:
            self.put(name, self.read(name))
        try:
            yield
        finally:
            for name in names:
                shape = self.model.get_parameter(name).shape
                self.put(name, torch.empty(shape, device="meta"))

    @contextmanager
    def filled_when_run(self) -> Generator[list[str], None, None]:
        """Within the block, modules outside of the layers read their parameters once they are run.

        Yields:
            The names of those that have run.
        """
        found: list[str] = []
        empty: dict[str, list[str]] = {}
        for name in self.outside():
            module = name.rpartition(".")[0]
            empty.setdefault(module, [])
            if self.model.get_parameter(name).is_meta:
                empty[module].append(name)

        def hook_for(module: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            def hook(_: nn.Module, __: tuple[Any, ...]) -> None:
                if module not in found:
                    found.append(module)
                    for name in empty[module]:
                        self.put(name, self.read(name))

            return hook

        with ExitStack() as stack:
            for module in empty:
                handle = self.module(module).register_forward_pre_hook(hook_for(module))
                stack.callback(handle.remove)
            try:
                yield found
            finally:
                for module in found:
                    for name in empty[module]:
                        shape = self.model.get_parameter(name).shape
                        self.put(name, torch.empty(shape, device="meta"))

    def put(self, parameter: str, value: Tensor) -> None:
        """Sets one parameter wherever it is shared (tied embeddings stay tied)."""
        old = self.model.get_parameter(parameter)
        if old.shape != value.shape:
            raise CheckpointError(
                f"{self.source.reference}: {parameter} has shape {list(value.shape)}, "
                f"config.json calls for {list(old.shape)}"
            )
        new = nn.Parameter(value, requires_grad=False)
        for module in self.model.modules():
            for name, found in list(module.named_parameters(recurse=False)):
                if found is old:
                    setattr(module, name, new)


def _empty_model(config: dict[str, Any]) -> nn.Module:
    # imported here, since they take seconds and running a packed model needs neither
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = str(config.get("model_type"))
    try:
        parsed = AutoConfig.for_model(**decode_floats(config))
    # each kind of model checks its own keys, in its own way
    except Exception as error:
        raise config_error(config, error) from error
    # what a layer is called with is kept: a cache among it would grow with each call
    sections: list[Any] = [getattr(parsed, name) for name in cast(Any, parsed).sub_configs]
    for section in (parsed, *sections):
        if getattr(section, "use_cache", False):
            section.use_cache = False
    names: list[str] = config.get("architectures") or []
    causal = any(name.endswith("ForCausalLM") for name in names) or (
        not names and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    with init_empty_weights(include_buffers=False):
        # unasked, transformers takes torch's own attention, and for a model that caps its scores,
        # which that cannot, another; asked for it, it raises
        try:
            if issubclass(kind := _class_of(names), PreTrainedModel):
                model: Any = cast(Any, kind)._from_config(parsed, dtype=torch.float32)
            else:
                maker = AutoModelForCausalLM if causal else AutoModel
                model = cast(Any, maker).from_config(parsed, dtype=torch.float32)
        except Exception as error:
            raise config_error(config, error) from error
    model.eval()
    model.tie_weights()
    _put_base_first(model)
    return cast(nn.Module, model)


def _put_base_first(model: Any) -> None:
    """A weight that is tied has the name that it has in the base model, as files do."""
    modules = cast("dict[str, nn.Module]", model._modules)
    if model.base_model_prefix in modules:
        for name in [name for name in modules if name != model.base_model_prefix]:
            modules[name] = modules.pop(name)


def _class_of(architectures: Sequence[str]) -> type:
    """The class of transformers that config.json names; `object` where it names none."""
    import transformers

    return getattr(transformers, architectures[0], object) if architectures else object


def _renamed(model: nn.Module, stored: Iterable[str]) -> dict[str, str]:
    """transformers' name -> stored name, of weights that it renames and changes in no other way."""
    # imported here, as above
    from transformers import conversion_mapping, core_model_loading

    mapping, loading = cast(Any, conversion_mapping), cast(Any, core_model_loading)
    renamings = [
        one
        for one in mapping.get_model_conversion_mapping(model)
        if isinstance(one, loading.WeightRenaming)
    ]
    found = {
        name: expert_name(loading.rename_source_key(name, renamings, [])[0]) for name in stored
    }
    return {to: name for name, to in found.items() if to != name}


def _conversion(model: nn.Module, name: str) -> str | None:
    """What transformers makes that parameter of, where it is of others, or of a part of one."""
    from transformers import conversion_mapping, core_model_loading

    mapping, loading = cast(Any, conversion_mapping), cast(Any, core_model_loading)
    for one in mapping.get_model_conversion_mapping(model):
        if not isinstance(one, loading.WeightConverter):
            continue
        targets = cast("list[str]", one.target_patterns)
        if any(re.search(re.escape(to).replace(r"\*", "[^.]+"), name) for to in targets):
            return f"{', '.join(one.source_patterns)} to {', '.join(targets)}"
    return None


def name_of(module: nn.Module, model: nn.Module) -> str:
    """The name of a module of the model."""
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    return next(name for name, one in named if one is module)


def _are_layers(modules: nn.ModuleList) -> bool:
    """Whether all are of one class, or of several that are called layers: hybrids have two."""
    kinds = {type(child) for child in modules}
    return len(kinds) == 1 or (
        len(kinds) > 1 and all(kind.__name__.endswith(("Layer", "Block")) for kind in kinds)
    )


def repeated_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and list of a model's repeated layers; UnsupportedError where there are none."""
    lists = [
        (name, module)
        for name, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
        if isinstance(module, nn.ModuleList)
        and _are_layers(module)
        and any(parameter.ndim >= 2 for parameter in module.parameters())
    ]
    if not lists:
        raise UnsupportedError(
            f"{type(model).__name__} has no list of repeated layers to go through"
        )
    return max(lists, key=lambda found: sum(p.numel() for p in found[1].parameters()))
