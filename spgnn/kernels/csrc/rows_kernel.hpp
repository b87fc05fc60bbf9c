// The inner loops over listed rows: gather, scatter-add, dropout.
#pragma once

#include <type_traits>

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kRowsAhead = 16;

inline void prefetch_row(const void* row, i64 bytes) {
  const i64 most = bytes < 1024 ? bytes : 1024;
  for (i64 b = 0; b < most; b += 64) { __builtin_prefetch(static_cast<const char*>(row) + b); }
}

// f(column, lanes) for full packs, then once for the rest.
template <class T, class Function> inline void for_each_pack(i64 columns, Function f) {
  constexpr int kLanes = Pack<T>::kLanes;
  i64 c = 0;
  for (; c + kLanes <= columns; c += kLanes) f(c, kLanes);
  if (c < columns) f(c, static_cast<int>(columns - c));
}

template <class T> inline Pack<T> load_some(const T* p, int lanes) {
  return lanes == Pack<T>::kLanes ? Pack<T>::load(p) : Pack<T>::load(p, lanes);
}

template <class T> inline void store_some(const Pack<T>& pack, T* p, int lanes) {
  if (lanes == Pack<T>::kLanes) {
    pack.store(p);
  } else {
    pack.store(p, lanes);
  }
}

template <class T, class Index> void gather_rows(const RowOperands<T, Index>& a, Span listed) {
  const i64 bytes = a.columns * static_cast<i64>(sizeof(T));
  for (i64 i = listed.begin; i < listed.end; ++i) {
    const i64 ahead = i + kRowsAhead < a.count ? i + kRowsAhead : a.count - 1;
    prefetch_row(a.x[a.rows[ahead]], bytes);
    const T* x = a.x[a.rows[i]];
    T* y = a.y[i];
    if (!a.scale) {
      std::memcpy(y, x, static_cast<std::size_t>(bytes));
      continue;
    }
    for_each_pack<T>(a.columns, [&](i64 c, int lanes) {
      Pack<T> pack = load_some(x + c, lanes);
      pack.scale(a.scale[i]);
      store_some(pack, y + c, lanes);
    });
  }
}

// Rows of Y are owned in turns of eight, so that neighbouring lists spread over all owners.
inline bool owns(i64 row, u32 owner, u32 owners) {
  return owners == 1 || static_cast<u64>(row >> 3) % owners == owner;
}

template <class T, class Index>
void scatter_add_rows(const RowOperands<T, Index>& a, u32 owner, u32 owners) {
  const i64 bytes = a.columns * static_cast<i64>(sizeof(T));
  for (i64 i = 0; i < a.count; ++i) {
    const i64 ahead = i + kRowsAhead < a.count ? i + kRowsAhead : a.count - 1;
    if (owns(a.rows[ahead], owner, owners)) { prefetch_row(a.y[a.rows[ahead]], bytes); }
    if (!owns(a.rows[i], owner, owners)) continue;
    const T* x = a.x[i];
    T* y = a.y[a.rows[i]];
    const Sum<T> weight = a.scale ? a.scale[i] : Sum<T>{1};
    for_each_pack<T>(a.columns, [&](i64 c, int lanes) {
      Pack<T> pack = load_some(y + c, lanes);
      pack.add_product(weight, load_some(x + c, lanes));
      store_some(pack, y + c, lanes);
    });
  }
}

// Chosen after it was rounded: otherwise compilers round zeros apart, with a branch.
template <class T> inline T if_kept(bool kept, T x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {static_cast<u16>(kept ? x.bits : 0)};
  } else {
    return kept ? x : T{0};
  }
}

// y = x · factor; a factor of zero drops even an infinity or a NaN.
template <class T> void apply_factors(const T* x, const Sum<T>* factors, T* y, i64 count) {
  for (i64 c = 0; c < count; ++c) {
    y[c] = if_kept(factors[c] != 0, narrow<T>(widen(x[c]) * factors[c]));
  }
}

template <class T>
void dropout_rows(const RowOperands<T, i64>& a, const DropoutRule& rule, Span listed) {
  constexpr i64 kBlock = 256;
  Sum<T> factors[kBlock];
  const auto factor = static_cast<Sum<T>>(rule.factor);
  for (i64 i = listed.begin; i < listed.end; ++i) {
    const auto id = static_cast<u64>(a.rows[i]);
    const u64 stream = mix64(rule.seed + kGolden * (id + 1));
    const T* x = a.x[i];
    T* y = a.y[i];
    for (i64 first = 0; first < a.columns; first += kBlock) {
      const i64 width = a.columns - first < kBlock ? a.columns - first : kBlock;
      for (i64 pair = 0; 2 * pair < width; ++pair) {
        const auto counter = static_cast<u64>(first / 2 + pair + 1);
        const u64 bits = mix64(stream + kGolden * counter);
        factors[2 * pair] = (bits & 0xffffffffu) < rule.threshold ? 0 : factor;
        factors[2 * pair + 1] = (bits >> 32) < rule.threshold ? 0 : factor;
      }
      apply_factors(x + first, factors, y + first, width);
    }
  }
}

}  // namespace spgnn::SPGNN_ISA
