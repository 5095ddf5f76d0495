"""tercet mcp."""

from importlib.util import find_spec

from tercet.errors import UnsupportedError


def mcp_command() -> None:
    """Serve `tercet kernel` to agents over the Model Context Protocol, on standard input."""
    if find_spec("mcp") is None:
        raise UnsupportedError(
            "the Model Context Protocol needs its SDK: run `pip install 'tercet[mcp]'`"
        )
    from tercet.recipes.mcp_server import server

    server.run("stdio")
