// Packed rows unpacked: minimum + scale · code.
#pragma once

#include "quantise_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T, int kBits>
SPGNN_INLINE void unpack_row(const std::uint8_t* from, std::int64_t columns, T* y) {
  using S = Sum<T>;
  using Real = Reals<S>;
  using Vector = typename Real::Vector;
  Vector low{}, scale{};
  if constexpr (kBits < 16) {
    std::uint32_t header;
    std::memcpy(&header, from, kHeaderBytes);
    if constexpr (sizeof(S) == 4) {
      const WordVector both = WordVector{} + header;
      low = reinterpret_cast<FloatVector>(both << 16);
      scale = reinterpret_cast<FloatVector>(both & 0xffff0000u);
    } else {
      low += widen(Bfloat16{static_cast<std::uint16_t>(header)});
      scale += widen(Bfloat16{static_cast<std::uint16_t>(header >> 16)});
    }
    from += kHeaderBytes;
  }
  const auto unpack = [&](const std::uint8_t* codes, std::int64_t c,
                          int lanes) __attribute__((always_inline)) {
    Real found;
    if constexpr (kBits < 16) {
      found = as_reals<S>(unpack_codes<kBits>(codes));
      for_each_vector<Real>(
          [&](auto i) __attribute__((always_inline)) { found.v[i] = low + scale * found.v[i]; });
    } else if constexpr (sizeof(T) == 8) {
      found = doubled(load_group(reinterpret_cast<const Bfloat16*>(codes), kGroup));
    } else {
      found = load_group(reinterpret_cast<const Bfloat16*>(codes), kGroup);
    }
    store_group(y + c, found, lanes);
  };
  std::int64_t c = 0;
  for (; c + kGroup <= columns; c += kGroup) unpack(from + c * kBits / 8, c, kGroup);
  if (c == columns) return;
  const int lanes = static_cast<int>(columns - c);
  std::uint8_t last[2 * kGroup] = {};
  std::memcpy(last, from + c * kBits / 8, static_cast<std::size_t>((lanes * kBits + 7) / 8));
  unpack(last, c, lanes);
}

// Some rows, one after another from `from` on.
template <class T, int kBits>
void unpack_rows(const DequantiseOperands<T>& given, Span rows, const std::uint8_t* from) {
  const DequantiseOperands<T> a = given;  // what is written could not be this copy
  on_columns(a.columns, [&](auto columns) __attribute__((always_inline)) {
    const std::int64_t bytes = packed_bytes(columns, kBits);
    for (std::int64_t i = rows.begin; i < rows.end; ++i, from += bytes) {
      unpack_row<T, kBits>(from, columns, a.y + listed_row(a.rows, i) * a.y_stride);
    }
  });
}

template <class T>
constexpr auto unpack_rows_of(int bits) {
  return bits == 16  ? unpack_rows<T, 16>
         : bits == 8 ? unpack_rows<T, 8>
         : bits == 4 ? unpack_rows<T, 4>
         : bits == 2 ? unpack_rows<T, 2>
                     : unpack_rows<T, 1>;
}

// All rows of a span, which lie one after another from `from` on.
template <class T>
void dequantise_rows(const DequantiseOperands<T>& a, Span rows, const std::uint8_t* from) {
  unpack_rows_of<T>(a.bits)(a, rows, from);
}

}  // namespace spgnn::SPGNN_ISA
