// Rows packed into few bits, and unpacked; kernels/torch_kernels.py defines every one of them.

#include "codes.hpp"
#include "row_scales.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr i64 kBatchBytes = 16 << 10;  // of rows that are read twice: in the cache
inline constexpr i64 kCachedBytes = 4 << 20;  // rows that are likely to be in a cache
inline constexpr i64 kMostFetched = 4 << 10;  // of a row, by us: the rest lies in sequence
inline constexpr u32 kWeyl = 0x9e3779b9u;
inline constexpr u32 kHalf = 0x8000u;
inline constexpr int kHeaderBytes = 4;

SPGNN_INLINE i64 packed_bytes(i64 columns, int bits) {
  return bits == 16 ? 2 * columns : kHeaderBytes + (columns * bits + 7) / 8;
}

// What all random words have in common. Where nothing is drawn all are kOne · kHalves: two halves.
struct RandomSteps {
  static constexpr u32 kOne = 1, kHalves = kHalf << 16;
  Words places;
  WordVector next;

  SPGNN_INLINE explicit RandomSteps(bool drawn)
      : next(WordVector{} + (drawn ? kGroup * kWeyl : 0)) {
    const WordVector all = WordVector{} + (drawn ? ~u32{0} : 0);
    for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
      places.v[i] = all & by_lane<WordVector>([&](int lane) {
                      return static_cast<u32>(i * Words::kLanes + lane) * kWeyl;
                    });
    });
  }
};

// 16 random bits for every column of a row: a word for columns c and c + 16 of each 32.
struct RandomWords {
  Words place;
  WordVector factor, step;

  struct Halves {
    Words lower, upper;
  };

  SPGNN_INLINE RandomWords(u32 start, u32 odd, const RandomSteps& steps)
      : factor(WordVector{} + odd), step(steps.next) {
    for_each_vector<Words>(
        [&](auto i) __attribute__((always_inline)) { place.v[i] = start + steps.places.v[i]; });
  }

  SPGNN_INLINE Halves next() {
    Halves found;
    for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
      WordVector z = place.v[i];
      place.v[i] += step;
      z = (z ^ (z >> 16)) * factor;
      found.upper.v[i] = z >> 16;
      found.lower.v[i] = (z ^ found.upper.v[i]) & 0xffffu;
    });
    return found;
  }
};

// f(first column, columns, random halves) for groups of sixteen from `c` on, and for the rest.
template <class Function>
SPGNN_INLINE void for_each_group(i64 c, i64 columns, RandomWords random, Function f) {
  for (; c + 2 * kGroup <= columns; c += 2 * kGroup) {
    const RandomWords::Halves halves = random.next();
    f(c, kGroup, halves.lower);
    f(c + kGroup, kGroup, halves.upper);
  }
  if (c == columns) return;
  RandomWords::Halves halves = random.next();
  if (c + kGroup <= columns) {
    f(c, kGroup, halves.lower);
    c += kGroup;
    halves.lower = halves.upper;
    if (c == columns) return;
  }
  f(c, static_cast<int>(columns - c), halves.lower);
}

template <class T, int kBits, bool kNotes>
SPGNN_INLINE void pack_row(const QuantisedRow<T>& row, i64 columns, RandomWords random,
                           LostLanes& sums, u8* to) {
  using S = Sum<T>;
  using Real = Reals<S>;
  i64 first = 0;
#if defined(SPGNN_PAIRED)
  if constexpr (!kNotes && sizeof(S) == 4) {
    for (; first + 2 * kGroup <= columns; first += 2 * kGroup) {
      const auto halves = random.next();
      const auto sums_of = [&](i64 c, const Words& drawn) __attribute__((always_inline)) {
        Real steps = load_group(row.x + c, kGroup);
        for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
          steps.v[i] = (steps.v[i] - row.low) * row.inverse;
        });
        Words codes = nearest_integers(steps);
        for_each_vector<Words>([&](auto i)
                                   __attribute__((always_inline)) { codes.v[i] += drawn.v[i]; });
        return codes;
      };
      const Words one = sums_of(first, halves.lower), other = sums_of(first + kGroup, halves.upper);
      pack_codes<kBits>(upper_bytes(one, other), to + first * kBits / 8);
    }
  }
