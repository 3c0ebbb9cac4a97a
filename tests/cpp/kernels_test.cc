// Every kernel of every table: the same bits as the scalar one, at edge sizes; and, for the integer formats and attention, the
// value that a plain double loop gives. Built to run under address and undefined-behaviour sanitizers: every buffer has exactly
// the size the contract promises.
#include "support/attention_cases.h"
#include "support/check.h"
#include "support/matrices.h"
#include "support/tables.h"

namespace hasten::test {
namespace {

constexpr WeightFormat kQuantized[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1};
constexpr WeightFormat kDense[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16};

std::vector<float> run_quantized(const KernelTable& table, const Matrix& m, const std::vector<float>& x, int num_rows) {
  const Activations a(table, x, num_rows, m.k);
  std::vector<float> out(static_cast<size_t>(num_rows * m.n), -1.0f);
  const int middle = m.packed.num_panels() / 2;
  table.matmul_quantized(m.packed, 0, middle, a.rows, 0, num_rows, out.data(), m.n);
  table.matmul_quantized(m.packed, middle, m.packed.num_panels(), a.rows, 0, num_rows, out.data(), m.n);
  return out;
}

// |error| per output <= rounding of activations (half a step of amax / 32258 a value) and of float32 sums.
void check_against_double(const Matrix& m, const std::vector<float>& x, const std::vector<float>& out, int num_rows,
                          double step, const std::string& what) {
  for (int r = 0; r < num_rows; ++r) {
    for (int o = 0; o < m.n; ++o) {
      double sum = 0.0, magnitude = 0.0, weights = 0.0, amax = 0.0;
      for (int i = 0; i < m.k; ++i) {
        const double w = m.values[static_cast<size_t>(o * m.k + i)], a = x[static_cast<size_t>(r * m.k + i)];
        sum += w * a;
        magnitude += std::fabs(w * a);
        weights += std::fabs(w);
        amax = std::fmax(amax, std::fabs(a));
      }
      // Q4_1 adds d·code and min apart: their float32 rounding is relative to sums up to 4 times larger here.
      const double bound = step * amax * weights + (m.k + 8) * 0x1p-23 * 4.0 * magnitude + 1e-6 * amax * weights;
      const double error = std::fabs(sum - static_cast<double>(out[static_cast<size_t>(r * m.n + o)]));
      check(error <= bound, what + " row " + std::to_string(r) + " output " + std::to_string(o));
    }
  }
}

void test_matmul_quantized() {
  const int shapes[][2] = {{1, 32}, {15, 64}, {16, 96}, {17, 192}, {33, 256}, {40, 576}};
  for (const WeightFormat format : kQuantized) {
    for (const auto& shape : shapes) {
      const Matrix m = make_matrix(format, shape[0], shape[1], 7);
      for (const int num_rows : {1, 2, 3, 4, 5, 9}) {
        const auto x = Random(11).normals(static_cast<size_t>(num_rows * m.k));
        const auto expected = run_quantized(kScalarKernels, m, x, num_rows);
        const std::string what = "matmul_quantized format " + std::to_string(static_cast<int>(format)) + " n " +
                                 std::to_string(m.n) + " k " + std::to_string(m.k) + " rows " + std::to_string(num_rows);
        check_against_double(m, x, expected, num_rows, 0.5 / 32258.0, what);
        for (const auto& [name, table] : all_tables()) {
          check_same_bits(run_quantized(*table, m, x, num_rows), expected, name + " " + what);
        }
      }
    }
  }
}

void test_extreme_integers() {
  for (const WeightFormat format : kQuantized) {
    for (const Fill fill : {Fill::kLargestCodes, Fill::kSmallestCodes}) {
      const Matrix m = make_matrix(format, 16, 256, 3, fill);
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(256, sign);  // every value is its block's largest: wide = ±32258
        const auto expected = run_quantized(kScalarKernels, m, x, 1);
        check_against_double(m, x, expected, 1, 0.0, "extreme codes");
        for (const auto& [name, table] : all_tables()) check_same_bits(run_quantized(*table, m, x, 1), expected, name);
      }
    }
  }
}

void test_quantize_rows() {
  const float inf = __builtin_inff(), nan = __builtin_nanf("");
  for (const int k : {32, 64, 192, 256, 576}) {
    std::vector<float> x = Random(5).normals(static_cast<size_t>(6 * k), 3.0f);
    for (int i = 0; i < k; ++i) x[static_cast<size_t>(k + i)] = 0.0f;
    for (int i = 0; i < k; ++i) x[static_cast<size_t>(2 * k + i)] = 1e-31f;
    x[static_cast<size_t>(3 * k)] = nan;
    x[static_cast<size_t>(4 * k + 1)] = -inf;
    for (int i = 0; i < k; ++i) x[static_cast<size_t>(5 * k + i)] = static_cast<float>(i - 16) * 0.5f / 32258.0f;  // ties
    x[static_cast<size_t>(5 * k)] = 1.0f;
    const Activations expected(kScalarKernels, x, 6, k);
    check(expected.scales[static_cast<size_t>(k / k_block_for(k))] == 0.0f, "zero row has scale 0");
    for (const auto& [name, table] : all_tables()) {
      const Activations actual(*table, x, 6, k);
      check_same_bits(actual.scales, expected.scales, name + " quantize_rows scales");
      check(actual.group_sums == expected.group_sums, name + " quantize_rows group sums");
    }
  }
}

void test_matmul_dense() {
  const int shapes[][2] = {{1, 1}, {15, 63}, {16, 64}, {17, 65}, {35, 200}};
  for (const WeightFormat format : kDense) {
    for (const auto& shape : shapes) {
      const Matrix m = make_matrix(format, shape[0], shape[1], 9);
      for (const int num_rows : {1, 3, 4, 6}) {
        const auto x = Random(13).normals(static_cast<size_t>(num_rows * m.k));
        std::vector<float> expected(static_cast<size_t>(num_rows * m.n));
        kScalarKernels.matmul_dense(m.packed, 0, m.packed.num_panels(), x.data(), m.k, 0, num_rows, expected.data(), m.n);
        check_against_double(m, x, expected, num_rows, 0.0, "matmul_dense");
        for (const auto& [name, table] : all_tables()) {
          std::vector<float> out(expected.size());
          table->matmul_dense(m.packed, 0, m.packed.num_panels(), x.data(), m.k, 0, num_rows, out.data(), m.n);
          check_same_bits(out, expected, name + " matmul_dense");
        }
      }
    }
  }
}

void test_unpack_row() {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kQ8_0,
                                    WeightFormat::kQ4_0, WeightFormat::kQ4_1}) {
    const Matrix m = make_matrix(format, 19, 96, 17);
    for (const auto& [name, table] : all_tables()) {
      for (int row = 0; row < m.n; ++row) {
        std::vector<float> out(96), expected(96);
        table->unpack_row(m.packed, row, out.data());
        for (size_t i = 0; i < 96; ++i) expected[i] = static_cast<float>(m.values[static_cast<size_t>(row) * 96 + i]);
        check_same_bits(out, expected, name + " unpack_row");
      }
    }
  }
}

