// Random graphs, drawn row range by row range.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "big_array.hpp"
#include "inlined.hpp"
#include "parallel.hpp"

namespace spgnn {

// A stream of random numbers per (seed, index): SplitMix64 (Steele, Lea, Flood 2014).
class Stream {
 public:
  Stream(std::uint64_t seed, std::uint64_t index) : state_(mixed(seed) ^ mix64(index * kGolden)) {}

  std::uint64_t bits() { return mix64(state_ += kGolden); }
  // In [0, n), by multiplication (Lemire 2019) without the rejection step: n is far below 2⁶⁴.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits()) * n) >> 64);
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// A pseudo-random permutation of [0, n) without a table: an unbalanced Feistel network over the
// next power of two, walked until it lands inside (Black & Rogaway 2002).
class Shuffle {
 public:
  Shuffle(std::uint64_t n, std::uint64_t seed) : n_(n) {
    int bits = std::max(2, static_cast<int>(std::bit_width(n - 1)));
    right_bits_ = bits / 2;
    left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
    right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
    for (auto& key : keys_) key = mix64(seed = mix64(seed + 1)) | 1;
  }

  std::uint64_t operator()(std::uint64_t x) const {
    do x = step(x);
    while (x >= n_);
    return x;
  }

 private:
  std::uint64_t step(std::uint64_t x) const {
    std::uint64_t left = x >> right_bits_, right = x & right_mask_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      left ^= ((right + 1) * keys_[round] >> 32) & left_mask_;
      right ^= ((left + 1) * keys_[round + 1] >> 32) & right_mask_;
    }
    return left << right_bits_ | right;
  }

  std::uint64_t n_, left_mask_, right_mask_;
  int right_bits_;
  std::array<std::uint64_t, 6> keys_;
};

using Edge = std::pair<std::uint64_t, std::uint64_t>;

// A degree-corrected block model (Karrer & Newman 2011) with two levels of communities.
//
// Vertices stand in a line, communities are its intervals, districts are intervals of
// communities. One end of an edge lies anywhere, the other in the same community, else in the same
// district, else anywhere. Inside a community the vertex at relative position x is drawn with
// density ∝ (x + hub)^-exponent, which makes a power law of degrees with a largest one.
class BlockModel {
 public:
  BlockModel(std::vector<std::int64_t> starts, std::uint64_t district, double inside, double near,
             double exponent, double hub, std::uint64_t seed)
      : starts_(std::move(starts)),
        district_(district),
        inside_(inside),
        near_(near),
        seed_(seed),
        shuffle_(starts_.back(), seed ^ 0x5eed) {
    double power = 1 - exponent, low = std::pow(hub, power), high = std::pow(1 + hub, power);
    for (std::size_t i = 0; i < quantile_.size(); ++i) {
      double share = static_cast<double>(i) / kCells;
      double x = std::pow(low + share * (high - low), 1 / power) - hub;
      quantile_[i] = static_cast<float>(std::clamp(x, 0.0, 1.0));
    }
    build_lookup();
  }

  Edge operator()(std::uint64_t index) const {
    Stream random(seed_, index);
    std::uint64_t anywhere = random.below(vertices());
    std::size_t home = community(anywhere);
    double kind = random.unit();
    std::size_t other = home;
    if (kind >= inside_ + near_) {
      other = community(random.below(vertices()));
    } else if (kind >= inside_) {
      std::uint64_t begin = anywhere / district_ * district_;
      other = community(begin + random.below(std::min(district_, vertices() - begin)));
    }
    return {shuffle_(member(home, random)), shuffle_(member(other, random))};
  }

 private:
  static constexpr int kCells = 4096;

  std::uint64_t vertices() const { return starts_.back(); }

  void build_lookup() {
    shift_ = std::max(0, static_cast<int>(std::bit_width(vertices())) - 16);
    std::size_t c = 0;
    for (std::uint64_t x = 0; x < vertices(); x += std::uint64_t{1} << shift_) {
      while (static_cast<std::uint64_t>(starts_[c + 1]) <= x) ++c;
      lookup_.push_back(c);
    }
  }
  std::size_t community(std::uint64_t x) const {
    std::size_t c = lookup_[x >> shift_];
    while (static_cast<std::uint64_t>(starts_[c + 1]) <= x) ++c;
    return c;
  }
  std::uint64_t member(std::size_t c, Stream& random) const {
    double at = random.unit() * kCells;
    auto cell = static_cast<std::size_t>(at);
    double x = quantile_[cell] +
               (at - static_cast<double>(cell)) * (quantile_[cell + 1] - quantile_[cell]);
    std::int64_t size = starts_[c + 1] - starts_[c];
    return starts_[c] +
           std::min(static_cast<std::int64_t>(x * static_cast<double>(size)), size - 1);
  }

