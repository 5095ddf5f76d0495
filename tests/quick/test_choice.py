"""What `make quick` chooses: of the real tree, and by the names of ops in a test's parameters."""

from pathlib import Path

import pytest
from quick.change import list_files
from quick.choice import Choice, choose
from quick.graph import Graph

from tercet.ops.discover import discover

ROOT = Path(__file__).parents[2]
EVERY = "tests/ops/test_every_op.py"
COMPILES = "tests/ops/test_every_op_compiles.py"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(ROOT, list_files(ROOT))


def nearest(choice: Choice, count: int) -> list[str]:
    return sorted(choice.files, key=lambda file: (choice.files[file], file))[:count]


def test_every_implementation_is_reached_by_its_module(graph: Graph) -> None:
    for name, op in discover().items():
        for one in op.implementations:
            choice = choose(graph, [graph.modules[one.module]])
            assert choice.distance_of(EVERY, f"{name}-{one.name}") is not None, one.module
            assert name in choice.ops


def test_a_kernel_reaches_the_tests_of_its_implementation(graph: Graph) -> None:
    choice = choose(graph, ["src/tercet/ops/rms_norm/triton.py"])
    assert nearest(choice, 1) == ["tests/ops/test_rms_norm_chunked.py"]
    assert choice.distance_of(EVERY, "rms_norm-triton") == 1
    assert choice.distance_of(COMPILES, "rms_norm") == 1
    assert choice.distance_of(EVERY, "rms_norm-torch") is None
    assert choice.distance_of(EVERY, "rms_norm_quantized-triton") is None
    assert choice.distance_of(EVERY, "softmax-triton") is None
    assert choice.distance_of(EVERY, "gelu_gate") is None
    assert "tests/formats/test_encode.py" not in choice.files


def test_a_reference_reaches_all_implementations_of_its_op(graph: Graph) -> None:
    choice = choose(graph, ["src/tercet/ops/rms_norm/reference.py"])
    assert choice.distance_of(EVERY, "rms_norm-triton") == 2
    assert choice.distance_of(EVERY, "rms_norm-torch") == 2
    assert choice.distance_of(EVERY, "rms_norm") == 2
    assert choice.distance_of(EVERY, "softmax-torch") is None


def test_a_header_of_headers_reaches_the_kernels_that_include_it(graph: Graph) -> None:
    choice = choose(graph, ["src/tercet/packed_weight/hopper/dequantize.cuh"])
    assert choice.distance_of(COMPILES, "linear_packed") is not None
    assert choice.distance_of(COMPILES, "grouped_linear_packed") is not None
    assert choice.distance_of(COMPILES, "softmax") is None
    assert choice.distance_of(COMPILES, "linear_qat") is None


def test_the_check_reaches_every_op(graph: Graph) -> None:
    choice = choose(graph, ["src/tercet/harness/check/run.py"])
    for op in discover().values():
        for one in op.implementations:
            assert choice.distance_of(EVERY, f"{op.name}-{one.name}") == 1
    assert choice.distance_of(COMPILES, "softmax") is None


def test_an_algorithm_and_a_command_reach_their_own_tests(graph: Graph) -> None:
    algorithm = choose(graph, ["src/tercet/compress/ptq/gptq.py"])
    assert algorithm.files["tests/compress/test_gptq.py"] == 1
    assert algorithm.files["tests/compress/test_algorithms.py"] == 1
    assert EVERY not in algorithm.direct
    command = choose(graph, ["src/tercet/cli/export.py"])
    assert command.files["tests/export/test_export_command.py"] == 1
    assert len(command.direct) < 10


def test_what_everything_stands_on_reaches_everything(graph: Graph) -> None:
    for file in ("pyproject.toml", "tests/conftest.py"):
        choice = choose(graph, [file])
        assert set(choice.direct) == {one for one in graph.files if is_test(one)}
    choice = choose(graph, ["src/tercet/kernel/contract.py"])
    assert {EVERY, COMPILES, "tests/planted/test_planted.py"} <= set(choice.own)
    assert len(choice.direct) > 100


def is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def test_parameters_that_begin_with_an_op_are_tests_of_it() -> None:
    choice = Choice(
        files={"tests/test_x.py": 5, "tests/test_z.py": 6},
        ops={"norm": {"triton": 2}, "norm_quantized": {"": 4, "torch": 3}},
        own={},
        by_op=("tests/test_x.py",),
        all_ops={"norm": ("triton", "torch"), "norm_quantized": ("torch",)},
        direct=(),
    )

    def distance(parameters: str) -> int | None:
        return choice.distance_of("tests/test_x.py", parameters)

    assert distance("") == 5
    assert distance("normal") == 5
    assert distance("norm") == 2
    assert distance("norm-triton") == 2
    assert distance("norm-torch") is None
    assert distance("norm_wrong_sum") == 2
    assert distance("norm_quantized") == 3
    assert distance("norm_quantized-16") == 3
    assert distance("norm_quantized-torch") == 3
    assert choice.distance_of("tests/test_z.py", "norm") == 6
    assert choice.distance_of("tests/test_y.py", "norm") is None
    assert choice.nearest() == [(2, "tests/test_x.py"), (6, "tests/test_z.py")]