using RowKernel = void (*)(const KernelTable&, std::vector<float>& x, const std::vector<float>& y);

void test_rows() {
  const std::pair<const char*, RowKernel> kernels[] = {
      {"rms_norm", [](const KernelTable& t, auto& x,
                      const auto& y) { t.rms_norm(x.data(), y.data(), x.data(), static_cast<int>(x.size()), 1e-5f); }},
      {"add", [](const KernelTable& t, auto& x, const auto& y) { t.add(x.data(), y.data(), static_cast<int>(x.size())); }},
      {"silu_mul", [](const KernelTable& t, auto& x,
                      const auto& y) { t.silu_mul(x.data(), y.data(), x.data(), static_cast<int>(x.size())); }},
      {"exp_scaled", [](const KernelTable& t, auto& x,
                        const auto&) { t.exp_scaled(x.data(), 0.7f, 1.5f, x.data(), static_cast<int>(x.size())); }},
      {"hadamard", [](const KernelTable& t, auto& x, const auto&) { t.hadamard(x.data(), static_cast<int>(x.size())); }},
      {"rope",
       [](const KernelTable& t, auto& x, const auto& y) {
         t.rope(x.data(), y.data(), y.data() + 1, static_cast<int>(x.size()) / 2 * 2 - (x.size() > 2 ? 2 : 0), false);
       }},
      {"rope interleaved",
       [](const KernelTable& t, auto& x, const auto& y) {
         t.rope(x.data(), y.data(), y.data() + 1, static_cast<int>(x.size()) / 2 * 2 - (x.size() > 2 ? 2 : 0), true);
       }},
      {"log_sum_exp",
       [](const KernelTable& t, auto& x, const auto&) { x[0] = t.log_sum_exp(x.data(), static_cast<int>(x.size())); }},
      {"argmax", [](const KernelTable& t, auto& x,
                    const auto&) { x[0] = static_cast<float>(t.argmax(x.data(), static_cast<int>(x.size()))); }},
  };
  for (const int n : {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 576}) {
    for (const float spread : {1.0f, 40.0f, 200.0f}) {
      const auto x = Random(static_cast<uint32_t>(n)).normals(static_cast<size_t>(n), spread);
      const auto y = Random(99).normals(static_cast<size_t>(n + 1));
      for (const auto& [what, kernel] : kernels) {
        auto expected = x;
        kernel(kScalarKernels, expected, y);
        for (const auto& [name, table] : all_tables()) {
          auto actual = x;
          kernel(*table, actual, y);
          check_same_bits(actual, expected, name + " " + what + " n " + std::to_string(n));
        }
      }
    }
  }
}

