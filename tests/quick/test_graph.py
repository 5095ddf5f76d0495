"""The graph of files against what imports, includes and the build itself say."""

from pathlib import Path

import grimp
import pytest
from quick.change import list_files
from quick.graph import LOOSE, SOURCE, USED, Graph, is_cpp

from tercet.kernel.jit.cpp import headers_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(ROOT, list_files(ROOT))


def test_every_import_of_the_package_is_an_edge(graph: Graph) -> None:
    imports = grimp.build_graph("tercet", cache_dir=None)
    assert len(imports.modules) > 500
    for module in imports.modules:
        wanted = {graph.modules[one] for one in imports.find_modules_directly_imported_by(module)}
        assert wanted <= graph.edges[graph.modules[module]].keys(), module


def test_headers_are_those_that_the_build_reads(graph: Graph) -> None:
    sources = [file for file in graph.files if is_cpp(file) and file.startswith(SOURCE)]
    assert len(sources) > 40
    for source in sources:
        users_first = Graph(ROOT, ())
        users_first.__dict__["edges"] = {
            target: dict.fromkeys(users, USED) for target, users in _turned(graph, sources).items()
        }
        reached = users_first.distances([source]).keys() - {source}
        wanted = {path.relative_to(ROOT).as_posix() for path in headers_of(ROOT / source)}
        assert reached == wanted - {source}, source


def _turned(graph: Graph, sources: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source in sources:
        for target in graph.edges[source]:
            found.setdefault(target, []).append(source)
    return found


def test_what_is_not_imported_is_an_edge_too(tmp_path: Path) -> None:
    files = {
        "src/tercet/__init__.py": "",
        "src/tercet/ops/__init__.py": "",
        "src/tercet/ops/find.py": 'import_module(f"tercet.ops.{name}.op")',
        "src/tercet/ops/a/__init__.py": "from tercet.ops.a.inner import thing",
        "src/tercet/ops/a/inner.py": '"""Not tercet.ops.b.op: this is prose."""\nthing = 1',
        "src/tercet/ops/a/op.py": 'WHERE = "tercet.ops.a.launch:forward"',
        "src/tercet/ops/a/launch.py": 'Path(__file__).parent / "kernel.cu"',
        "src/tercet/ops/a/kernel.cu": '#include "kernel.cuh"\n#include "kernel/device/rows.cuh"\n',
        "src/tercet/ops/a/kernel.cuh": "",
        "src/tercet/kernel/device/rows.cuh": "#include <cuda.h>",
        "src/tercet/ops/a/tuned/one.json": "{}",
        "src/tercet/ops/b/__init__.py": "",
        "src/tercet/ops/b/op.py": "",
        "tests/conftest.py": "",
        "tests/here.py": "",
        "tests/test_a.py": 'import here\nfrom tercet.ops.a import thing\nROOT / "docs" / "page.md"',
        "tests/test_b.py": 'find("b")\nrun("from tercet.ops.a.inner import thing", "/", ".")',
        "docs/page.md": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    edges = Graph(tmp_path, files).edges
    ops = "src/tercet/ops"
    assert edges[f"{ops}/find.py"] == {f"{ops}/a/op.py": LOOSE, f"{ops}/b/op.py": LOOSE}
    assert edges[f"{ops}/a/inner.py"] == {}
    assert edges[f"{ops}/a/op.py"] == {
        f"{ops}/a/launch.py": USED,
        f"{ops}/a/tuned/one.json": USED,
    }
    assert edges[f"{ops}/a/launch.py"] == {f"{ops}/a/kernel.cu": USED}
    assert edges[f"{ops}/a/kernel.cu"] == {
        f"{ops}/a/kernel.cuh": USED,
        "src/tercet/kernel/device/rows.cuh": USED,
    }
    assert edges["tests/test_a.py"] == {
        "tests/conftest.py": USED,
        "tests/here.py": USED,
        f"{ops}/a/__init__.py": USED,
        f"{ops}/a/inner.py": USED,
        f"{ops}/__init__.py": LOOSE,
        "src/tercet/__init__.py": LOOSE,
        "docs/page.md": USED,
    }
    assert edges["tests/test_b.py"] == {
        "tests/conftest.py": USED,
        f"{ops}/b/op.py": USED,
        f"{ops}/a/inner.py": USED,
    }
    near = Graph(tmp_path, files).distances(["src/tercet/kernel/device/rows.cuh"])
    assert near == {
        "src/tercet/kernel/device/rows.cuh": 0,
        f"{ops}/a/kernel.cu": 1,
        f"{ops}/a/launch.py": 2,
        f"{ops}/a/op.py": 3,
        f"{ops}/find.py": 3 + LOOSE,
    }


def test_a_deleted_module_still_has_its_users(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("from tercet.gone import thing")
    graph = Graph(tmp_path, ["src/tercet/gone.py", "tests/test_it.py"])
    assert graph.distances(["src/tercet/gone.py"])["tests/test_it.py"] == 1
