// Bindings of the kernel tables, used by hasten.ops alone. `isa` names the table; "auto" is what the process chose.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "bindings/names.h"
#include "bindings/shapes.h"
#include "cpu/dispatch.h"
#include "kernels/pack.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace hasten {
void bind_row_kernels(nb::module_& m);
void bind_attention_kernels(nb::module_& m);

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<uint8_t, Free>;

AlignedBytes aligned_bytes(size_t size) {
  AlignedBytes bytes(static_cast<uint8_t*>(std::aligned_alloc(kPackAlign, (size + kPackAlign - 1) / kPackAlign * kPackAlign)));
  if (!bytes) throw std::bad_alloc();
  return bytes;
}

struct Weights {
  AlignedBytes bytes;
  PackedMatrix matrix;
};

// Activations as one table's matmul reads them.
struct Quantized {
  const KernelTable* table;
  AlignedBytes operand;
  std::vector<float> scales;
  std::vector<int32_t> group_sums;
  int num_rows;
  QuantizedRows rows;
};

std::unique_ptr<Weights> pack_matrix(const std::string& format_name, Bytes rows, int k) {
  const WeightFormat format = value_of("weight format", kWeightFormats, format_name);
  const auto n = static_cast<int>(rows.shape(0));
  check_packable(format, n, k, rows.shape(1));
  nb::gil_scoped_release nogil;
  auto weights = std::make_unique<Weights>();
  weights->bytes = aligned_bytes(packed_bytes(format, n, k));
  weights->matrix = pack(format, n, k, rows.data(), rows.shape(1), weights->bytes.get());
  return weights;
}

std::unique_ptr<Quantized> quantize(ConstFloats2 x, const std::string& isa) {
  const auto k = static_cast<int>(x.shape(1)), num_rows = static_cast<int>(x.shape(0));
  if (k == 0 || k % kGroup != 0) throw nb::value_error("the row length must be a positive multiple of 32");
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  auto q = std::make_unique<Quantized>();
  const auto rows = static_cast<size_t>(num_rows), width = static_cast<size_t>(k);
  q->table = &table;
  q->num_rows = num_rows;
  q->operand = aligned_bytes(rows * 2 * width);
  q->scales.resize(rows * width / static_cast<size_t>(k_block_for(k)));
  q->group_sums.resize(rows * width / kGroup);
  q->rows = {q->operand.get(), q->scales.data(), q->group_sums.data(), k, k_block_for(k)};
  table.quantize_rows(x.data(), k, 0, num_rows, q->rows);
  return q;
}

struct Range {
  int begin, end;
};

void check_range(const char* what, Range range, int limit) {
  if (range.begin < 0 || range.begin > range.end || range.end > limit) {
    throw nb::value_error((std::string(what) + " " + std::to_string(range.begin) + " to " + std::to_string(range.end) + " of " +
                           std::to_string(limit))
                              .c_str());
  }
}

using IntPair = std::pair<int, int>;

void matmul_quantized(const Weights& w, const Quantized& x, Floats2 out, IntPair panels, IntPair rows) {
  check_range("panels", {panels.first, panels.second}, w.matrix.num_panels());
  check_range("rows", {rows.first, rows.second}, x.num_rows);
  check_shape("out", out, {static_cast<size_t>(x.num_rows), static_cast<size_t>(w.matrix.n)});
  if (w.matrix.k != x.rows.k) throw nb::value_error("the weights and the activations have different row lengths");
  if (w.matrix.scales == nullptr) throw nb::value_error("float weights go to matmul_dense");
  nb::gil_scoped_release nogil;
  x.table->matmul_quantized(w.matrix, panels.first, panels.second, x.rows, rows.first, rows.second, out.data(), w.matrix.n);
}

void matmul_dense(const Weights& w, ConstFloats2 x, Floats2 out, IntPair panels, IntPair rows, const std::string& isa) {
  check_range("panels", {panels.first, panels.second}, w.matrix.num_panels());
  check_range("rows", {rows.first, rows.second}, static_cast<int>(x.shape(0)));
  check_shape("x", x, {x.shape(0), static_cast<size_t>(w.matrix.k)});
  check_shape("out", out, {x.shape(0), static_cast<size_t>(w.matrix.n)});
  if (w.matrix.scales != nullptr) throw nb::value_error("quantized weights go to matmul_quantized");
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  table.matmul_dense(w.matrix, panels.first, panels.second, x.data(), w.matrix.k, rows.first, rows.second, out.data(),
                     w.matrix.n);
}

void unpack_row(const Weights& w, int row, Floats1 out, const std::string& isa) {
  check_range("row", {row, row + 1}, w.matrix.n);
  check_shape("out", out, {static_cast<size_t>(w.matrix.k)});
  select_kernels(isa).unpack_row(w.matrix, row, out.data());
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Isa isa : available_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  m.def("selected_isa", [](const std::string& isa) { return isa_name(select_kernels(isa).isa); }, "isa"_a);
  nb::class_<Weights>(m, "PackedWeights")
      .def_prop_ro("n", [](const Weights& w) { return w.matrix.n; })
      .def_prop_ro("k", [](const Weights& w) { return w.matrix.k; })
      .def_prop_ro("k_block", [](const Weights& w) { return w.matrix.k_block; })
      .def_prop_ro("num_panels", [](const Weights& w) { return w.matrix.num_panels(); })
      .def_prop_ro("is_quantized", [](const Weights& w) { return w.matrix.scales != nullptr; })
      .def_prop_ro("nbytes", [](const Weights& w) { return packed_bytes(w.matrix.format, w.matrix.n, w.matrix.k); });
  nb::class_<Quantized>(m, "QuantizedRows")
      .def_prop_ro("num_rows", [](const Quantized& q) { return q.num_rows; })
      .def_prop_ro("scales", [](const Quantized& q) { return q.scales; })
      .def_prop_ro("group_sums", [](const Quantized& q) { return q.group_sums; });
  m.def("pack", pack_matrix, "format"_a, "rows"_a.noconvert(), "k"_a);
  m.def("quantize_rows", quantize, "x"_a.noconvert(), "isa"_a);
  m.def("matmul_quantized", matmul_quantized, "weights"_a, "x"_a, "out"_a.noconvert(), "panels"_a, "rows"_a);
  m.def("matmul_dense", matmul_dense, "weights"_a, "x"_a.noconvert(), "out"_a.noconvert(), "panels"_a, "rows"_a, "isa"_a);
  m.def("unpack_row", unpack_row, "weights"_a, "row"_a, "out"_a.noconvert(), "isa"_a);
  bind_row_kernels(m);
  bind_attention_kernels(m);
}

}  // namespace hasten
