"""Writes the tables of docs/reference/exports.md, and one of a guide, from committed records.

python benchmarks/exports/tables.py [--check]

Of each model, format, target and type there the newest record counts.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from tercet.export.target import find_target, target_names
from tercet.records import Outcome, Record, load
from tercet.records.page import Row, fill, markdown, write_pages

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "exports.md"
TRANSFORMERS = ROOT / "docs" / "guides" / "run-in-transformers.md"


def newest() -> list[Record]:
    """The newest record of each model, format, target and what it is held as there."""
    records = [r for path in sorted(Path(__file__).parent.glob("*.jsonl")) for r in load(path)]
    records = [r for r in records if r.kind == "export"]
    found = {
        (
            str(r.settings["model"]),
            str(r.settings["format"]),
            r.subject,
            str(r.settings.get("kind", "")),
        ): r
        for r in sorted(records, key=lambda r: r.time)
    }
    return [record for _, record in sorted(found.items())]


def verified() -> list[Row]:
    """What was written, read back and run."""
    rows = [
        [
            "target", "model", "format", "held as", "bits a weight", "bit-equal modules",
            "logits error", "bound", "inputs rounded alike", "top-1 equal", "greedy tokens equal",
            "client",
        ]
    ]  # fmt: skip
    for record in newest():
        metrics, settings = record.metrics, record.settings
        if record.outcome is not Outcome.OK:
            continue
        rows.append(
            [
                record.subject,
                str(settings["model"]),
                str(settings["format"]),
                str(settings["kind"]),
                f"{metrics['bits_per_weight']:.3f}",
                f"{metrics['bit_equal_modules']:.0f} of {metrics['modules']:.0f}",
                f"{metrics['logits_error']:.1e}",
                f"{metrics['bound']:.1e}",
                f"{metrics['rounded_error']:.1e}" if "rounded_error" in metrics else "-",
                f"{metrics['top1_agreement']:.1%}",
                f"{metrics['greedy_equal_tokens']:.0f} of {metrics['greedy_tokens']:.0f}",
                str(settings["client"]),
            ]
        )
    return rows


def refused() -> list[Row]:
    """What a target cannot hold, or held wrongly, in its own words."""
    rows = [["target", "model", "format", "outcome", "reason"]]
    for record in newest():
        if record.outcome is not Outcome.OK:
            settings = record.settings
            names = [str(settings[name]) for name in ("model", "format")]
            word = "refused" if record.outcome is Outcome.FAILED else "wrong"
            rows.append([record.subject, *names, word, _plain(str(record.reason))])
    return rows


def greedy() -> list[Row]:
    """The continuations side by side."""
    rows = [["target", "format", "Tercet", "client"]]
    for record in newest():
        settings = record.settings
        if record.outcome is Outcome.OK and settings["text"] is not None:
            texts = [_plain(str(settings[name])) for name in ("our_text", "text")]
            rows.append([record.subject, str(settings["format"]), *texts])
    return rows


def speed() -> list[Row]:
    """Greedy decoding at batch 1, the newest of each model, format, engine and instruction set."""
    rows = [
        [
            "model", "format", "instructions", "engine", "held as", "tokens/s", "least to most",
            "prompt, tokens/s", "load, s", "threads", "MB",
        ]
    ]  # fmt: skip
    records = [r for path in sorted(Path(__file__).parent.glob("*.jsonl")) for r in load(path)]
    found = {
        (
            str(r.settings["model"]),
            str(r.settings["format"]),
            str(r.settings.get("instructions") or "-"),
            r.subject,
        ): r
        for r in sorted(records, key=lambda r: r.time)
        if r.kind == "export-speed" and r.outcome is Outcome.OK
    }
    for names, record in sorted(found.items()):
        metrics, settings = record.metrics, record.settings
        low, high = (metrics[f"decode_tokens_per_s_{end}"] for end in ("low", "high"))
        rows.append(
            [
                *names,
                str(settings["kind"] or "packed"),
                f"{metrics['decode_tokens_per_s']:.0f}",
                f"{low:.0f} to {high:.0f}",
                _measured(metrics, "prompt_tokens_per_s", 0),
                _measured(metrics, "load_s", 2),
                str(settings["threads"]),
                f"{metrics['size_bytes'] / 1e6:.0f}",
            ]
        )
    return rows


def _measured(metrics: Mapping[str, float], name: str, digits: int) -> str:
    return f"{metrics[name]:.{digits}f}" if name in metrics else "-"


def vllm() -> list[Row]:
    """Greedy tokens in vLLM's CPU build, the newest record of each model, format and way."""
    rows = [
        [
            "model", "format", "held as", "plugin", "dtype", "mode", "client",
            "greedy tokens equal", "reference", "vLLM",
        ]
    ]  # fmt: skip
    records = [r for path in sorted(Path(__file__).parent.glob("*.jsonl")) for r in load(path)]
    found = {_way(r): r for r in sorted(records, key=lambda r: r.time) if r.kind == "export-vllm"}
    for names, record in sorted(found.items()):
        metrics, reason = record.metrics, _plain(str(record.reason))
        same, count = metrics.get("greedy_equal_tokens"), metrics.get("greedy_tokens")
        texts = [_plain(str(record.settings[name])) for name in ("our_text", "text")]
        rows.append([*names, f"{same:.0f} of {count:.0f}" if metrics else reason, *texts])
    return rows


