// The kernels of dense products and of losses.
#pragma once

#include "types.hpp"

namespace spgnn {

// What passes of a product: where y, of its shape, is not positive, it is zero. All without y.
struct GemmPassing {
  const float* y;
  std::int64_t stride;
};

struct GemmKernels {
  std::int64_t lanes;  // of a vector
  // Adds up the columns in `sums` [whole vectors], if there is y.
  void (*product)(const GemmProduct&, const GemmPassing&, Span rows, float* sums);
  void (*gradient)(const GemmGradient&, Span rows, float* room, float* sums);
};

// The loss of the rows that have a target and are in the mask, if there is one, and its gradient if
// dx is not null. NaN if a target is no column.
template <class T>
using CrossEntropyKernel = double (*)(const CrossEntropyGradient<T>&, const bool* mask, Span rows);

struct CrossEntropyTable {
  CrossEntropyKernel<float> of_float;
  CrossEntropyKernel<double> of_double;
};

}  // namespace spgnn