#endif
  for_each_group(first, columns, random,
                 [&](i64 c, int lanes, const Words& halves) __attribute__((always_inline)) {
                   const Real sent = load_sent<kNotes>(row, c, lanes);
                   Real steps;
                   for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
                     steps.v[i] = (sent.v[i] - row.low) * row.inverse;
                   });
                   Words codes = nearest_integers(steps);
                   for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
                     codes.v[i] = (codes.v[i] + halves.v[i]) >> 16;
                   });
                   Bytes bytes = as_bytes(codes);
                   u8* const place = to + c * kBits / 8;
                   if (lanes == kGroup) {
                     pack_codes<kBits>(bytes, place);
                   } else {
                     u8 last[kGroup];
                     bytes = first_bytes(bytes, lanes);
                     pack_codes<kBits>(bytes, last);
                     std::memcpy(place, last, static_cast<std::size_t>((lanes * kBits + 7) / 8));
                   }
                   if constexpr (kNotes) {
                     Real arrived = as_reals<S>(as_words(bytes));
                     for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
                       arrived.v[i] = row.low + row.scale * arrived.v[i];
                     });
                     take_note(row, sums, c, sent, arrived, lanes);
                   }
                 });
}

// 16 bits: bfloat16, rounded by the random numbers.
template <class T, bool kNotes>
SPGNN_INLINE void round_row(const QuantisedRow<T>& row, i64 columns, RandomWords random,
                            LostLanes& sums, u8* to) {
  using Real = Reals<Sum<T>>;
  i64 first = 0;
#if defined(SPGNN_PAIRED)
  if constexpr (!kNotes && sizeof(T) == 4) {
    for (; first + 2 * kGroup <= columns; first += 2 * kGroup) {
      const auto halves = random.next();
      const Real one = load_group(row.x + first, kGroup);
      const Real other = load_group(row.x + first + kGroup, kGroup);
      store_drawn(one, other, halves.lower, halves.upper, to + 2 * first);
    }
  }
#endif
  for_each_group(first, columns, random,
                 [&](i64 c, int lanes, const Words& halves) __attribute__((always_inline)) {
                   const Real sent = load_sent<kNotes>(row, c, lanes);
                   const Reals<float> narrow = single(sent);
                   Reals<float> arrived;
                   for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
                     const auto number = reinterpret_cast<WordVector>(narrow.v[i]);
                     const auto is_nan = reinterpret_cast<WordVector>(narrow.v[i] != narrow.v[i]);
                     const WordVector quiet = (is_nan & 0x7fc00000u) | (~is_nan & number);
                     arrived.v[i] = reinterpret_cast<FloatVector>(
                         (quiet + (~is_nan & halves.v[i])) & 0xffff0000u);
                   });
                   store_upper_halves(to + 2 * c, arrived, lanes);
                   if constexpr (kNotes) {
                     if constexpr (sizeof(T) == 8) {
                       take_note(row, sums, c, sent, doubled(arrived), lanes);
                     } else {
                       take_note(row, sums, c, sent, arrived, lanes);
                     }
                   }
                 });
}

// A row that its header cannot hold arrives as NaN.
template <class T>
void refuse_row(const QuantisedRow<T>& row, i64 columns, LostLanes& sums, u8* to, i64 bytes) {
  std::memset(to, 0, static_cast<std::size_t>(bytes));
  if (row.residual) { std::memset(row.residual, 0, static_cast<std::size_t>(columns) * sizeof(T)); }
  sums.error.v[0] += __builtin_nan("");
  sums.size.v[0] += __builtin_nan("");
}

template <class T> SPGNN_INLINE const T* x_row(const QuantiseOperands<T>& a, i64 i) {
  return a.x[a.rows[i]];
}

// Listed rows lie where the processor does not look for them by itself; and while rows are packed
// it does not look for the next ones, since those of a batch were all read before.
template <class T> SPGNN_INLINE void fetch_row(const QuantiseOperands<T>& a, i64 i, i64 columns) {
  if (i >= a.count) return;
  const i64 bytes = columns * static_cast<i64>(sizeof(T));
  const T* const x = x_row(a, i);
  prefetch_lines(x, lines_of(bytes < kMostFetched ? bytes : kMostFetched));
}

// Rows that are packed one after another.
template <class T> struct Batch {
  i64 first, ahead;  // its first row; rows to the one that is fetched, 0 for none
  RowScales<Sum<T>> scales;
  const T* x[kBatch];

  SPGNN_INLINE QuantisedRow<T> row(const QuantiseOperands<T>& a, i64 i) const {
    QuantisedRow<T> found;
    found.x = x[i];
    found.residual = a.residual ? a.residual[first + i] : nullptr;
    return found;
  }
};

// One number in all lanes.
template <class Vector, class S> SPGNN_INLINE Vector in_all_lanes(S number) {
  return by_lane<Vector>([&](int) { return number; });
}

// Calls work(columns), a constant where rows are so narrow that loops over groups would cost most.
template <class Work> SPGNN_INLINE void on_columns(i64 columns, Work work) {
  if (columns == kGroup) {
    work(std::integral_constant<i64, kGroup>());
  } else {
    work(columns);
  }
}

