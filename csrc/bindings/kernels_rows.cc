// Bindings of the kernels that work on one row at a time: norm, residual, activation, rotation, sampling, own functions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "bindings/shapes.h"
#include "cpu/dispatch.h"

namespace hasten {
namespace {

using nb::literals::operator""_a;

int length(const ConstFloats1& x) { return static_cast<int>(x.shape(0)); }

void rms_norm(ConstFloats2 x, ConstFloats1 weight, Floats2 out, float eps, const std::string& isa) {
  check_shape("weight", weight, {x.shape(1)});
  check_shape("out", out, {x.shape(0), x.shape(1)});
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  const size_t n = x.shape(1);
  for (size_t row = 0; row < x.shape(0); ++row) {
    table.rms_norm(x.data() + row * n, weight.data(), out.data() + row * n, static_cast<int>(n), eps);
  }
}

void add(Floats1 x, ConstFloats1 y, const std::string& isa) {
  check_shape("y", y, {x.shape(0)});
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  table.add(x.data(), y.data(), length(y));
}

void silu_mul(ConstFloats1 gate, ConstFloats1 up, Floats1 out, const std::string& isa) {
  check_shape("up", up, {gate.shape(0)});
  check_shape("out", out, {gate.shape(0)});
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  table.silu_mul(gate.data(), up.data(), out.data(), length(gate));
}

void rope(Floats1 head, ConstFloats1 cos, ConstFloats1 sin, bool interleaved, const std::string& isa) {
  check_shape("sin", sin, {cos.shape(0)});
  if (cos.shape(0) * 2 > head.shape(0)) throw nb::value_error("more rotated dimensions than the head has");
  select_kernels(isa).rope(head.data(), cos.data(), sin.data(), 2 * length(cos), interleaved);
}

void hadamard(Floats1 x, const std::string& isa) { select_kernels(isa).hadamard(x.data(), static_cast<int>(x.shape(0))); }

int argmax(ConstFloats1 x, const std::string& isa) {
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  return table.argmax(x.data(), length(x));
}

float log_sum_exp(ConstFloats1 x, const std::string& isa) {
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  return table.log_sum_exp(x.data(), length(x));
}

void exp_scaled(ConstFloats1 x, float scale, float shift, Floats1 out, const std::string& isa) {
  check_shape("out", out, {x.shape(0)});
  const KernelTable& table = select_kernels(isa);
  nb::gil_scoped_release nogil;
  table.exp_scaled(x.data(), scale, shift, out.data(), length(x));
}

}  // namespace

void bind_row_kernels(nb::module_& m) {
  m.def("rms_norm", rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "out"_a.noconvert(), "eps"_a, "isa"_a);
  m.def("add", add, "x"_a.noconvert(), "y"_a.noconvert(), "isa"_a);
  m.def("silu_mul", silu_mul, "gate"_a.noconvert(), "up"_a.noconvert(), "out"_a.noconvert(), "isa"_a);
  m.def("rope", rope, "head"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "interleaved"_a, "isa"_a);
  m.def("hadamard", hadamard, "x"_a.noconvert(), "isa"_a);
  m.def("argmax", argmax, "x"_a.noconvert(), "isa"_a);
  m.def("log_sum_exp", log_sum_exp, "x"_a.noconvert(), "isa"_a);
  m.def("exp_scaled", exp_scaled, "x"_a.noconvert(), "scale"_a, "shift"_a, "out"_a.noconvert(), "isa"_a);
  m.def("own_exp", own_exp, "x"_a);
  m.def("own_log", own_log, "x"_a);
  m.def(
      "own_sin_cos",
      [](double x) {
        std::pair<double, double> result;
        own_sin_cos(x, &result.first, &result.second);
        return result;
      },
      "x"_a);
}

}  // namespace hasten
