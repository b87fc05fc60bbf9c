// The inner loops over listed rows: gather, scatter-add, dropout.
#pragma once

#include <type_traits>

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kRowsAhead = 16;

inline void prefetch_row(const void* row, std::int64_t bytes) {
  const std::int64_t most = bytes < 1024 ? bytes : 1024;
  for (std::int64_t b = 0; b < most; b += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + b);
  }
}

// f(column, lanes) for full packs, then once for the rest.
template <class T, class Function>
inline void for_each_pack(std::int64_t columns, Function f) {
  constexpr int kLanes = Pack<T>::kLanes;
  std::int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) f(c, kLanes);
  if (c < columns) f(c, static_cast<int>(columns - c));
}

template <class T>
inline Pack<T> load_some(const T* p, int lanes) {
  return lanes == Pack<T>::kLanes ? Pack<T>::load(p) : Pack<T>::load(p, lanes);
}

template <class T>
inline void store_some(const Pack<T>& pack, T* p, int lanes) {
  if (lanes == Pack<T>::kLanes) {
    pack.store(p);
  } else {
    pack.store(p, lanes);
  }
}

template <class T, class Index>
void gather_rows(const RowOperands<T, Index>& a, Span listed) {
  const std::int64_t bytes = a.columns * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = listed.begin; i < listed.end; ++i) {
    const std::int64_t ahead = i + kRowsAhead < a.count ? i + kRowsAhead : a.count - 1;
    prefetch_row(a.x + a.rows[ahead] * a.x_stride, bytes);
    const T* x = a.x + a.rows[i] * a.x_stride;
    T* y = a.y + i * a.y_stride;
    if (!a.scale) {
      std::memcpy(y, x, static_cast<std::size_t>(bytes));
      continue;
    }
    for_each_pack<T>(a.columns, [&](std::int64_t c, int lanes) {
      Pack<T> pack = load_some(x + c, lanes);
      pack.scale(a.scale[i]);
      store_some(pack, y + c, lanes);
    });
  }
}

// Rows of Y are owned in turns of eight, so that neighbouring lists spread over all owners.
inline bool owns(std::int64_t row, std::uint32_t owner, std::uint32_t owners) {
  return owners == 1 || static_cast<std::uint64_t>(row >> 3) % owners == owner;
}

template <class T, class Index>
void scatter_add_rows(const RowOperands<T, Index>& a, std::uint32_t owner, std::uint32_t owners) {
  const std::int64_t bytes = a.columns * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < a.count; ++i) {
    const std::int64_t ahead = i + kRowsAhead < a.count ? i + kRowsAhead : a.count - 1;
    if (owns(a.rows[ahead], owner, owners)) {
      prefetch_row(a.y + a.rows[ahead] * a.y_stride, bytes);
    }
    if (!owns(a.rows[i], owner, owners)) continue;
    const T* x = a.x + i * a.x_stride;
    T* y = a.y + a.rows[i] * a.y_stride;
    const Sum<T> weight = a.scale ? a.scale[i] : Sum<T>{1};
    for_each_pack<T>(a.columns, [&](std::int64_t c, int lanes) {
      Pack<T> pack = load_some(y + c, lanes);
      pack.add_product(weight, load_some(x + c, lanes));
      store_some(pack, y + c, lanes);
    });
  }
}

// Chosen after it was rounded: otherwise compilers round zeros apart, with a branch.
template <class T>
inline T if_kept(bool kept, T x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {static_cast<std::uint16_t>(kept ? x.bits : 0)};
  } else {
    return kept ? x : T{0};
  }
}

// y = x · factor; a factor of zero drops even an infinity or a NaN.
template <class T>
void apply_factors(const T* x, const Sum<T>* factors, T* y, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    y[c] = if_kept(factors[c] != 0, narrow<T>(widen(x[c]) * factors[c]));
  }
}

template <class T>
void dropout_rows(const RowOperands<T, std::int64_t>& a, const DropoutRule& rule, Span listed) {
  constexpr std::int64_t kBlock = 256;
  Sum<T> factors[kBlock];
  const auto factor = static_cast<Sum<T>>(rule.factor);
  for (std::int64_t i = listed.begin; i < listed.end; ++i) {
    const auto id = static_cast<std::uint64_t>(a.rows[i]);
    const std::uint64_t stream = mix64(rule.seed + kGolden * (id + 1));
    const T* x = a.x + i * a.x_stride;
    T* y = a.y + i * a.y_stride;
    for (std::int64_t first = 0; first < a.columns; first += kBlock) {
      const std::int64_t width = a.columns - first < kBlock ? a.columns - first : kBlock;
      for (std::int64_t pair = 0; 2 * pair < width; ++pair) {
        const auto counter = static_cast<std::uint64_t>(first / 2 + pair + 1);
        const std::uint64_t bits = mix64(stream + kGolden * counter);
        factors[2 * pair] = (bits & 0xffffffffu) < rule.threshold ? 0 : factor;
        factors[2 * pair + 1] = (bits >> 32) < rule.threshold ? 0 : factor;
      }
      apply_factors(x + first, factors, y + first, width);
    }
  }
}

}  // namespace spgnn::SPGNN_ISA
