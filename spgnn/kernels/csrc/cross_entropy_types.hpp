// Plain data for softmax cross-entropy (see types.hpp for why there are no functions here).
#pragma once

#include <cstdint>

namespace spgnn {

// Of the rows whose target is not negative: Σ log Σ_c exp(x[i, c]) − x[i, target[i]].
template <class T>
struct CrossEntropyOperands {
  const T* x;
  std::int64_t x_stride;
  std::int64_t columns;
  std::int64_t count;  // of rows
  const std::int64_t* target;
};

// dx[i, c] = factor (softmax(x[i])[c] − [c = target[i]]), 0 where the target is negative.
template <class T>
struct CrossEntropyGradient {
  CrossEntropyOperands<T> of;
  T factor;
  T* dx;
  std::int64_t dx_stride;
};

}  // namespace spgnn
