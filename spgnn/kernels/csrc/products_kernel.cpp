// Products, numbers of nonzeros and rows, and the table of one instruction set.
#include "exponential.hpp"
#include "rows_kernel.hpp"
#include "spmm_kernel.hpp"

namespace spgnn::SPGNN_ISA {

// The inner loops over the nonzeros of one row: softmax, and sums that go back to every nonzero.
// Written for the compiler to vectorise: number i is added to lane i % lanes, whatever the heads.

inline constexpr std::int64_t kLeastLanes = 16;

// A multiple of the heads, so that all of a lane's numbers belong to one.
inline std::int64_t lanes_of(std::int64_t heads) {
  return heads * (heads < kLeastLanes ? kLeastLanes / heads : 1);
}

// f(number, lane) for each.
template <class Function>
[[gnu::always_inline]] inline void for_each_lane(std::int64_t count, std::int64_t lanes,
                                                 Function f) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < lanes; ++j) f(i + j, j);
  }
#pragma GCC ivdep
  for (std::int64_t j = 0; j < count - i; ++j) f(i + j, j);
}

// What each head has, in all of its lanes.
template <class S>
inline void repeat(S* sums, std::int64_t heads, std::int64_t lanes) {
  for (std::int64_t j = heads; j < lanes; ++j) sums[j] = sums[j - heads];
}

template <class S>
inline void add_lanes(S* sums, std::int64_t heads, std::int64_t lanes) {
  for (std::int64_t j = heads; j < lanes; ++j) sums[j % heads] += sums[j];
}

template <class T>
void summarise(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest, Sum<T>* sum) {
  using S = Sum<T>;
  const std::int64_t lanes = lanes_of(heads);
  for (std::int64_t j = 0; j < lanes; ++j) largest[j] = -static_cast<S>(__builtin_inf());
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    const S number = widen(x[i]);
    largest[j] = number > largest[j] ? number : largest[j];
  });
  for (std::int64_t j = heads; j < lanes; ++j) {
    S& of_head = largest[j % heads];
    of_head = largest[j] > of_head ? largest[j] : of_head;
  }
  for (std::int64_t j = 0; j < heads; ++j) {
    // Nothing but −∞: its exponentials are zeros, not those of −∞ + ∞.
    if (largest[j] == -static_cast<S>(__builtin_inf())) largest[j] = 0;
  }
  repeat(largest, heads, lanes);
  for (std::int64_t j = 0; j < lanes; ++j) sum[j] = 0;
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    sum[j] += exp_of_negative(widen(x[i]) - largest[j]);
  });
  add_lanes(sum, heads, lanes);
}

template <class T>
void exponentials(const T* x, std::int64_t count, std::int64_t heads, Sum<T>* largest,
                  Sum<T>* factor, T* y) {
  const std::int64_t lanes = lanes_of(heads);
  repeat(largest, heads, lanes);
  repeat(factor, heads, lanes);
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) {
    y[i] = narrow<T>(exp_of_negative(widen(x[i]) - largest[j]) * factor[j]);
  });
}

template <class T>
void sum_products(const T* a, const T* b, std::int64_t count, std::int64_t heads, Sum<T>* sum) {
  const std::int64_t lanes = lanes_of(heads);
  for (std::int64_t j = 0; j < lanes; ++j) sum[j] = 0;
  if (b) {
    for_each_lane(count, lanes,
                  [=](std::int64_t i, std::int64_t j) { sum[j] += widen(a[i]) * widen(b[i]); });
  } else {
    for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) { sum[j] += widen(a[i]); });
  }
  add_lanes(sum, heads, lanes);
}

template <class T>
void spread(std::int64_t count, std::int64_t heads, Sum<T>* sum, T* y) {
  const std::int64_t lanes = lanes_of(heads);
  repeat(sum, heads, lanes);
  for_each_lane(count, lanes, [=](std::int64_t i, std::int64_t j) { y[i] = narrow<T>(sum[j]); });
}

template <class T, class Index>
inline constexpr SpmmKernels<T, Index> kSpmm{spmm_rows<T, Index>, spmm_block<T, Index>,
                                             spmm_partial<T, Index>, sddmm<T, Index>};
template <class T, class Index>
inline constexpr RowKernels<T, Index> kRows{gather_rows<T, Index>, scatter_add_rows<T, Index>};
template <class T>
inline constexpr SegmentKernels<T> kSegments{lanes_of, summarise<T>, exponentials<T>,
                                             sum_products<T>, spread<T>};

// Compiled by themselves.
extern const AttentionTable attention_table;
extern const WeighingTable weighing_table;
extern const QuantiseTable quantise_table;
extern const ExtremeTable extreme_table;
extern const EdgeTable edge_table;
extern const UpdateTable update_table;
extern const GemmKernels gemm_table;
extern const CrossEntropyTable cross_entropy_table;

extern const KernelTable table{
    {kSpmm<float, std::int32_t>, kSpmm<float, std::int64_t>, kSpmm<double, std::int32_t>,
     kSpmm<double, std::int64_t>, kSpmm<Bfloat16, std::int32_t>, kSpmm<Bfloat16, std::int64_t>},
    {kRows<float, std::int32_t>, kRows<float, std::int64_t>, kRows<double, std::int32_t>,
     kRows<double, std::int64_t>, kRows<Bfloat16, std::int32_t>, kRows<Bfloat16, std::int64_t>},
    {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bfloat16>},
    {kSegments<float>, kSegments<double>, kSegments<Bfloat16>},
    &attention_table,
    &weighing_table,
    &quantise_table,
    &extreme_table,
    &edge_table,
    &update_table,
    &gemm_table,
    &cross_entropy_table};

}  // namespace spgnn::SPGNN_ISA
