#include "model/rope_table.h"

namespace hasten {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// Llama 3.1: long waves are slowed down by `factor`, short ones are kept, those between are blended.
double llama3_scaled(double inv_freq, const RopeConfig& config) {
  const double wavelength = kTwoPi / inv_freq;
  if (wavelength < config.original_max_position / config.high_freq_factor) return inv_freq;
  if (wavelength > config.original_max_position / config.low_freq_factor) return inv_freq / config.factor;
  const double smooth =
      (config.original_max_position / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - smooth) * inv_freq / config.factor + smooth * inv_freq;
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config) {
  const double log_base = own_log(config.base);
  for (int i = 0; i < config.dim / 2; ++i) {
    double inv_freq = own_exp(-(2.0 * i / config.dim) * log_base);
    if (config.scaling == RopeScaling::kLinear) inv_freq /= config.factor;
    if (config.scaling == RopeScaling::kLlama3) inv_freq = llama3_scaled(inv_freq, config);
    if (!config.freq_factors.empty()) inv_freq /= config.freq_factors[static_cast<size_t>(i)];
    inv_freq_.push_back(inv_freq);
  }
}

void RopeTable::angles(int position, float* cos, float* sin) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    double sin_value = 0.0;
    double cos_value = 0.0;
    own_sin_cos(position * inv_freq_[i], &sin_value, &cos_value);
    cos[i] = static_cast<float>(cos_value);
    sin[i] = static_cast<float>(sin_value);
  }
}

}  // namespace hasten
