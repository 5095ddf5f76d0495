"""The inference engine: generates text from prompts, with weights that stay packed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.runtime.chat_template import Message
    from tercet.runtime.generate import stream
    from tercet.runtime.generation import Generation
    from tercet.runtime.sampler import Sampler
    from tercet.runtime.session import Generator, TextStream, load
    from tercet.runtime.settings import GenerationSettings
    from tercet.runtime.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "Generation",
    "GenerationSettings",
    "Generator",
    "Message",
    "Sampler",
    "TextStream",
    "Tokenizer",
    "load",
    "load_tokenizer",
    "stream",
]

# where each name is: settings are checked before torch is imported, which takes a second
_WHERE = {
    "Generation": "generation",
    "GenerationSettings": "settings",
    "Generator": "session",
    "Message": "chat_template",
    "Sampler": "sampler",
    "TextStream": "session",
    "Tokenizer": "tokenizer",
    "load": "session",
    "load_tokenizer": "tokenizer",
    "stream": "generate",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
