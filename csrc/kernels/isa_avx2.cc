// The avx2 table: the loops of the -inl.h files over vec_avx2.h.
//
// Built with -mavx2 -mfma -mf16c, so nothing here may run, or be kept by the linker, on a CPU without them: everything but the
// table is in anonymous namespaces, no function of a shared header is inlined from here (the linker keeps one copy of those for
// the whole program), and the table is constant-initialised.
// clang-format off: the lanes come before the loops
#include "kernels/vec_avx2.h"
// clang-format on
#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/kv_write-inl.h"
#include "kernels/matmul_avx2-inl.h"
#include "kernels/matmul_dense-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/sampling-inl.h"
#include "kernels/unpack_row-inl.h"

namespace hasten {

const KernelTable kAvx2Kernels = {
    .isa = Isa::kAvx2,
    .quantize_rows = quantize_rows,
    .matmul_quantized = matmul_quantized,
    .matmul_dense = matmul_dense,
    .unpack_row = unpack_row,
    .rms_norm = rms_norm,
    .add = add,
    .silu_mul = silu_mul,
    .rope = rope,
    .hadamard = hadamard,
    .write_k = write_k,
    .write_v = write_v,
    .attend_span = attend_span,
    .attend_merge = attend_merge,
    .attend_finish = attend_finish,
    .argmax = argmax,
    .log_sum_exp = log_sum_exp,
    .exp_scaled = exp_scaled,
};

}  // namespace hasten