  std::vector<std::int64_t> starts_;
  std::uint64_t district_;
  double inside_, near_;
  std::uint64_t seed_;
  Shuffle shuffle_;
  std::array<float, kCells + 1> quantile_;  // of the position inside a community
  std::vector<std::size_t> lookup_;
  int shift_;
};

// Rows of a random graph, a range at a time: each pass draws all edges again and keeps its own.

struct RowRange {
  std::vector<std::int32_t> lengths;
  BigArray<std::int32_t> columns;  // rows one after another; longer than needed
  std::int64_t nonzeros = 0;
};

// Draws edges [0, edges) and hands those that are no self-loops to visit, a batch at a time, so
// that it can ask for all the memory it will touch before it touches any.
template <class Visit>
void for_each_batch(const BlockModel& model, std::uint64_t edges, int threads, const Tick& tick,
                    const Visit& visit) {
  constexpr std::uint64_t kChunk = 1 << 18, kBatch = 256;
  parallel_chunks(
      static_cast<std::int64_t>((edges + kChunk - 1) / kChunk), threads,
      [&](std::int64_t chunk, int) {
        std::array<Edge, kBatch> batch;
        std::uint64_t begin = chunk * kChunk, end = std::min(begin + kChunk, edges);
        for (std::uint64_t i = begin; i < end;) {
          std::size_t size = 0;
          for (; i < end && size < kBatch; ++i) {
            batch[size] = model(i);
            size += batch[size].first != batch[size].second;
          }
          visit(std::span(batch.data(), size));
        }
      },
      tick);
}

// Entries of each row, both directions of an edge counted, duplicates included.
inline BigArray<std::int32_t> count_degrees(const BlockModel& model, std::uint64_t vertices,
                                            std::uint64_t edges, int threads, const Tick& tick) {
  BigArray<std::int32_t> degrees(vertices);
  for_each_batch(model, edges, threads, tick, [&](std::span<const Edge> batch) {
    for (auto [u, v] : batch) {
      __builtin_prefetch(&degrees[u], 1);
      __builtin_prefetch(&degrees[v], 1);
    }
    for (auto [u, v] : batch) {
      std::atomic_ref(degrees[u]).fetch_add(1, std::memory_order_relaxed);
      std::atomic_ref(degrees[v]).fetch_add(1, std::memory_order_relaxed);
    }
  });
  return degrees;
}

// Puts all entries of rows [first, first + rows) in their rows, in no order; next[r] is where row
// r begins, and where it ends afterwards.
inline void scatter_entries(const BlockModel& model, std::uint64_t first,
                            BigArray<std::int64_t>& next, BigArray<std::int32_t>& columns,
                            std::uint64_t edges, int threads, const Tick& tick) {
  for_each_batch(model, edges, threads, tick, [&](std::span<const Edge> batch) {
    struct Entry {
      std::uint64_t row, column;
    };
    std::array<Entry, 512> entries;
    std::array<std::int64_t, 512> place;
    std::size_t count = 0;
    auto add = [&](std::uint64_t row, std::uint64_t column) {
      if (row - first >= next.size()) return;
      entries[count++] = {row - first, column};
      __builtin_prefetch(&next[row - first], 1);
    };
    for (auto [u, v] : batch) {
      add(u, v);
      add(v, u);
    }
    for (std::size_t i = 0; i < count; ++i) {
      place[i] = std::atomic_ref(next[entries[i].row]).fetch_add(1, std::memory_order_relaxed);
      __builtin_prefetch(&columns[place[i]], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      columns[place[i]] = static_cast<std::int32_t>(entries[i].column);
    }
  });
}

// Rows [first, first + degrees.size()), sorted and without duplicates.
inline RowRange draw_rows(const BlockModel& model, std::uint64_t first,
                          std::span<const std::int32_t> degrees, std::uint64_t edges, int threads,
                          const Tick& tick) {
  std::uint64_t rows = degrees.size();
  BigArray<std::int64_t> next(rows);
  std::exclusive_scan(degrees.begin(), degrees.end(), next.begin(), std::int64_t{0});
  std::int64_t entries = rows ? next[rows - 1] + degrees[rows - 1] : 0;
  RowRange range{std::vector<std::int32_t>(rows), BigArray<std::int32_t>(entries)};
  scatter_entries(model, first, next, range.columns, edges, threads, tick);
  constexpr std::int64_t kRows = 1 << 14;
  parallel_chunks((rows + kRows - 1) / kRows, threads, [&](std::int64_t chunk, int) {
    std::int64_t end = std::min<std::int64_t>((chunk + 1) * kRows, rows);
    for (std::int64_t v = chunk * kRows; v < end; ++v) {
      std::int32_t* end_of_row = range.columns.data() + next[v];
      std::int32_t* row = end_of_row - degrees[v];
      std::sort(row, end_of_row);
      range.lengths[v] = static_cast<std::int32_t>(std::unique(row, end_of_row) - row);
    }
  });
  for (std::uint64_t v = 0; v < rows; ++v) {
    const std::int32_t* row = range.columns.data() + next[v] - degrees[v];
    std::copy(row, row + range.lengths[v], range.columns.data() + range.nonzeros);
    range.nonzeros += range.lengths[v];
  }
  return range;
}

}  // namespace spgnn
