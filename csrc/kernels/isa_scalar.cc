// The scalar table: the loops of the -inl.h files over vec_scalar.h.
// clang-format off: the lanes come before the loops
#include "kernels/vec_scalar.h"
// clang-format on
#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/kv_write-inl.h"
#include "kernels/matmul_dense-inl.h"
#include "kernels/matmul_scalar-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/sampling-inl.h"
#include "kernels/unpack_row-inl.h"
// clang-format off: the table comes after the loops
#include "kernels/table-inl.h"
// clang-format on

namespace hasten {

constinit const KernelTable kScalarKernels = table_of(Isa::kScalar);

}  // namespace hasten
