// Plain data for bias, activation and dropout in one pass (see types.hpp for why there are no
// functions here).
#pragma once

#include <cstdint>

#include "types.hpp"

namespace spgnn {

// y = dropout(relu(x + bias)), each step rounded to T; y may be x.
template <class T>
struct UpdateOperands {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  std::int64_t count;  // of rows
  const Sum<T>* bias;  // or null
  bool relu;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped
  DropoutRule rule;
};

// dx = g · factor where it was kept and positive, else 0; and the sums of its columns.
template <class T>
struct UpdateGradients {
  const T* g;
  std::int64_t g_stride;
  const T* y;  // the result, whose sign says what a ReLU let pass and dropout kept; or null
  std::int64_t y_stride;
  T* dx;
  std::int64_t dx_stride;
  std::int64_t columns;
  std::int64_t count;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped, or y says what was
  DropoutRule rule;                // of which the factor counts with y as well
};

}  // namespace spgnn