def transformers() -> list[Row]:
    """Greedy decoding on a GPU, beside bfloat16, the newest record of each model."""
    rows = [["model", "layers", "cache", "bf16, tokens/s", "packed, tokens/s", "ratio", "GPU"]]
    records = [r for path in sorted(Path(__file__).parent.glob("*.jsonl")) for r in load(path)]
    found = {
        (r.subject, int(r.settings["layers"] or 0)): r
        for r in sorted(records, key=lambda r: r.time)
        if r.kind == "transformers_speed"
    }
    for (model, layers), record in sorted(found.items()):
        for cache in ("dynamic", "static"):
            plain, packed = (record.metrics[f"{name}_{cache}"] for name in ("bfloat16", "packed"))
            speeds = [f"{plain:.0f}", f"{packed:.0f}", f"{packed / plain:.2f}"]
            rows.append([model, str(layers), cache, *speeds, str(record.environment.accelerator)])
    return rows


def _way(record: Record) -> tuple[str, ...]:
    """Model, format and how vLLM loaded it, as the table has them."""
    settings = record.settings
    return (
        str(settings["model"]),
        str(settings["format"]),
        str(settings.get("held", record.subject)),
        "yes" if settings.get("plugin") else "no",
        str(settings["dtype"]),
        str(settings.get("mode", "eager")),
        str(settings["client"]),
    )


GUIDES = {
    "awq": "export-gptq-awq",
    "bitnet": "export-bitnet",
    "compressed-tensors": "export-compressed-tensors",
    "gguf": "export-gguf",
    "gptq": "export-gptq-awq",
    "huggingface": "run-in-transformers",
    "mlx": "export-mlx",
    "onnx": "export-onnx",
    "openvino": "export-openvino",
}


def clients() -> list[Row]:
    """What runs each target, and the versions that its extra allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = [["target", "client", "versions", "install"]]
    for name in target_names():
        target = find_target(name)
        shown = f"[`{name}`](../guides/{GUIDES[name]}.md)"
        versions = ", ".join(project["optional-dependencies"][target.extra])
        install = f"`pip install 'tercet[{target.extra}]'`"
        rows.append([shown, target.client, f"`{versions}`", install])
    return rows


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


TABLES: dict[str, Callable[[], list[Row]]] = {
    "clients": clients,
    "verified": verified,
    "refused": refused,
    "greedy": greedy,
    "speed": speed,
    "vllm": vllm,
}


def pages() -> dict[Path, str]:
    """The pages with every table made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        text = fill(text, f"table {name}", markdown(table()))
    guide = TRANSFORMERS.read_text(encoding="utf-8")
    guide = fill(guide, "table transformers", markdown(transformers()))
    return {PAGE: text, TRANSFORMERS: guide}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/exports/tables.py", pages)
