// Bindings of the attention kernels over one head's packed K and V blocks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bindings/names.h"
#include "bindings/shapes.h"
#include "cpu/dispatch.h"
#include "model/kv_layout.h"

namespace hasten {
namespace {

using nb::literals::operator""_a;

using Blocks = Array<uint8_t, 2>;  // [num_blocks, bytes of one head's K or V]
using ConstBlocks = Array<const uint8_t, 2>;
using ConstInts = Array<const int32_t, 1>;

struct HeadShape {
  KvFormat format;
  int head_dim;
  size_t bytes() const { return static_cast<size_t>(KvLayout{format, 1, 1, head_dim}.head_bytes()); }
};

HeadShape head_shape(const std::string& format, size_t head_dim) {
  if (head_dim == 0 || head_dim % kPanel != 0 || head_dim > kMaxHeadDim) {
    throw nb::value_error(
        ("head_dim " + std::to_string(head_dim) + ": must be a multiple of 16 up to " + std::to_string(kMaxHeadDim)).c_str());
  }
  return {value_of("KV format", kKvFormats, format), static_cast<int>(head_dim)};
}

void check_blocks(const char* name, size_t bytes, size_t needed) {
  if (bytes < needed) {
    throw nb::value_error(
        (std::string(name) + " has " + std::to_string(bytes) + " bytes a block, needs " + std::to_string(needed)).c_str());
  }
}

void write_kv(const std::string& format, bool is_value, ConstFloats1 x, int position, Blocks blocks, const std::string& isa) {
  const HeadShape shape = head_shape(format, x.shape(0));
  check_blocks("blocks", blocks.shape(1), shape.bytes());
  if (position < 0 || static_cast<size_t>(position / kKvBlock) >= blocks.shape(0)) {
    throw nb::value_error("the position lies outside the blocks");
  }
  const KernelTable& table = select_kernels(isa);
  uint8_t* base = blocks.data() + static_cast<size_t>(position / kKvBlock) * blocks.shape(1);
  (is_value ? table.write_v : table.write_k)(shape.format, x.data(), shape.head_dim, position % kKvBlock, base);
}

std::vector<const uint8_t*> block_pointers(const ConstBlocks& blocks) {
  std::vector<const uint8_t*> pointers;
  for (size_t i = 0; i < blocks.shape(0); ++i) pointers.push_back(blocks.data() + i * blocks.shape(1));
  return pointers;
}

void check_keys(const ConstInts& num_keys, size_t num_blocks) {
  for (size_t row = 0; row < num_keys.shape(0); ++row) {
    const int32_t keys = num_keys.data()[row];
    if (keys < 0 || keys > kKvSpan || static_cast<size_t>(keys) > num_blocks * kKvBlock) {
      throw nb::value_error(("row " + std::to_string(row) + " sees " + std::to_string(keys) + " keys").c_str());
    }
  }
}

void attend_span(const std::string& format, ConstFloats2 q, ConstInts num_keys, ConstBlocks k_blocks, ConstBlocks v_blocks,
                 float scale, Floats1 m, Floats1 l, Floats2 acc, const std::string& isa) {
  const size_t rows = q.shape(0);
  const HeadShape shape = head_shape(format, q.shape(1));
  check_blocks("k_blocks", k_blocks.shape(1), shape.bytes());
  check_shape("v_blocks", v_blocks, {k_blocks.shape(0), k_blocks.shape(1)});
  check_shape("num_keys", num_keys, {rows});
  check_shape("m", m, {rows});
  check_shape("l", l, {rows});
  check_shape("acc", acc, {rows, q.shape(1)});
  check_keys(num_keys, k_blocks.shape(0));
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  const auto k = block_pointers(k_blocks), v = block_pointers(v_blocks);
  std::vector<float> scratch(rows * kKvSpan);
  table.attend_span(shape.format, q.data(), shape.head_dim, static_cast<int>(rows), num_keys.data(), k.data(), v.data(),
                    shape.head_dim, scale, m.data(), l.data(), acc.data(), scratch.data());
}

// Folds span rows 1… into row 0, in order, in place.
void attend_merge(Floats1 m, Floats1 l, Floats2 acc, const std::string& isa) {
  check_shape("l", l, {m.shape(0)});
  check_shape("acc", acc, {m.shape(0), acc.shape(1)});
  head_shape("bf16", acc.shape(1));
  const KernelTable& table = select_kernels(isa);
  for (size_t span = 1; span < m.shape(0); ++span) {
    table.attend_merge(m.data(), l.data(), acc.data(), m.data()[span], l.data()[span], acc.data() + span * acc.shape(1),
                       static_cast<int>(acc.shape(1)));
  }
}

void attend_finish(ConstFloats1 acc, float l, Floats1 out, const std::string& isa) {
  head_shape("bf16", acc.shape(0));
  check_shape("out", out, {acc.shape(0)});
  select_kernels(isa).attend_finish(acc.data(), l, out.data(), static_cast<int>(acc.shape(0)));
}

}  // namespace

void bind_attention_kernels(nb::module_& m) {
  m.def("write_kv", write_kv, "format"_a, "is_value"_a, "x"_a.noconvert(), "position"_a, "blocks"_a.noconvert(), "isa"_a);
  m.def("attend_span", attend_span, "format"_a, "q"_a.noconvert(), "num_keys"_a.noconvert(), "k_blocks"_a.noconvert(),
        "v_blocks"_a.noconvert(), "scale"_a, "m"_a.noconvert(), "l"_a.noconvert(), "acc"_a.noconvert(), "isa"_a);
  m.def("attend_merge", attend_merge, "m"_a.noconvert(), "l"_a.noconvert(), "acc"_a.noconvert(), "isa"_a);
  m.def("attend_finish", attend_finish, "acc"_a.noconvert(), "l"_a, "out"_a.noconvert(), "isa"_a);
}

}  // namespace hasten
