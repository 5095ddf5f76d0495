"""Tercet: the compression platform for language models.

    import tercet

    tercet.compress("smollm2-135m", "nonary", "model-nonary")
    model = tercet.load("model-nonary")
    print(model.generate("What is a tercet?").text)

After `import tercet`, `transformers.AutoModelForCausalLM.from_pretrained` loads packed checkpoints
too.
"""

from tercet.environment import set_thread_defaults

set_thread_defaults()

# isort: split
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from tercet.errors import (
    AccuracyError,
    BuildError,
    CheckpointError,
    FormatError,
    PlanError,
    TercetError,
    UnsupportedError,
)
from tercet.version import VERSION as __version__

if TYPE_CHECKING:
    from tercet.checkpoints.packed.read import open_packed
    from tercet.checkpoints.sources.fetch import fetch
    from tercet.checkpoints.sources.open import open_source
    from tercet.compress.pipeline import compress
    from tercet.compress.plan import Plan, load_plan
    from tercet.formats import PackedTensor, Scheme, parse_scheme
    from tercet.runtime import load
    from tercet.workflows.evaluation import evaluate
    from tercet.workflows.inspection import inspect
    from tercet.workflows.training.from_source import distill, train

__all__ = [
    "AccuracyError",
    "BuildError",
    "CheckpointError",
    "FormatError",
    "PackedTensor",
    "Plan",
    "PlanError",
    "Scheme",
    "TercetError",
    "UnsupportedError",
    "__version__",
    "compress",
    "distill",
    "evaluate",
    "fetch",
    "inspect",
    "load",
    "load_plan",
    "open_packed",
    "open_source",
    "parse_scheme",
    "train",
]


# where each name is: importing torch takes seconds, so it waits until a name is used
_WHERE = {
    "PackedTensor": "tercet.formats",
    "Plan": "tercet.compress.plan",
    "Scheme": "tercet.formats",
    "compress": "tercet.compress.pipeline",
    "distill": "tercet.workflows.training.from_source",
    "evaluate": "tercet.workflows.evaluation",
    "fetch": "tercet.checkpoints.sources.fetch",
    "inspect": "tercet.workflows.inspection",
    "load": "tercet.runtime",
    "load_plan": "tercet.compress.plan",
    "open_packed": "tercet.checkpoints.packed.read",
    "open_source": "tercet.checkpoints.sources.open",
    "parse_scheme": "tercet.formats",
    "train": "tercet.workflows.training.from_source",
}


class _Lazy:
    """A name of this module that is looked up when it is used.

    It is a property of the module's class, which comes before what the import system sets: the
    folders `compress` and `evaluate` would otherwise take the place of the functions.
    """

    def __init__(self, name: str, where: str) -> None:
        self._name, self._where = name, where

    def __get__(self, module: ModuleType, _: type) -> Any:
        given = vars(module).get(self._name)
        if given is not None and not isinstance(given, ModuleType):
            return given
        return getattr(import_module(self._where), self._name)

    def __set__(self, module: ModuleType, value: Any) -> None:
        vars(module)[self._name] = value

    def __delete__(self, module: ModuleType) -> None:
        del vars(module)[self._name]


class _Tercet(ModuleType):
    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


for _name, _where in _WHERE.items():
    setattr(_Tercet, _name, _Lazy(_name, _where))
sys.modules[__name__].__class__ = _Tercet


def _register_with_transformers(_: Any) -> None:
    import_module("tercet.export.huggingface").register()


# transformers takes seconds to import, so nothing happens until somebody else imports it
wrapt.register_post_import_hook(_register_with_transformers, "transformers.quantizers.auto")
