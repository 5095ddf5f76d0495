import threading
from pathlib import Path
from types import ModuleType

from tercet.harness.mutate.reached import reached_lines

_SOURCE = """\
def choose(flag):
    if flag:
        return 1
    return [
        each
        for each in (2, 3)
    ]


def never():
    return 4
"""


def _import(path: Path) -> ModuleType:
    path.write_text(_SOURCE)
    module = ModuleType("chosen")
    exec(compile(_SOURCE, str(path), "exec"), module.__dict__)
    return module


def test_only_what_runs_is_reached(tmp_path: Path) -> None:
    file = tmp_path / "chosen.py"
    module = _import(file)
    module.never()
    with reached_lines([file]) as found:
        module.choose(True)
    module.choose(False)
    assert found == {(file, 2), (file, 3)}


def test_threads_reach_lines_and_other_files_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "chosen.py"
    module, other = _import(file), _import(tmp_path / "other.py")
    with reached_lines([file]) as found:
        thread = threading.Thread(target=module.choose, args=(False,))
        thread.start()
        thread.join()
        other.choose(True)
    assert {line for _, line in found} >= {2, 4}
    assert {path for path, _ in found} == {file}
    assert not found & {(file, 3), (file, 11)}