// Some rows, one after another from `to` on.
template <class T, int kBits, bool kNotes>
void pack_rows(const QuantiseOperands<T>& given, const Batch<T>& batch, Span rows, u8* to,
               LostLanes* lost) {
  using Vector = typename Reals<Sum<T>>::Vector;
  const QuantiseOperands<T> a = given;  // what is written could not be this copy
  const RowScales<Sum<T>>& scales = batch.scales;
  const RandomSteps steps(a.stochastic);
  const i64 fetched = batch.ahead ? batch.first + batch.ahead : a.count;
  LostLanes sums;
  if (kNotes && lost) sums = *lost;
  on_columns(a.columns, [&](auto columns) __attribute__((always_inline)) {
    const i64 bytes = packed_bytes(columns, kBits);
    for (i64 i = rows.begin; i < rows.end; ++i, to += bytes) {
      fetch_row(a, fetched + i, columns);
      QuantisedRow<T> row = batch.row(a, i);
      row.counted = lost != nullptr;
      const RandomWords random(scales.start[i], scales.factor[i], steps);
      if constexpr (kBits == 16) {
        round_row<T, kNotes>(row, columns, random, sums, to);
      } else {
        std::memcpy(to, &scales.header[i], kHeaderBytes);
        if (scales.header[i] == kNanHeader) [[unlikely]] {
          refuse_row(row, columns, sums, to + kHeaderBytes, bytes - kHeaderBytes);
          continue;
        }
        row.low = in_all_lanes<Vector>(scales.low[i]);
        row.scale = in_all_lanes<Vector>(scales.scale[i]);
        row.inverse = in_all_lanes<Vector>(scales.inverse[i]);
        pack_row<T, kBits, kNotes>(row, columns, random, sums, to + kHeaderBytes);
      }
    }
  });
  if (kNotes && lost) *lost = sums;
}

template <class T, bool kNotes> constexpr auto pack_rows_of(int bits) {
  return bits == 16  ? pack_rows<T, 16, kNotes>
         : bits == 8 ? pack_rows<T, 8, kNotes>
         : bits == 4 ? pack_rows<T, 4, kNotes>
         : bits == 2 ? pack_rows<T, 2, kNotes>
                     : pack_rows<T, 1, kNotes>;
}

// Where the random numbers of some rows begin.
template <class T>
SPGNN_INLINE void seed_rows(const QuantiseOperands<T>& a, int count, Batch<T>& batch) {
  const i64* const ids = a.ids + batch.first;
  auto& scales = batch.scales;
  if (!a.stochastic) {
    for (int i = 0; i < count; ++i) {
      scales.start[i] = RandomSteps::kOne;
      scales.factor[i] = RandomSteps::kHalves;
    }
    return;
  }
  int i = 0;
#if defined(__AVX512F__)
  // As mix64, of eight.
  using Longs [[gnu::vector_size(kVectorBytes)]] = u64;
  for (; i + 8 <= count; i += 8) {
    Longs stream = a.seed + kGolden * (load_vector<Longs>(ids + i) + 1);
    stream = (stream ^ (stream >> 30)) * 0xbf58476d1ce4e5b9u;
    stream = (stream ^ (stream >> 27)) * 0x94d049bb133111ebu;
    stream ^= stream >> 31;
    constexpr __mmask8 kAll = 0xff;
    const auto halves = [&](Longs some) __attribute__((always_inline)) {
      return _mm512_maskz_cvtepi64_epi32(kAll, reinterpret_cast<__m512i>(some));
    };
    store_vector(scales.start + i, halves(stream));
    store_vector(scales.factor + i, halves((stream >> 32) | 1u));
  }
#endif
  for (; i < count; ++i) {
    const u64 stream = mix64(a.seed + kGolden * (static_cast<u64>(ids[i]) + 1));
    scales.start[i] = static_cast<u32>(stream);
    scales.factor[i] = static_cast<u32>(stream >> 32) | 1u;
  }
}

SPGNN_INLINE int levels_of(int bits) { return (1 << bits) - 1; }

// Places, scales and random numbers of the rows of a batch.
template <class T> void prepare(const QuantiseOperands<T>& a, int count, Batch<T>& batch) {
  using Extremes = RowExtremes<Sum<T>>;
  for (int i = 0; i < count; ++i) batch.x[i] = x_row(a, batch.first + i);
  seed_rows(a, count, batch);
  if (a.bits == 16) return;
  on_columns(a.columns, [&](auto columns) __attribute__((always_inline)) {
    for (int at = 0; at < count; at += Extremes::kLanes) {
      Extremes extremes;
      const int some = count - at < Extremes::kLanes ? count - at : Extremes::kLanes;
      for (int i = 0; i < some; ++i) {
        const QuantisedRow<T> row = batch.row(a, at + i);
        if (row.residual) {
          find_extremes<T, true>(row, columns, extremes, i);
        } else {
          find_extremes<T, false>(row, columns, extremes, i);
        }
      }
      make_scales(extremes, at, batch.scales);
    }
  });
}

