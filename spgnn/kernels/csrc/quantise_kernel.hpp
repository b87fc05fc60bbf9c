// Rows packed into few bits; docs/kernels.md defines every one of them.
#pragma once

#include "row_scales.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr std::int64_t kBatchBytes = 24 << 10;  // of rows that are read twice: in the cache
inline constexpr std::uint32_t kWeyl = 0x9e3779b9u;
inline constexpr std::uint32_t kHalf = 0x8000u;
inline constexpr int kHeaderBytes = 4;

SPGNN_INLINE std::int64_t packed_bytes(std::int64_t columns, int bits) {
  return bits == 16 ? 2 * columns : kHeaderBytes + (columns * bits + 7) / 8;
}

SPGNN_INLINE std::int64_t listed_row(const RowList& rows, std::int64_t i) {
  return rows.narrow ? rows.narrow[i] : rows.wide ? rows.wide[i] : i;
}

SPGNN_INLINE int bits_of(const RowBits& bits, std::int64_t i) {
  return bits.each ? bits.each[i] : bits.all;
}

// 16 random bits for every column of a row: a word for columns c and c + 16 of each 32.
struct RandomWords {
  Words place;
  WordVector factor;
  bool stochastic;

  template <class T>
  SPGNN_INLINE explicit RandomWords(const QuantisedRow<T>& row) : stochastic(row.stochastic) {
    for_each_vector<Words>([&](int i) {
      for (int lane = 0; lane < Words::kLanes; ++lane) {
        place.v[i][lane] = static_cast<std::uint32_t>(i * Words::kLanes + lane) * kWeyl;
      }
      place.v[i] += row.start;
    });
    factor = WordVector{} + row.factor;
  }

  SPGNN_INLINE Words next() {
    Words found;
    for_each_vector<Words>([&](int i) {
      WordVector z = place.v[i];
      place.v[i] += kGroup * kWeyl;
      z = (z ^ (z >> 16)) * factor;
      found.v[i] = stochastic ? z ^ (z >> 16) : WordVector{} + (kHalf << 16 | kHalf);
    });
    return found;
  }
};

// Sums of squares in sixteen lanes.
struct LostLanes {
  Reals<double> error{}, size{};

  template <class Real>
  SPGNN_INLINE void add(const Real& arrived, const Real& x, int lanes) {
    const Reals<double> a = doubled(arrived), b = doubled(x);
    for_each_vector<Reals<double>>([&](int i) {
      LongVector lane;
      for (int l = 0; l < Reals<double>::kLanes; ++l) lane[l] = i * Reals<double>::kLanes + l;
      const DoubleVector e = lane < lanes ? a.v[i] - b.v[i] : DoubleVector{};
      error.v[i] += rounded(e * e);
      size.v[i] += rounded(b.v[i] * b.v[i]);
    });
  }

