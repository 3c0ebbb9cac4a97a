// Where a step's time goes, for profiling: wall time between barriers, by phase. Off by default.
#pragma once

#include <array>
#include <chrono>

namespace hasten {

enum class Phase : int { kEmbed, kPrepare, kQkv, kAttention, kOutput, kGateUp, kDown, kHead, kSample };
constexpr int kNumPhases = 9;
constexpr std::array<const char*, kNumPhases> kPhaseNames = {"embed",   "prepare", "qkv",  "attention", "output",
                                                             "gate_up", "down",    "head", "sample"};

class PhaseTimes {
 public:
  bool enabled = false;
  std::array<double, kNumPhases> seconds{};

  void begin() {
    if (enabled) last_ = Clock::now();
  }
  // By the last member to arrive at the barrier that ends the phase.
  void end(Phase phase) {
    const auto now = Clock::now();
    seconds[static_cast<size_t>(phase)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_{};
};

}  // namespace hasten