// Rows of a batch: in whole vectors, where so many fit.
SPGNN_INLINE i64 rows_of_batch(i64 row_bytes) {
  const i64 fitting = kBatchBytes / (row_bytes < 1 ? 1 : row_bytes);
  if (fitting >= kBatch) return kBatch;
  return fitting > kGroup ? fitting / kGroup * kGroup : fitting < 1 ? 1 : fitting;
}

// All rows of a span, one after another from `to` on.
template <class T> void quantise_rows(const QuantiseOperands<T>& a, Span rows, u8* to, Lost* lost) {
  Batch<T> batch;
  LostLanes sums;
  const i64 row_bytes = a.columns * i64{sizeof(T)};
  const i64 most = rows_of_batch(row_bytes);
  batch.ahead = a.rows || a.count * row_bytes > kCachedBytes ? most : 0;
  for (i64 i = 0; i < batch.ahead; ++i) fetch_row(a, rows.begin + i, a.columns);
  for (auto& levels : batch.scales.levels) levels = static_cast<Sum<T>>(levels_of(a.bits));
  const auto pack =
      a.residual || lost ? pack_rows_of<T, true>(a.bits) : pack_rows_of<T, false>(a.bits);
  for (batch.first = rows.begin; batch.first < rows.end; batch.first += most) {
    const i64 count = rows.end - batch.first < most ? rows.end - batch.first : most;
    prepare(a, static_cast<int>(count), batch);
    pack(a, batch, {0, count}, to, lost ? &sums : nullptr);
    to += count * packed_bytes(a.columns, a.bits);
  }
  if (lost) *lost = sums.total();
}

// Packed rows unpacked: minimum + scale · code.

template <class T, int kBits> SPGNN_INLINE void unpack_row(const u8* from, i64 columns, T* y) {
  using S = Sum<T>;
  using Real = Reals<S>;
  using Vector = typename Real::Vector;
  Vector low{}, scale{};
  if constexpr (kBits < 16) {
    u32 header;
    std::memcpy(&header, from, kHeaderBytes);
    if constexpr (sizeof(S) == 4) {
      const WordVector both = WordVector{} + header;
      low = reinterpret_cast<FloatVector>(both << 16);
      scale = reinterpret_cast<FloatVector>(both & 0xffff0000u);
    } else {
      low += widen(Bfloat16{static_cast<u16>(header)});
      scale += widen(Bfloat16{static_cast<u16>(header >> 16)});
    }
    from += kHeaderBytes;
  }
  const auto unpack = [&](const u8* codes, i64 c, int lanes) __attribute__((always_inline)) {
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
  i64 c = 0;
  for (; c + kGroup <= columns; c += kGroup) unpack(from + c * kBits / 8, c, kGroup);
  if (c == columns) return;
  const int lanes = static_cast<int>(columns - c);
  u8 last[2 * kGroup] = {};
  std::memcpy(last, from + c * kBits / 8, static_cast<std::size_t>((lanes * kBits + 7) / 8));
  unpack(last, c, lanes);
}

// Some rows, one after another from `from` on.
template <class T, int kBits>
void unpack_rows(const DequantiseOperands<T>& given, Span rows, const u8* from) {
  const DequantiseOperands<T> a = given;  // what is written could not be this copy
  on_columns(a.columns, [&](auto columns) __attribute__((always_inline)) {
    const i64 bytes = packed_bytes(columns, kBits);
    for (i64 i = rows.begin; i < rows.end; ++i, from += bytes) {
      unpack_row<T, kBits>(from, columns, a.y[a.rows[i]]);
    }
  });
}

template <class T> constexpr auto unpack_rows_of(int bits) {
  return bits == 16  ? unpack_rows<T, 16>
         : bits == 8 ? unpack_rows<T, 8>
         : bits == 4 ? unpack_rows<T, 4>
         : bits == 2 ? unpack_rows<T, 2>
                     : unpack_rows<T, 1>;
}

// All rows of a span, which lie one after another from `from` on.
template <class T> void dequantise_rows(const DequantiseOperands<T>& a, Span rows, const u8* from) {
  unpack_rows_of<T>(a.bits)(a, rows, from);
}

template <class T>
inline constexpr QuantiseKernels<T> kQuantise{quantise_rows<T>, dequantise_rows<T>};

const QuantiseTable quantise_table{kQuantise<float>, kQuantise<double>, kQuantise<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
