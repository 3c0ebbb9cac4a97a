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
// clang-format off: the table comes after the loops
#include "kernels/table-inl.h"
// clang-format on

namespace hasten {

constinit const KernelTable kAvx2Kernels = table_of(Isa::kAvx2);

}  // namespace hasten
