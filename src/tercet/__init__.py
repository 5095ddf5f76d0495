"""Tercet: the compression platform for language models.

    import tercet

    tercet.compress("smollm2-135m", "nonary", "model-nonary")
    model = tercet.load("model-nonary")
    print(model.generate("What is a tercet?").text)

After `import tercet`, `transformers.AutoModelForCausalLM.from_pretrained` loads packed checkpoints
too.
"""

from importlib import import_module
from typing import Any

import wrapt

from tercet.checkpoints.fetch import fetch
from tercet.checkpoints.packed import open_packed
from tercet.checkpoints.source import open_source
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan, load_plan
from tercet.errors import (
    AccuracyError,
    BuildError,
    CheckpointError,
    FormatError,
    PlanError,
    TercetError,
    UnsupportedError,
)
from tercet.formats import PackedTensor, Scheme, parse_scheme
from tercet.recipes.evaluation import evaluate
from tercet.recipes.inspection import inspect
from tercet.recipes.training import distill, train
from tercet.runtime import load
from tercet.version import VERSION as __version__

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


def _register_with_transformers(_: Any) -> None:
    import_module("tercet.export.huggingface").register()


# transformers takes seconds to import, so nothing happens until somebody else imports it
wrapt.register_post_import_hook(_register_with_transformers, "transformers.quantizers.auto")
