// RoPE angles in double precision with functions of our own, so that every machine gives the same bits.
#pragma once

#include <vector>

#include "model/config.h"

namespace hasten {

class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);

  // cos, sin: [dim / 2] float32 of position · inv_freq.
  void angles(int position, float* cos, float* sin) const;

  int half_dim() const { return static_cast<int>(inv_freq_.size()); }

 private:
  std::vector<double> inv_freq_;
};

}  // namespace hasten
