"""vLLM: packed checkpoints by a quantization method of its own, and a kernel for standard ones.

`register` is the entry point that vLLM calls in each of its processes
(`vllm.general_plugins`); with Tercet installed beside vLLM there is nothing else to do.
"""


def register() -> None:
    """Makes packed checkpoints and the kernel known to vLLM; harmless when repeated."""
    # only vLLM calls this, and only then is it sure to be installed
    from tercet.export.vllm import kernel, quantization

    quantization.register()
    kernel.register()


__all__ = ["register"]
