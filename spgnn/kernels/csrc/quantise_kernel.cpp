// Rows packed into few bits, and unpacked; kernels/torch_kernels.py defines every one of them.

#include "codes.hpp"
#include "row_scales.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr std::int64_t kBatchBytes = 16 << 10;  // of rows that are read twice: in the cache
inline constexpr std::int64_t kCachedBytes = 4 << 20;  // rows that are likely to be in a cache
inline constexpr std::int64_t kMostFetched = 4 << 10;  // of a row, by us: the rest lies in sequence
inline constexpr std::uint32_t kWeyl = 0x9e3779b9u;
inline constexpr std::uint32_t kHalf = 0x8000u;
inline constexpr int kHeaderBytes = 4;

SPGNN_INLINE std::int64_t packed_bytes(std::int64_t columns, int bits) {
  return bits == 16 ? 2 * columns : kHeaderBytes + (columns * bits + 7) / 8;
}

// What all random words have in common. Where nothing is drawn, every word is kOne · kHalves: two
// halves, by the same instructions.
struct RandomSteps {
  static constexpr std::uint32_t kOne = 1, kHalves = kHalf << 16;
  Words places;
  WordVector next;

  SPGNN_INLINE explicit RandomSteps(bool drawn)
      : next(WordVector{} + (drawn ? kGroup * kWeyl : 0)) {
    const WordVector all = WordVector{} + (drawn ? ~std::uint32_t{0} : 0);
    for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
      places.v[i] = all & by_lane<WordVector>([&](int lane) {
                      return static_cast<std::uint32_t>(i * Words::kLanes + lane) * kWeyl;
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

  SPGNN_INLINE RandomWords(std::uint32_t start, std::uint32_t odd, const RandomSteps& steps)
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

// f(first column, columns, random halves) for groups of sixteen columns from `c` on, a multiple of
// 32, and for the rest.
template <class Function>
SPGNN_INLINE void for_each_group(std::int64_t c, std::int64_t columns, RandomWords random,
                                 Function f) {
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
SPGNN_INLINE void pack_row(const QuantisedRow<T>& row, std::int64_t columns, RandomWords random,
                           LostLanes& sums, std::uint8_t* to) {
  using S = Sum<T>;
  using Real = Reals<S>;
  std::int64_t first = 0;
#if defined(SPGNN_PAIRED)
  if constexpr (!kNotes && sizeof(S) == 4) {
    for (; first + 2 * kGroup <= columns; first += 2 * kGroup) {
      const auto halves = random.next();
      const auto sums_of = [&](std::int64_t c, const Words& drawn) __attribute__((always_inline)) {
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
  for_each_group(
      first, columns, random,
      [&](std::int64_t c, int lanes, const Words& halves) __attribute__((always_inline)) {
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
        std::uint8_t* const place = to + c * kBits / 8;
        if (lanes == kGroup) {
          pack_codes<kBits>(bytes, place);
        } else {
          std::uint8_t last[kGroup];
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
SPGNN_INLINE void round_row(const QuantisedRow<T>& row, std::int64_t columns, RandomWords random,
                            LostLanes& sums, std::uint8_t* to) {
  using Real = Reals<Sum<T>>;
  std::int64_t first = 0;
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
  for_each_group(
      first, columns, random,
      [&](std::int64_t c, int lanes, const Words& halves) __attribute__((always_inline)) {
        const Real sent = load_sent<kNotes>(row, c, lanes);
        const Reals<float> narrow = single(sent);
        Reals<float> arrived;
        for_each_vector<Words>([&](auto i) __attribute__((always_inline)) {
          const auto number = reinterpret_cast<WordVector>(narrow.v[i]);
          const auto is_nan = reinterpret_cast<WordVector>(narrow.v[i] != narrow.v[i]);
          const WordVector quiet = (is_nan & 0x7fc00000u) | (~is_nan & number);
          arrived.v[i] =
              reinterpret_cast<FloatVector>((quiet + (~is_nan & halves.v[i])) & 0xffff0000u);
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
void refuse_row(const QuantisedRow<T>& row, std::int64_t columns, LostLanes& sums, std::uint8_t* to,
                std::int64_t bytes) {
  std::memset(to, 0, static_cast<std::size_t>(bytes));
  if (row.residual) {
    std::memset(row.residual, 0, static_cast<std::size_t>(columns) * sizeof(T));
  }
  sums.error.v[0] += __builtin_nan("");
  sums.size.v[0] += __builtin_nan("");
}

template <class T>
SPGNN_INLINE const T* x_row(const QuantiseOperands<T>& a, std::int64_t i) {
  return a.x + a.rows[i] * a.x_stride;
}

// Listed rows lie where the processor does not look for them by itself; and while rows are packed
// it does not look for the next ones, since those of a batch were all read before.
template <class T>
SPGNN_INLINE void fetch_row(const QuantiseOperands<T>& a, std::int64_t i, std::int64_t columns) {
  if (i >= a.count) return;
  const std::int64_t bytes = columns * static_cast<std::int64_t>(sizeof(T));
  const T* const x = x_row(a, i);
  prefetch_lines(x, lines_of(bytes < kMostFetched ? bytes : kMostFetched));
}

// Rows that are packed one after another.
template <class T>
struct Batch {
  std::int64_t first, ahead;  // its first row; rows to the one that is fetched, 0 for none
  RowScales<Sum<T>> scales;
  const T* x[kBatch];

  SPGNN_INLINE QuantisedRow<T> row(const QuantiseOperands<T>& a, std::int64_t i) const {
    QuantisedRow<T> found;
    found.x = x[i];
    found.residual = a.residual ? a.residual + (first + i) * a.residual_stride : nullptr;
    return found;
  }
};

// One number in all lanes.
template <class Vector, class S>
SPGNN_INLINE Vector in_all_lanes(S number) {
  return by_lane<Vector>([&](int) { return number; });
}

// Calls work(columns), with a constant where rows are so narrow that loops over groups cost more
// than what is done in them.
template <class Work>
SPGNN_INLINE void on_columns(std::int64_t columns, Work work) {
  if (columns == kGroup) {
    work(std::integral_constant<std::int64_t, kGroup>());
  } else {
    work(columns);
  }
}

// Some rows, one after another from `to` on.
template <class T, int kBits, bool kNotes>
void pack_rows(const QuantiseOperands<T>& given, const Batch<T>& batch, Span rows, std::uint8_t* to,
               LostLanes* lost) {
  using Vector = typename Reals<Sum<T>>::Vector;
  const QuantiseOperands<T> a = given;  // what is written could not be this copy
  const RowScales<Sum<T>>& scales = batch.scales;
  const RandomSteps steps(a.stochastic);
  const std::int64_t fetched = batch.ahead ? batch.first + batch.ahead : a.count;
  LostLanes sums;
  if (kNotes && lost) sums = *lost;
  on_columns(a.columns, [&](auto columns) __attribute__((always_inline)) {
    const std::int64_t bytes = packed_bytes(columns, kBits);
    for (std::int64_t i = rows.begin; i < rows.end; ++i, to += bytes) {
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

template <class T, bool kNotes>
constexpr auto pack_rows_of(int bits) {
  return bits == 16  ? pack_rows<T, 16, kNotes>
         : bits == 8 ? pack_rows<T, 8, kNotes>
         : bits == 4 ? pack_rows<T, 4, kNotes>
         : bits == 2 ? pack_rows<T, 2, kNotes>
                     : pack_rows<T, 1, kNotes>;
}

// Where the random numbers of some rows begin.
template <class T>
SPGNN_INLINE void seed_rows(const QuantiseOperands<T>& a, int count, Batch<T>& batch) {
  const std::int64_t* const ids = a.ids + batch.first;
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
  using Longs [[gnu::vector_size(kVectorBytes)]] = std::uint64_t;
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
    const std::uint64_t stream = mix64(a.seed + kGolden * (static_cast<std::uint64_t>(ids[i]) + 1));
    scales.start[i] = static_cast<std::uint32_t>(stream);
    scales.factor[i] = static_cast<std::uint32_t>(stream >> 32) | 1u;
  }
}

SPGNN_INLINE int levels_of(int bits) { return (1 << bits) - 1; }

// Places, scales and random numbers of the rows of a batch.
template <class T>
void prepare(const QuantiseOperands<T>& a, int count, Batch<T>& batch) {
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
SPGNN_INLINE std::int64_t rows_of_batch(std::int64_t row_bytes) {
  const std::int64_t fitting = kBatchBytes / (row_bytes < 1 ? 1 : row_bytes);
  if (fitting >= kBatch) return kBatch;
  return fitting > kGroup ? fitting / kGroup * kGroup : fitting < 1 ? 1 : fitting;
}

// All rows of a span, one after another from `to` on.
template <class T>
void quantise_rows(const QuantiseOperands<T>& a, Span rows, std::uint8_t* to, Lost* lost) {
  Batch<T> batch;
  LostLanes sums;
  const std::int64_t row_bytes = a.columns * std::int64_t{sizeof(T)};
  const std::int64_t most = rows_of_batch(row_bytes);
  const bool listed = a.rows.narrow || a.rows.wide;
  batch.ahead = listed || a.count * row_bytes > kCachedBytes ? most : 0;
  for (std::int64_t i = 0; i < batch.ahead; ++i) fetch_row(a, rows.begin + i, a.columns);
  for (auto& levels : batch.scales.levels) levels = static_cast<Sum<T>>(levels_of(a.bits));
  const auto pack =
      a.residual || lost ? pack_rows_of<T, true>(a.bits) : pack_rows_of<T, false>(a.bits);
  for (batch.first = rows.begin; batch.first < rows.end; batch.first += most) {
    const std::int64_t count = rows.end - batch.first < most ? rows.end - batch.first : most;
    prepare(a, static_cast<int>(count), batch);
    pack(a, batch, {0, count}, to, lost ? &sums : nullptr);
    to += count * packed_bytes(a.columns, a.bits);
  }
  if (lost) *lost = sums.total();
}

// Packed rows unpacked: minimum + scale · code.

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
      unpack_row<T, kBits>(from, columns, a.y + a.rows[i] * a.y_stride);
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

template <class T>
inline constexpr QuantiseKernels<T> kQuantise{quantise_rows<T>, dequantise_rows<T>};

extern const QuantiseTable quantise_table;
const QuantiseTable quantise_table{kQuantise<float>, kQuantise<double>, kQuantise<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
