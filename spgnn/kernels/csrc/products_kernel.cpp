// Products, numbers of nonzeros and rows, and the table of one instruction set.
#include "rows_kernel.hpp"
#include "simd.hpp"
#include "spmm_kernel.hpp"

namespace spgnn::SPGNN_ISA {

// The inner loops over the nonzeros of one row: softmax, and sums that go back to every nonzero.
// Written for the compiler to vectorise: number i is added to lane i % lanes, whatever the heads.

inline constexpr i64 kLeastLanes = 16;

// A multiple of the heads, so that all of a lane's numbers belong to one.
inline i64 lanes_of(i64 heads) { return heads * (heads < kLeastLanes ? kLeastLanes / heads : 1); }

// f(number, lane) for each.
template <class Function>
[[gnu::always_inline]] inline void for_each_lane(i64 count, i64 lanes, Function f) {
  i64 i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma GCC ivdep
    for (i64 j = 0; j < lanes; ++j) f(i + j, j);
  }
#pragma GCC ivdep
  for (i64 j = 0; j < count - i; ++j) f(i + j, j);
}

// What each head has, in all of its lanes.
template <class S> inline void repeat(S* sums, i64 heads, i64 lanes) {
  for (i64 j = heads; j < lanes; ++j) sums[j] = sums[j - heads];
}

template <class S> inline void add_lanes(S* sums, i64 heads, i64 lanes) {
  for (i64 j = heads; j < lanes; ++j) sums[j % heads] += sums[j];
}

template <class T> void summarise(const T* x, i64 count, i64 heads, Sum<T>* largest, Sum<T>* sum) {
  using S = Sum<T>;
  const i64 lanes = lanes_of(heads);
  for (i64 j = 0; j < lanes; ++j) largest[j] = -static_cast<S>(__builtin_inf());
  for_each_lane(count, lanes, [=](i64 i, i64 j) {
    const S number = widen(x[i]);
    largest[j] = number > largest[j] ? number : largest[j];
  });
  for (i64 j = heads; j < lanes; ++j) {
    S& of_head = largest[j % heads];
    of_head = largest[j] > of_head ? largest[j] : of_head;
  }
  for (i64 j = 0; j < heads; ++j) {
    // Nothing but −∞: its exponentials are zeros, not those of −∞ + ∞.
    if (largest[j] == -static_cast<S>(__builtin_inf())) largest[j] = 0;
  }
  repeat(largest, heads, lanes);
  for (i64 j = 0; j < lanes; ++j) sum[j] = 0;
  for_each_lane(count, lanes,
                [=](i64 i, i64 j) { sum[j] += exp_of_negative<Sum<T>>(widen(x[i]) - largest[j]); });
  add_lanes(sum, heads, lanes);
}

template <class T>
void exponentials(const T* x, i64 count, i64 heads, Sum<T>* largest, Sum<T>* factor, T* y) {
  const i64 lanes = lanes_of(heads);
  repeat(largest, heads, lanes);
  repeat(factor, heads, lanes);
  for_each_lane(count, lanes, [=](i64 i, i64 j) {
    y[i] = narrow<T>(exp_of_negative<Sum<T>>(widen(x[i]) - largest[j]) * factor[j]);
  });
}

template <class T> void sum_products(const T* a, const T* b, i64 count, i64 heads, Sum<T>* sum) {
  const i64 lanes = lanes_of(heads);
  for (i64 j = 0; j < lanes; ++j) sum[j] = 0;
  if (b) {
    for_each_lane(count, lanes, [=](i64 i, i64 j) { sum[j] += widen(a[i]) * widen(b[i]); });
  } else {
    for_each_lane(count, lanes, [=](i64 i, i64 j) { sum[j] += widen(a[i]); });
  }
  add_lanes(sum, heads, lanes);
}

template <class T> void spread(i64 count, i64 heads, Sum<T>* sum, T* y) {
  const i64 lanes = lanes_of(heads);
  repeat(sum, heads, lanes);
  for_each_lane(count, lanes, [=](i64 i, i64 j) { y[i] = narrow<T>(sum[j]); });
}

template <class T, class Index>
inline constexpr SpmmKernels<T, Index> kSpmm{spmm_rows<T, Index>, spmm_block<T, Index>,
                                             spmm_partial<T, Index>, sddmm<T, Index>};
template <class T, class Index>
inline constexpr RowKernels<T, Index> kRows{gather_rows<T, Index>, scatter_add_rows<T, Index>};
template <class T>
inline constexpr SegmentKernels<T> kSegments{lanes_of, summarise<T>, exponentials<T>,
                                             sum_products<T>, spread<T>};

extern const KernelTable table{{kSpmm<float, i32>, kSpmm<float, i64>, kSpmm<double, i32>,
                                kSpmm<double, i64>, kSpmm<Bfloat16, i32>, kSpmm<Bfloat16, i64>},
                               {kRows<float, i32>, kRows<float, i64>, kRows<double, i32>,
                                kRows<double, i64>, kRows<Bfloat16, i32>, kRows<Bfloat16, i64>},
                               {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bfloat16>},
                               {kSegments<float>, kSegments<double>, kSegments<Bfloat16>},
                               &attention_table,
                               &weighing_table,
                               &quantise_table,
                               &edge_table,
                               &update_table,
                               &gemm_table,
                               &cross_entropy_table};

}  // namespace spgnn::SPGNN_ISA
