"""Chat templates: format messages as one text, as the model was trained to read them.

Templates come with the model, so they run in jinja2's sandbox.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn, TypedDict

from tercet.errors import CheckpointError


class Message(TypedDict):
    """One turn of a conversation; the roles are the template's (system, user, assistant)."""

    role: str
    content: str


def render(template: str, messages: Sequence[Message], special: dict[str, str]) -> str:
    """Format a conversation as text that ends where the assistant's next message starts.

    Args:
        template: jinja2 source, in the dialect of the Hugging Face hub.
        messages: the turns so far.
        special: bos_token, eos_token and the like, which templates may name.

    Raises:
        CheckpointError: the template is broken or refuses the messages.
    """
    # imported here: a model without a template does not pay for it
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template).render(
            messages=list(messages),
            add_generation_prompt=True,
            raise_exception=refuse,
            strftime_now=_now,
            **special,
        )
    except TemplateError as error:
        raise CheckpointError(
            f"the chat template of the checkpoint failed: {error}; pass the prompt as plain text "
            f"(chat=False)"
        ) from error


def _to_json(value: object, indent: int | None = None) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
