// Random graphs, drawn row range by row range.
#pragma once

#include "big_array.hpp"
#include "inlined.hpp"
#include "parallel.hpp"

namespace spgnn {

// A stream of random numbers per (seed, index): SplitMix64 (Steele, Lea, Flood 2014).
class Stream {
 public:
  Stream(u64 seed, u64 index) : state_(mixed(seed) ^ mix64(index * kGolden)) {}

  u64 bits() { return mix64(state_ += kGolden); }
  // In [0, n), by multiplication (Lemire 2019) without the rejection step: n is far below 2⁶⁴.
  u64 below(u64 n) { return static_cast<u64>((static_cast<unsigned __int128>(bits()) * n) >> 64); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

 private:
  u64 state_;
};

// A pseudo-random permutation of [0, n) without a table: an unbalanced Feistel network over the
// next power of two, walked until it lands inside (Black & Rogaway 2002).
class Shuffle {
 public:
  Shuffle(u64 n, u64 seed) : n_(n) {
    int bits = std::max(2, static_cast<int>(std::bit_width(n - 1)));
    right_bits_ = bits / 2;
    left_mask_ = (u64{1} << (bits - right_bits_)) - 1;
    right_mask_ = (u64{1} << right_bits_) - 1;
    for (auto& key : keys_) key = mix64(seed = mix64(seed + 1)) | 1;
  }

  u64 operator()(u64 x) const {
    do x = step(x);
    while (x >= n_);
    return x;
  }

 private:
  u64 step(u64 x) const {
    u64 left = x >> right_bits_, right = x & right_mask_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      left ^= ((right + 1) * keys_[round] >> 32) & left_mask_;
      right ^= ((left + 1) * keys_[round + 1] >> 32) & right_mask_;
    }
    return left << right_bits_ | right;
  }

  u64 n_, left_mask_, right_mask_;
  int right_bits_;
  std::array<u64, 6> keys_;
};

using Edge = std::pair<u64, u64>;

// A degree-corrected block model (Karrer & Newman 2011) with two levels of communities.
//
// Vertices stand in a line, communities are its intervals, districts are intervals of
// communities. One end of an edge lies anywhere, the other in the same community, else in the same
// district, else anywhere. Inside a community the vertex at relative position x is drawn with
// density ∝ (x + hub)^-exponent, which makes a power law of degrees with a largest one.
class BlockModel {
 public:
  BlockModel(std::vector<i64> starts, u64 district, double inside, double near, double exponent,
             double hub, u64 seed)
      : starts_(std::move(starts)), district_(district), inside_(inside), near_(near), seed_(seed),
        shuffle_(starts_.back(), seed ^ 0x5eed) {
    double power = 1 - exponent, low = std::pow(hub, power), high = std::pow(1 + hub, power);
    for (std::size_t i = 0; i < quantile_.size(); ++i) {
      double share = static_cast<double>(i) / kCells;
      double x = std::pow(low + share * (high - low), 1 / power) - hub;
      quantile_[i] = static_cast<float>(std::clamp(x, 0.0, 1.0));
    }
    build_lookup();
  }

  Edge operator()(u64 index) const {
    Stream random(seed_, index);
    u64 anywhere = random.below(vertices());
    std::size_t home = community(anywhere);
    double kind = random.unit();
    std::size_t other = home;
    if (kind >= inside_ + near_) {
      other = community(random.below(vertices()));
    } else if (kind >= inside_) {
      u64 begin = anywhere / district_ * district_;
      other = community(begin + random.below(std::min(district_, vertices() - begin)));
    }
    return {shuffle_(member(home, random)), shuffle_(member(other, random))};
  }

 private:
  static constexpr int kCells = 4096;

  u64 vertices() const { return starts_.back(); }

