#include "cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace hasten {

#if defined(__x86_64__)
namespace {

// XCR0: which register state the operating system saves. Only valid when cpuid says OSXSAVE.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

constexpr bool has_all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

}  // namespace

CpuFeatures detect_cpu_features() {
  constexpr uint32_t kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;                // leaf 1, ecx
  constexpr uint32_t kAvx2 = 1u << 5;                                                                        // leaf 7, ebx
  constexpr uint32_t kAvx512f = 1u << 16, kAvx512dq = 1u << 17, kAvx512bw = 1u << 30, kAvx512vl = 1u << 31;  // leaf 7, ebx
  constexpr uint32_t kAvx512vnni = 1u << 11;                                                                 // leaf 7, ecx
  constexpr uint64_t kYmmState = 0x06, kZmmState = 0xe6;  // SSE, AVX; and opmask, upper halves, zmm16–31

  CpuFeatures found;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !has_all(ecx, kFma | kOsxsave | kAvx | kF16c)) return found;
  const uint64_t state = saved_state();
  if (!has_all(state, kYmmState)) return found;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  found.avx2 = has_all(ebx, kAvx2);
  found.avx512 = found.avx2 && has_all(ebx, kAvx512f | kAvx512dq | kAvx512bw | kAvx512vl) && has_all(ecx, kAvx512vnni) &&
                 has_all(state, kZmmState);
  return found;
}
#else
CpuFeatures detect_cpu_features() { return {}; }
#endif

}  // namespace hasten
