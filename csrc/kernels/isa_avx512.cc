// The avx512 table: the loops of the -inl.h files over vec_avx512.h.
//
// Built with AVX512 flags; the rules of isa_avx2.cc hold here too.
// clang-format off: the lanes come before the loops
#include "kernels/vec_avx512.h"
// clang-format on
#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/kv_write-inl.h"
#include "kernels/matmul_avx512-inl.h"
#include "kernels/matmul_dense-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/sampling-inl.h"
#include "kernels/unpack_row-inl.h"

namespace hasten {

#ifdef HASTEN_EMULATE_AVX512
extern const KernelTable kEmulatedAvx512Kernels;  // beside the real one, in the test program only
#define HASTEN_AVX512_TABLE kEmulatedAvx512Kernels
#else
#define HASTEN_AVX512_TABLE kAvx512Kernels
#endif

const KernelTable HASTEN_AVX512_TABLE = {
    .isa = Isa::kAvx512,
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
