// The table of the loops that a file has included before this: every instruction set has the same ones.
#pragma once

#include "kernels/kernel_table.h"

namespace hasten {
namespace {

constexpr KernelTable table_of(Isa isa) {
  return {
      .isa = isa,
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
}

}  // namespace
}  // namespace hasten
