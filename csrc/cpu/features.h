// What this CPU and its operating system can run.
#pragma once

namespace hasten {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C, with the OS keeping 256-bit state
  bool avx512 = false;  // the above and AVX512 F, BW, VL, DQ, VNNI, with the OS keeping 512-bit state
};

CpuFeatures detect_cpu_features();

}  // namespace hasten
