"""tercet mcp."""

from importlib.util import find_spec

from tercet.errors import UnsupportedError


def mcp_command() -> None:
    """Serve the `tercet kernel` commands to agents over the Model Context Protocol (stdio)."""
    if find_spec("mcp") is None:
        raise UnsupportedError(
            "the Model Context Protocol needs its SDK: run `pip install 'tercet[mcp]'`"
        )
    from tercet.workflows.fresh_process import keep_one_ready
    from tercet.workflows.mcp_server import server

    with keep_one_ready("tercet.workflows.kernel.calls"):
        server.run("stdio")
