// Plain data for bias, activation and dropout in one pass (see types.hpp for why there are no
// functions here).
#pragma once

#include <cstdint>

#include "types.hpp"

namespace spgnn {

// What is made of a number x. Where it is not positive: 0, alpha · x, alpha · (exp(x) − 1).
enum class Act : int { kNone, kRelu, kLeakyRelu, kElu };

// y = dropout(act(x + bias)), each step rounded to T; y may be x.
template <class T>
struct UpdateOperands {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  std::int64_t columns;
  std::int64_t count;  // of rows
  const Sum<T>* bias;  // or null
  Act act;
  double alpha;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped
  DropoutRule rule;
};

// dx = g · factor · act′ where it was kept, else 0; and the sums of its columns.
template <class T>
struct UpdateGradients {
  const T* g;
  std::int64_t g_stride;
  const T* y;  // the result; or null, without an activation
  std::int64_t y_stride;
  T* dx;
  std::int64_t dx_stride;
  std::int64_t columns;
  std::int64_t count;
  Act act;
  double alpha;
  const std::int64_t* vertex_ids;  // or null: nothing is dropped, or a ReLU's y says what was
  DropoutRule rule;                // of which the factor counts with y as well
};

}  // namespace spgnn
