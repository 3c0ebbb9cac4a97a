// The smallest harness that names what failed: CHECK counts, main returns report().
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace hasten::test {

inline int num_checks = 0;
inline int num_failed = 0;

inline void check(bool ok, const std::string& what) {
  ++num_checks;
  if (ok) return;
  ++num_failed;
  if (num_failed <= 20) std::printf("FAILED: %s\n", what.c_str());
}

inline int report() {
  std::printf("%d checks, %d failed\n", num_checks, num_failed);
  return num_failed == 0 && num_checks > 0 ? 0 : 1;
}

// Equal bits, or NaN on both sides. Returns the first index that differs, or -1.
inline int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(a[i] != a[i] && b[i] != b[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

inline void check_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  const int64_t at = first_difference(a, b);
  check(at < 0, what + (at < 0 ? "" : " differs at " + std::to_string(at)));
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal() { return normal_(engine_); }
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  std::vector<float> normals(size_t n, float scale = 1.0f) {
    std::vector<float> x(n);
    for (float& v : x) v = normal() * scale;
    return x;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

}  // namespace hasten::test
