from pathlib import Path

from tercet.harness.mutate.cpp_source import mutants_of_cpp

SOURCE = """#include "rows.hpp"  // 3 rows
template <int Bits>
static float sum(const float* x, long n) {
    float total = 0.0f;
    // 7 comes later
    for (long at = 0; at < n; ++at) {
        total += x[at] * scale<float>(at);
    }
    __syncthreads();
    return -total;
}
"""


def test_changes_of_each_line(tmp_path: Path) -> None:
    file = tmp_path / "sum.cpp"
    file.write_text(SOURCE)
    found = {(mutant.line, mutant.kind, mutant.after) for mutant in mutants_of_cpp(file)}
    assert found == {
        (4, "change a constant", "float total = 1.0f;"),
        (6, "change a constant", "for (long at = 1; at < n; ++at) {"),
        (6, "change a comparison", "for (long at = 0; at <= n; ++at) {"),
        (6, "change a comparison", "for (long at = 0; at > n; ++at) {"),
        (7, "drop a statement", ";"),
        (7, "change an operator", "total -= x[at] * scale<float>(at);"),
        (7, "change an operator", "total = x[at] * scale<float>(at);"),
        (7, "change an operator", "total += x[at] / scale<float>(at);"),
        (9, "remove a barrier", ";"),
        (10, "change a sign", "return total;"),
    }
    assert all(
        mutant.source.startswith('#include "rows.hpp"  // 3 rows')
        for mutant in mutants_of_cpp(file)
    )
