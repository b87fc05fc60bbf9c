// What the files that know Python share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "dispatch.hpp"

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void define_attention(nanobind::module_& m);
void define_quantise(nanobind::module_& m);
void define_update(nanobind::module_& m);
void define_extremes(nanobind::module_& m);
void define_gemm(nanobind::module_& m);
void define_cross_entropy(nanobind::module_& m);
