"""Resources read from assembly, and reasons from compilers' output."""

from tercet.harness.cross_compile.nvcc import rows_of_output
from tercet.harness.cross_compile.report import CompileRow
from tercet.harness.cross_compile.resources import of_amdgcn, of_ptx
from tercet.harness.cross_compile.target import targets_of_device
from tercet.harness.cross_compile.units import reason

PTX = """
	ld.param.b64 	%rd1, [_forward_param_0];
	@%p1 ld.global.nc.L1::no_allocate.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	ld.global.b16 { %rs1 }, [ %rd2 + 0 ];
	ld.shared.v4.b32 	{%r1, %r2, %r3, %r4}, [%r9];
	cp.async.cg.shared.global [ %r10 + 0 ], [ %rd3 + 0 ], 0x10, %r11;
	@%p1 st.global.v2.b64 [ %rd4 + 0 ], { %rd5, %rd6 };
	st.global.f32 [ %rd7 + 0 ], %f1;
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1];
	wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd8, %rd9, 1, 1, 1, 0, 1;
	wgmma.wait_group.sync.aligned 0;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f2};
	tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r3, %p1;
"""

AMD = """
	global_load_dwordx4 v[2:5], v[0:1], off
	buffer_load_ushort v2, v3, s[4:7], 0 offen
	buffer_load_dword v3, s[4:7], 0 offen lds
	global_store_byte v[0:1], v2, off
	ds_read_b128 v[0:3], v4
	v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
    .private_segment_fixed_size: 0
    .sgpr_spill_count: 1
    .vgpr_count:     46
    .vgpr_spill_count: 2
"""

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3twoPf' for 'sm_90a'
ptxas info    : Function properties for _Z3twoPf
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compiling entry function '_Z3onePf' for 'sm_90a'
ptxas info    : Function properties for _Z3onePf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""

TWO_KERNELS = """
.visible .entry _Z3twoPf(
	.param .u64 _Z3twoPf_param_0
)
{
	ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd1];
}
.visible .entry _Z3onePf(
	.param .u64 _Z3onePf_param_0
)
{
	st.global.f32 	[%rd1], %f1;
	st.global.f32 	[%rd2], %f1;
}
"""


def test_ptx_is_counted() -> None:
    found = of_ptx(PTX, registers=40, spills=0, shared_bytes=64)
    assert (found.loads, found.load_bits, found.load_bits_mean) == (3, 128, 90.7)
    assert (found.stores, found.store_bits, found.store_bits_mean) == (2, 128, 80.0)
    assert found.instructions() == {"wgmma": 1, "tcgen05": 1, "mma": 1, "mfma": 0, "tma": 1}


def test_amd_assembly_is_counted() -> None:
    found = of_amdgcn(AMD, 4096)
    assert (found.registers, found.spills, found.shared_bytes) == (46, 12, 4096)
    assert (found.loads, found.load_bits, found.load_bits_mean) == (3, 128, 58.7)
    assert (found.stores, found.store_bits) == (1, 8)
    assert found.mfma == 1


def test_ptxas_output_is_split_by_kernel() -> None:
    row = CompileRow(
        implementation="cuda", kernel="x.cu", target="sm_90", variant="", outcome="skipped"
    )
    one, two = rows_of_output(row, PTXAS, TWO_KERNELS)
    assert (one.kernel, two.kernel) == ("_Z3onePf", "_Z3twoPf")
    assert one.resources is not None
    assert two.resources is not None
    assert (one.resources.registers, one.resources.spills, one.resources.stores) == (12, 0, 2)
    assert (two.resources.registers, two.resources.spills) == (40, 24)
    assert (two.resources.shared_bytes, two.resources.load_bits, two.resources.stores) == (
        2048,
        128,
        0,
    )


def test_a_traceback_ends_with_its_reason() -> None:
    log = "Traceback (most recent call last):\n  File \"/a/b.py\", line 1\nKeyError: 'maxnreg'\n"
    assert reason(log, 1) == "KeyError: 'maxnreg'"


def test_a_refusal_of_triton_comes_with_its_message() -> None:
    log = (
        "triton.compiler.errors.CompilationError: at 12:19:\n    x = load()\n"
        "                   ^\nrounding is not allowed for this destination\n"
    )
    assert reason(log, 1) == (
        "triton.compiler.errors.CompilationError: at 12:19: rounding is not allowed for this "
        "destination"
    )


def test_a_refusal_of_nvcc_is_its_error_without_the_folder() -> None:
    log = (
        '/home/me/ops/kernel.cuh(22): error: #error directive: "sm_90a alone"\n'
        '  #error "sm_90a alone"\n   ^\n\n'
        '1 error detected in the compilation of "/home/me/ops/kernel.cu".\n'
    )
    assert reason(log, 1) == 'kernel.cuh(22): error: #error directive: "sm_90a alone"'


def test_a_crash_says_what_came_before() -> None:
    log = "LLVM ERROR: Cannot select: intrinsic\nPLEASE submit a bug report\n #0 0x00 main\n"
    assert reason(log, -6) == (
        "the compiler crashed (signal 6): LLVM ERROR: Cannot select: intrinsic"
    )


def test_a_devices_table_is_for_its_target() -> None:
    assert targets_of_device("nvidia-h200") == ("sm_90",)
    assert targets_of_device("amd-instinct-mi300x") == ("gfx942",)
    assert targets_of_device("intel-max-1550") == ("sm_80", "sm_90", "sm_100", "gfx942")
