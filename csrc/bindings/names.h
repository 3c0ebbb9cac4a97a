// The words Python has for the formats of weights and K/V and for the kinds of RoPE scaling.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "model/config.h"

namespace hasten {

template <typename E>
struct Named {
  const char* name;
  E value;
};

inline constexpr Named<WeightFormat> kWeightFormats[] = {{"f32", WeightFormat::kF32},   {"f16", WeightFormat::kF16},
                                                         {"bf16", WeightFormat::kBF16}, {"q8_0", WeightFormat::kQ8_0},
                                                         {"q4_0", WeightFormat::kQ4_0}, {"q4_1", WeightFormat::kQ4_1}};
inline constexpr Named<KvFormat> kKvFormats[] = {{"bf16", KvFormat::kBF16}, {"int8", KvFormat::kInt8}, {"f32", KvFormat::kF32}};
inline constexpr Named<RopeScaling> kRopeScalings[] = {
    {"default", RopeScaling::kDefault}, {"linear", RopeScaling::kLinear}, {"llama3", RopeScaling::kLlama3}};

// `what` is one of `words`. ValueError with all of them for any other.
template <typename E, size_t kCount>
E value_of(const char* what, const Named<E> (&words)[kCount], const std::string& word) {
  std::string known;
  for (const Named<E>& entry : words) {
    if (word == entry.name) return entry.value;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw nanobind::value_error(("unknown " + std::string(what) + " '" + word + "': hasten has " + known).c_str());
}

template <typename E, size_t kCount>
const char* word_of(const Named<E> (&words)[kCount], E value) {
  for (const Named<E>& entry : words) {
    if (value == entry.value) return entry.name;
  }
  return "";
}

}  // namespace hasten
