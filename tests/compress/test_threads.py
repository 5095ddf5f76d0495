"""Compressions in several threads of one process give the bytes of compressions one by one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tiny_decoders import contents, plan, save, tokens

from tercet.compress.pipeline import compress

FORMATS = ("int4-g16", "ternary-g16", "nonary-g16")


def test_threads_take_turns(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")

    def run(form: str, folder: str) -> dict[str, bytes]:
        out = tmp_path / folder / form
        compress(model, plan(form, None), out, calibration=tokens(8), device="cpu")
        return contents(out)

    one_by_one = [run(form, "alone") for form in FORMATS]
    with ThreadPoolExecutor(len(FORMATS)) as threads:
        together = list(threads.map(lambda form: run(form, "together"), FORMATS))
    assert together == one_by_one
