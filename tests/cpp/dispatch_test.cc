// Prints the kernel table this process chose and a hash of what its kernels compute: the name differs from CPU to CPU, the hash
// does not. Runs under emulated CPUs too, where an instruction the CPU lacks would kill it.
#include "support/check.h"
#include "support/matrices.h"
#include "support/tables.h"

namespace hasten::test {
namespace {

class Hash {  // FNV-1a over the bits
 public:
  void add(const std::vector<float>& values) {
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      for (int shift = 0; shift < 32; shift += 8) state_ = (state_ ^ (bits >> shift & 255u)) * 1099511628211ull;
    }
  }
  unsigned long long state() const { return state_; }

 private:
  uint64_t state_ = 14695981039346656037ull;
};

void hash_matmuls(const KernelTable& table, Hash& hash) {
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kF16}) {
    const Matrix m = make_matrix(format, 20, 192, 41);
    std::vector<float> x(5 * 192), out(5 * 20);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37) % 101) / 50.0f - 1.0f;  // no libm: same everywhere
    if (format == WeightFormat::kF16) {
      table.matmul_dense(m.packed, 0, m.packed.num_panels(), x.data(), 192, 0, 5, out.data(), 20);
    } else {
      const Activations a(table, x, 5, 192);
      table.matmul_quantized(m.packed, 0, m.packed.num_panels(), a.rows, 0, 5, out.data(), 20);
    }
    hash.add(out);
  }
}

void hash_rows(const KernelTable& table, Hash& hash) {
  std::vector<float> x(100), out(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 29) % 97) / 10.0f - 5.0f;
  table.rms_norm(x.data(), x.data(), out.data(), 100, 1e-5f);
  hash.add(out);
  table.silu_mul(x.data(), out.data(), out.data(), 100);
  table.hadamard(out.data(), 100);
  hash.add(out);
  hash.add({table.log_sum_exp(x.data(), 100), static_cast<float>(table.argmax(x.data(), 100))});
}

}  // namespace
}  // namespace hasten::test

int main() {
  using namespace hasten;
  const KernelTable& chosen = select_kernels("auto");
  test::Hash first;
  for (const auto& [name, table] : test::all_tables()) {
    test::Hash hash;
    test::hash_matmuls(*table, hash);
    test::hash_rows(*table, hash);
    if (table == &kScalarKernels) first = hash;
    test::check(hash.state() == first.state(), name + " computes other bits than scalar");
  }
  std::printf("table %s hash %016llx\n", isa_name(chosen.isa), first.state());
  return test::report();
}
