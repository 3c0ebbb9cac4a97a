// Array types of the bindings and the check of their shapes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>

namespace hasten {

namespace nb = nanobind;

template <typename T, size_t kDims>
using Array = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Floats1 = Array<float, 1>;
using Floats2 = Array<float, 2>;
using ConstFloats1 = Array<const float, 1>;
using ConstFloats2 = Array<const float, 2>;

// ValueError naming both shapes.
template <typename A>
void check_shape(const char* name, const A& array, std::initializer_list<size_t> expected) {
  std::string found = "(", wanted = "(";
  bool same = array.ndim() == expected.size();
  size_t axis = 0;
  for (const size_t size : expected) {
    wanted += (axis == 0 ? "" : ", ") + std::to_string(size);
    same = same && axis < array.ndim() && array.shape(axis) == size;
    ++axis;
  }
  for (size_t i = 0; i < array.ndim(); ++i) found += (i == 0 ? "" : ", ") + std::to_string(array.shape(i));
  if (!same) throw nb::value_error((std::string(name) + " has shape " + found + "), expected " + wanted + ")").c_str());
}

}  // namespace hasten