void test_argmax_ties() {
  Random random(23);
  for (int n = 1; n < 70; ++n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = random.below(5) == 0 ? __builtin_nanf("") : static_cast<float>(random.below(3));
    int expected = -1;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      if (x[at] == x[at] && (expected < 0 || x[at] > x[static_cast<size_t>(expected)])) expected = i;
    }
    for (const auto& [name, table] : all_tables()) check(table->argmax(x.data(), n) == expected, name + " argmax of ties");
  }
}

void test_exp_values() {
  for (const auto& [name, table] : all_tables()) {
    for (float x = -87.3f; x < 88.7f; x += 0.0137f) {
      float out;
      table->exp_scaled(&x, 1.0f, 0.0f, &out, 1);
      const double exact = std::exp(static_cast<double>(x));
      check(std::fabs(static_cast<double>(out) - exact) <= 2.0 * 0x1p-23 * exact, name + " exp " + std::to_string(x));
    }
  }
}

void test_own_math() {
  Random random(21);
  for (int i = 0; i < 20000; ++i) {
    const double x = static_cast<double>(random.normal()) * std::pow(10.0, random.below(9));
    double sin, cos;
    own_sin_cos(x, &sin, &cos);
    check(std::fabs(sin - std::sin(x)) <= 1e-14 * std::fabs(std::sin(x)), "sin " + std::to_string(x));
    check(std::fabs(cos - std::cos(x)) <= 1e-14 * std::fabs(std::cos(x)), "cos " + std::to_string(x));
    const double small = static_cast<double>(random.normal()) * 120.0;  // e^small stays finite and normal
    check(std::fabs(own_exp(small) - std::exp(small)) <= 1e-14 * std::exp(small), "exp " + std::to_string(small));
    const double near_one = 1.0 + static_cast<double>(random.normal()) * std::pow(10.0, -random.below(12)) * 0.1;
    for (const double y : {std::exp(small), near_one}) {
      if (y > 0.0) check(std::fabs(own_log(y) - std::log(y)) <= 1e-14 * std::fabs(std::log(y)), "log " + std::to_string(y));
    }
  }
  check(own_exp(-1e300) == 0.0 && own_exp(1e300) == HUGE_VAL && own_exp(0.0) == 1.0, "exp at the ends");
  check(own_log(0.0) == -HUGE_VAL && own_log(1.0) == 0.0 && own_log(HUGE_VAL) == HUGE_VAL, "log at the ends");
  check(std::isnan(own_log(-1.0)) && std::isnan(own_exp(NAN)) && std::isnan(own_log(NAN)), "NaN stays NaN");
}

}  // namespace
}  // namespace hasten::test

int main() {
  using namespace hasten::test;
  test_matmul_quantized();
  test_extreme_integers();
  test_quantize_rows();
  test_matmul_dense();
  test_unpack_row();
  test_rows();
  test_argmax_ties();
  test_exp_values();
  test_own_math();
  test_attention();
  return report();
}
