"""Page: a self-contained HTML file; styles and script inside, nothing loaded from elsewhere."""

from collections.abc import Iterable
from html import escape

from tercet.harness.report.script import SCRIPT
from tercet.harness.report.style import STYLE


def page(title: str, introduction: str, sections: Iterable[str]) -> str:
    """The HTML of a page; title and introduction are text, sections HTML."""
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">{escape(introduction)}</p>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def section(title: str, content: str, note: str = "") -> str:
    """A titled part of a page; title and note are text, content HTML."""
    below = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{below}{content}</section>"
