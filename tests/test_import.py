"""What `import tercet` loads, and what it offers."""

import subprocess
import sys

import pytest

import tercet


@pytest.mark.parametrize("what", ["tercet", "tercet.cli.main", "tercet.cli.kernel.app"])
def test_importing_waits_with_what_is_heavy(what: str) -> None:
    """torch takes seconds, which whoever asks for help would pay."""
    code = (
        f"import sys, {what}\n"
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_folder_takes_no_functions_name() -> None:
    """Whoever imports the folder `compress` sets the name in its parent."""
    code = (
        "import tercet, tercet.compress.plan, tercet.evaluate.text\n"
        "assert callable(tercet.compress) and callable(tercet.evaluate)\n"
        "from tercet import compress, evaluate\n"
        "assert compress.__name__ == 'compress' and evaluate.__name__ == 'evaluate'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_name_can_be_replaced_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tercet.fetch
    monkeypatch.setattr(tercet, "fetch", print)
    assert tercet.fetch is print
    monkeypatch.undo()
    assert tercet.fetch is before
    with pytest.raises(AttributeError, match="no attribute 'compres'"):
        _ = tercet.compres


def test_every_public_name_is_there_and_callables_are_no_packages() -> None:
    """`compress` and `evaluate` are functions, though folders have these names too."""
    for name in tercet.__all__:
        assert getattr(tercet, name) is not None
    for name in ("compress", "distill", "evaluate", "fetch", "inspect", "load", "train"):
        assert callable(getattr(tercet, name)), name
