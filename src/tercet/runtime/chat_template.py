"""Chat templates: format messages as one text, as the model was trained to read them."""

from collections.abc import Sequence
from typing import TypedDict

from tercet.errors import CheckpointError

AS_PLAIN_TEXT = "pass the prompt as plain text (chat=False, on the command line --no-chat)"
"""What helps where a conversation cannot be formatted."""


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
    from tercet.runtime.template_environment import build_environment

    try:
        return (
            build_environment()
            .from_string(template)
            .render(
                messages=list(messages),
                # templates ask `tools is not none`, which an undefined name is not
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **special,
            )
        )
    # a template is a program of the model's author: it can raise anything
    except Exception as error:
        raise CheckpointError(
            f"the chat template of the checkpoint failed: {type(error).__name__}: {error}; "
            f"{AS_PLAIN_TEXT}"
        ) from error
