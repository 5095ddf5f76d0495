"""The inference engine: generates text from prompts, with weights that stay packed."""

from tercet.runtime.chat_template import Message
from tercet.runtime.generate import stream
from tercet.runtime.sampler import Sampler
from tercet.runtime.session import Generation, Generator, TextStream, load
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
