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
// clang-format off: the table comes after the loops
#include "kernels/table-inl.h"
// clang-format on

namespace hasten {

#ifdef HASTEN_EMULATE_AVX512
extern const KernelTable kEmulatedAvx512Kernels;  // beside the real one, in the test program only
#define HASTEN_AVX512_TABLE kEmulatedAvx512Kernels
#else
#define HASTEN_AVX512_TABLE kAvx512Kernels
#endif

constinit const KernelTable HASTEN_AVX512_TABLE = table_of(Isa::kAvx512);

}  // namespace hasten