  static double total(const Reals<double>& group) {
    double lanes[kGroup];
    std::memcpy(lanes, &group, sizeof(group));
    for (int half = kGroup / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
  void add_to(Lost& lost) const {
    lost.error += total(error);
    lost.size += total(size);
  }
};

// Takes note of what arrives in place of x.
template <class T>
SPGNN_INLINE void take_note(const QuantisedRow<T>& row, LostLanes& sums, std::int64_t c,
                            const Reals<Sum<T>>& sent, Reals<Sum<T>> arrived, int lanes) {
  using Real = Reals<Sum<T>>;
  if constexpr (sizeof(T) == 2) {
    T stored[kGroup];
    store_group(stored, arrived, kGroup);
    arrived = load_group(stored, kGroup);
  }
  if (row.lost) sums.add(arrived, load_group(row.x + c, lanes), lanes);
  if (row.residual) {
    Real left;
    for_each_vector<Real>([&](int i) {
      // Of what is not finite nothing can be sent later: ∞ − ∞ is not zero, nor is NaN − NaN.
      const typename Real::Vector zero = arrived.v[i] - arrived.v[i];
      left.v[i] = zero == zero ? sent.v[i] - arrived.v[i] : typename Real::Vector{};
    });
    store_group(row.residual + c, left, lanes);
  }
}

// Sixteen codes, or fewer, of the columns from c on.
template <class T, int kBits, bool kNotes>
SPGNN_INLINE Bytes codes_of(const QuantisedRow<T>& row, LostLanes& sums, std::int64_t c,
                            const Words& random, int lanes) {
  using Real = Reals<Sum<T>>;
  const Real sent = load_sent(row, c, lanes);
  Real steps;
  for_each_vector<Real>([&](int i) { steps.v[i] = (sent.v[i] - row.low) * row.inverse; });
  Words codes = nearest_integers(steps);
  for_each_vector<Words>([&](int i) { codes.v[i] = (codes.v[i] + random.v[i]) >> 16; });
  Bytes bytes = as_bytes(codes);
  if (lanes < kGroup) bytes = first_bytes(bytes, lanes);
  if constexpr (kNotes) {
    std::uint8_t stored[kGroup];
    std::memcpy(stored, &bytes, sizeof(bytes));
    Real arrived = as_reals<Sum<T>>(unpack_codes<8>(stored));
    for_each_vector<Real>([&](int i) { arrived.v[i] = row.low + row.scale * arrived.v[i]; });
    take_note(row, sums, c, sent, arrived, lanes);
  }
  return bytes;
}

// f(first column, columns, random words) for groups of sixteen columns and the rest.
template <class T, class Function>
SPGNN_INLINE void for_each_group(const QuantisedRow<T>& row, Function f) {
  RandomWords random(row);
  const auto halves = [](const Words& words, bool upper) {
    Words found;
    for_each_vector<Words>(
        [&](int i) { found.v[i] = upper ? words.v[i] >> 16 : words.v[i] & 0xffffu; });
    return found;
  };
  std::int64_t c = 0;
  for (; c + 2 * kGroup <= row.columns; c += 2 * kGroup) {
    const Words words = random.next();
    f(c, kGroup, halves(words, false));
    f(c + kGroup, kGroup, halves(words, true));
  }
  if (c == row.columns) return;
  const Words words = random.next();
  if (c + kGroup <= row.columns) {
    f(c, kGroup, halves(words, false));
    c += kGroup;
    if (c < row.columns) f(c, static_cast<int>(row.columns - c), halves(words, true));
  } else {
    f(c, static_cast<int>(row.columns - c), halves(words, false));
  }
}

template <class T, int kBits, bool kNotes>
void pack_row(const QuantisedRow<T>& row, std::uint8_t* to) {
  LostLanes sums;
  for_each_group(row, [&](std::int64_t c, int lanes, const Words& random) {
    const Bytes codes = codes_of<T, kBits, kNotes>(row, sums, c, random, lanes);
    std::uint8_t* place = to + c * kBits / 8;
    if (lanes == kGroup) {
      pack_codes<kBits>(codes, place);
    } else {
      std::uint8_t last[kGroup];
      pack_codes<kBits>(codes, last);
      std::memcpy(place, last, static_cast<std::size_t>((lanes * kBits + 7) / 8));
    }
  });
  if (kNotes && row.lost) sums.add_to(*row.lost);
}

// 16 bits: bfloat16, rounded by the random numbers.
template <class T, bool kNotes>
void round_row(const QuantisedRow<T>& row, std::uint8_t* to) {
  LostLanes sums;
  for_each_group(row, [&](std::int64_t c, int lanes, const Words& random) {
    const auto sent = load_sent(row, c, lanes);
    const Reals<float> narrow = single(sent);
    Words numbers;
    for_each_vector<Words>([&](int i) {
      const auto number = reinterpret_cast<WordVector>(narrow.v[i]);
      const auto is_nan = reinterpret_cast<WordVector>(narrow.v[i] != narrow.v[i]);
      const WordVector up = (number + random.v[i]) & 0xffff0000u;
      numbers.v[i] = (is_nan & (number | 0x400000u) & 0xffff0000u) | (~is_nan & up);
    });
    Bfloat16 stored[kGroup];
    store_upper_halves(stored, numbers);
    std::memcpy(to + 2 * c, stored, static_cast<std::size_t>(2 * lanes));
    if constexpr (kNotes) {
      Reals<float> arrived = load_group(stored, kGroup);
      if constexpr (sizeof(T) == 8) {
        take_note(row, sums, c, sent, doubled(arrived), lanes);
      } else {
        take_note(row, sums, c, sent, arrived, lanes);
      }
    }
  });
  if (kNotes && row.lost) sums.add_to(*row.lost);
}

// A row that its header cannot hold arrives as NaN.
template <class T>
void refuse_row(const QuantisedRow<T>& row, std::uint8_t* to, std::int64_t bytes) {
  std::memset(to, 0, static_cast<std::size_t>(bytes));
  if (row.residual) {
    std::memset(row.residual, 0, static_cast<std::size_t>(row.columns) * sizeof(T));
  }
  if (row.lost) {
    row.lost->error = row.lost->size = __builtin_nan("");
  }
}

template <class T, bool kNotes>
void pack_any_row(const QuantisedRow<T>& row, std::uint32_t header, int bits, std::uint8_t* to) {
  if (bits == 16) return round_row<T, kNotes>(row, to);
  std::memcpy(to, &header, kHeaderBytes);
  std::uint8_t* const codes = to + kHeaderBytes;
  if (header == kNanHeader) {
    return refuse_row(row, codes, packed_bytes(row.columns, bits) - kHeaderBytes);
  }
  switch (bits) {
    case 8:
      return pack_row<T, 8, kNotes>(row, codes);
    case 4:
      return pack_row<T, 4, kNotes>(row, codes);
    case 2:
      return pack_row<T, 2, kNotes>(row, codes);
    default:
      return pack_row<T, 1, kNotes>(row, codes);
  }
}

template <class T>
SPGNN_INLINE QuantisedRow<T> sent_row(const QuantiseOperands<T>& a, std::int64_t i) {
  QuantisedRow<T> row{};
  row.x = a.x + listed_row(a.rows, i) * a.x_stride;
  row.residual = a.residual ? a.residual + i * a.residual_stride : nullptr;
  row.columns = a.columns;
  row.stochastic = a.stochastic;
  return row;
}

// All rows of a span, one after another from `to` on.
template <class T>
void quantise_rows(const QuantiseOperands<T>& a, Span rows, std::uint8_t* to, Lost* lost) {
  RowExtremes<Sum<T>> extremes;
  RowScales<Sum<T>> scales;
  const std::int64_t fitting = kBatchBytes / (a.columns * std::int64_t{sizeof(T)} + 1);
  const std::int64_t most = fitting < 1 ? 1 : fitting < kBatch ? fitting : kBatch;
  for (std::int64_t first = rows.begin; first < rows.end; first += most) {
    const int count = static_cast<int>(rows.end - first < most ? rows.end - first : most);
    for (int i = 0; i < count; ++i) {
      const auto id = static_cast<std::uint64_t>(a.ids[first + i]);
      const std::uint64_t stream = mix64(a.seed + kGolden * (id + 1));
      scales.start[i] = static_cast<std::uint32_t>(stream);
      scales.factor[i] = static_cast<std::uint32_t>(stream >> 32) | 1u;
      scales.levels[i] = static_cast<Sum<T>>((1u << bits_of(a.bits, first + i)) - 1);
    }
    if (a.bits.each || a.bits.all != 16) {
      for (int i = 0; i < count; ++i) find_extremes(sent_row(a, first + i), extremes, i);
      make_scales(extremes, count, scales);
    }
    for (int i = 0; i < count; ++i) {
      QuantisedRow<T> row = sent_row(a, first + i);
      row.low = scales.low[i], row.inverse = scales.inverse[i], row.scale = scales.scale[i];
      row.start = scales.start[i], row.factor = scales.factor[i];
      row.lost = lost;
      const int bits = bits_of(a.bits, first + i);
      if (row.residual || lost) {
        pack_any_row<T, true>(row, scales.header[i], bits, to);
      } else {
        pack_any_row<T, false>(row, scales.header[i], bits, to);
      }
      to += packed_bytes(a.columns, bits);
    }
  }
}

}  // namespace spgnn::SPGNN_ISA
