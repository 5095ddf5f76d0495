"""docs/reference/architectures.md has a row for each architecture, and says where it goes."""

from pathlib import Path

from tercet.checkpoints.gguf.architectures import gguf_kind
from tercet.export.decoder_weights import architecture_reason
from tercet.models import architecture_names

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_every_architecture_has_a_row_that_is_true() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = {row[0].strip("`"): row[3:] for row in cells}
    assert list(rows) == architecture_names()
    for name, (gguf, graphs) in rows.items():
        kind = gguf_kind(name)
        assert gguf == ("no" if kind is None else f"as `{kind}`"), name
        reason = architecture_reason({**SIZES, "model_type": name})
        assert graphs == ("yes" if reason is None else "no"), name
