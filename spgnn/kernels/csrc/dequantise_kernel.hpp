// Packed rows unpacked: minimum + scale · code.
#pragma once

#include "quantise_kernel.hpp"

namespace spgnn::SPGNN_ISA {

template <class T, int kBits>
void unpack_row(const std::uint8_t* from, std::int64_t columns, T* y) {
  using S = Sum<T>;
  using Real = Reals<S>;
  const auto some = [&](std::int64_t c, int lanes) {
    Real found;
    if constexpr (kBits == 16) {
      Bfloat16 stored[kGroup] = {};
      std::memcpy(stored, from + 2 * c, static_cast<std::size_t>(2 * lanes));
      const Reals<float> narrow = load_group(stored, kGroup);
      if constexpr (sizeof(T) == 8) {
        found = doubled(narrow);
      } else {
        found = narrow;
      }
    } else {
      std::uint16_t halves[2];
      std::memcpy(halves, from, kHeaderBytes);
      const S low = widen(Bfloat16{halves[0]}), scale = widen(Bfloat16{halves[1]});
      const std::uint8_t* const codes = from + kHeaderBytes + c * kBits / 8;
      std::uint8_t last[kGroup] = {};
      if (lanes < kGroup) {
        std::memcpy(last, codes, static_cast<std::size_t>((lanes * kBits + 7) / 8));
      }
      found = as_reals<S>(unpack_codes<kBits>(lanes < kGroup ? last : codes));
      for_each_vector<Real>([&](int i) { found.v[i] = low + scale * found.v[i]; });
    }
    store_group(y + c, found, lanes);
  };
  std::int64_t c = 0;
  for (; c + kGroup <= columns; c += kGroup) some(c, kGroup);
  if (c < columns) some(c, static_cast<int>(columns - c));
}

// All rows of a span, which lie one after another from `from` on.
template <class T>
void dequantise_rows(const DequantiseOperands<T>& a, Span rows, const std::uint8_t* from) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    T* const y = a.y + listed_row(a.rows, i) * a.y_stride;
    const int bits = bits_of(a.bits, i);
    switch (bits) {
      case 16:
        unpack_row<T, 16>(from, a.columns, y);
        break;
      case 8:
        unpack_row<T, 8>(from, a.columns, y);
        break;
      case 4:
        unpack_row<T, 4>(from, a.columns, y);
        break;
      case 2:
        unpack_row<T, 2>(from, a.columns, y);
        break;
      default:
        unpack_row<T, 1>(from, a.columns, y);
    }
    from += packed_bytes(a.columns, bits);
  }
}

}  // namespace spgnn::SPGNN_ISA
