"""transformers: it loads packed checkpoints as they are, after `import tercet`."""

from tercet.export.huggingface.target import TARGET

__all__ = ["TARGET", "register"]


def register() -> None:
    """Makes packed checkpoints known to transformers; harmless when repeated."""
    # transformers is seconds of import, and this runs while it is being imported
    from tercet.export.huggingface.quantizer import register as register_quantizer

    register_quantizer()