  void build_lookup() {
    shift_ = std::max(0, static_cast<int>(std::bit_width(vertices())) - 16);
    std::size_t c = 0;
    for (u64 x = 0; x < vertices(); x += u64{1} << shift_) {
      while (static_cast<u64>(starts_[c + 1]) <= x) ++c;
      lookup_.push_back(c);
    }
  }
  std::size_t community(u64 x) const {
    std::size_t c = lookup_[x >> shift_];
    while (static_cast<u64>(starts_[c + 1]) <= x) ++c;
    return c;
  }
  u64 member(std::size_t c, Stream& random) const {
    double at = random.unit() * kCells;
    auto cell = static_cast<std::size_t>(at);
    double x = quantile_[cell] +
               (at - static_cast<double>(cell)) * (quantile_[cell + 1] - quantile_[cell]);
    i64 size = starts_[c + 1] - starts_[c];
    return starts_[c] + std::min(static_cast<i64>(x * static_cast<double>(size)), size - 1);
  }

  std::vector<i64> starts_;
  u64 district_;
  double inside_, near_;
  u64 seed_;
  Shuffle shuffle_;
  std::array<float, kCells + 1> quantile_;  // of the position inside a community
  std::vector<std::size_t> lookup_;
  int shift_;
};

// Rows of a random graph, a range at a time: each pass draws all edges again and keeps its own.

struct RowRange {
  std::vector<i32> lengths;
  BigArray<i32> columns;  // rows one after another; longer than needed
  i64 nonzeros = 0;
};

// Draws edges [0, edges) and hands those that are no self-loops to visit, a batch at a time, so
// that it can ask for all the memory it will touch before it touches any.
template <class Visit>
void for_each_batch(const BlockModel& model, u64 edges, int threads, const Tick& tick,
                    const Visit& visit) {
  constexpr u64 kChunk = 1 << 18, kBatch = 256;
  parallel_chunks(
      static_cast<i64>((edges + kChunk - 1) / kChunk), threads,
      [&](i64 chunk, int) {
        std::array<Edge, kBatch> batch;
        u64 begin = chunk * kChunk, end = std::min(begin + kChunk, edges);
        for (u64 i = begin; i < end;) {
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
inline BigArray<i32> count_degrees(const BlockModel& model, u64 vertices, u64 edges, int threads,
                                   const Tick& tick) {
  BigArray<i32> degrees(vertices);
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
inline void scatter_entries(const BlockModel& model, u64 first, BigArray<i64>& next,
                            BigArray<i32>& columns, u64 edges, int threads, const Tick& tick) {
  for_each_batch(model, edges, threads, tick, [&](std::span<const Edge> batch) {
    struct Entry {
      u64 row, column;
    };
    std::array<Entry, 512> entries;
    std::array<i64, 512> place;
    std::size_t count = 0;
    auto add = [&](u64 row, u64 column) {
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
      columns[place[i]] = static_cast<i32>(entries[i].column);
    }
  });
}

// Rows [first, first + degrees.size()), sorted and without duplicates.
inline RowRange draw_rows(const BlockModel& model, u64 first, std::span<const i32> degrees,
                          u64 edges, int threads, const Tick& tick) {
  u64 rows = degrees.size();
  BigArray<i64> next(rows);
  std::exclusive_scan(degrees.begin(), degrees.end(), next.begin(), i64{0});
  i64 entries = rows ? next[rows - 1] + degrees[rows - 1] : 0;
  RowRange range{std::vector<i32>(rows), BigArray<i32>(entries)};
  scatter_entries(model, first, next, range.columns, edges, threads, tick);
  constexpr i64 kRows = 1 << 14;
  parallel_chunks((rows + kRows - 1) / kRows, threads, [&](i64 chunk, int) {
    i64 end = std::min<i64>((chunk + 1) * kRows, rows);
    for (i64 v = chunk * kRows; v < end; ++v) {
      i32* end_of_row = range.columns.data() + next[v];
      i32* row = end_of_row - degrees[v];
      std::sort(row, end_of_row);
      range.lengths[v] = static_cast<i32>(std::unique(row, end_of_row) - row);
    }
  });
  for (u64 v = 0; v < rows; ++v) {
    const i32* row = range.columns.data() + next[v] - degrees[v];
    std::copy(row, row + range.lengths[v], range.columns.data() + range.nonzeros);
    range.nonzeros += range.lengths[v];
  }
  return range;
}

}  // namespace spgnn
