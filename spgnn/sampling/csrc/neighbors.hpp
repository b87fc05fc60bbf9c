// Neighbour sampling: hop by hop, entries of the rows of everything found so far.
//
// Hamilton, Ying & Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hop.hpp"
#include "numbering.hpp"
#include "pool.hpp"

namespace spgnn {

// One hop of a sample; its columns are numbers of the sample's nodes.
struct SampledHop {
  Buffer<std::int64_t> indptr;
  Buffer<std::int32_t> indices;
  Buffer<std::int64_t> edge_ids;
  std::int64_t sources = 0;
};

struct Sampled {
  Buffer<std::int64_t> nodes;
  std::vector<SampledHop> hops;
};

struct HopOptions {
  bool replace = false;
  bool edge_ids = false;
  int threads = 1;
};

// Above so many vertices a table of all of them is slower than one of those found.
inline constexpr std::int64_t kMostInArray = std::int64_t{1} << 26;

template <class Index>
class Neighbors {
 public:
  explicit Neighbors(const Rows<Index>& rows) : rows_(rows) {}

  const Rows<Index>& rows() const { return rows_; }

  // The entries drawn for some rows; columns are those of the pattern.
  Entries<Index> hop(std::span<const std::int64_t> targets, std::int64_t fanout, std::uint64_t hop,
                     const Draw& draw, const HopOptions& options) const {
    for (const std::int64_t target : targets) check(target, rows_.rows, "target");
    Entries<Index> entries;
    draw_hop([targets](std::int64_t i) { return targets[i]; }, targets.size(), fanout,
             HopDraws(draw, hop), options, entries);
    return entries;
  }

  Sampled sample(std::span<const std::int64_t> seeds, std::span<const std::int64_t> fanouts,
                 const Draw& draw, const HopOptions& options) {
    if (rows_.cols <= kMostInArray) {
      const auto table = arrays_.take([&] { return std::make_unique<ArrayTable>(rows_.cols); });
      return sample(*table, seeds, fanouts, draw, options);
    }
    const auto table = hashes_.take([] { return std::make_unique<HashTable>(); });
    return sample(*table, seeds, fanouts, draw, options);
  }

 private:
  static void check(std::int64_t vertex, std::int64_t end, const char* what) {
    if (vertex < 0 || vertex >= end) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(vertex) +
                                  " outside [0, " + std::to_string(end) + ")");
    }
  }

  template <class Target>
  void draw_hop(const Target& target, std::int64_t count, std::int64_t fanout,
                const HopDraws& draws, const HopOptions& options, Entries<Index>& entries) const {
    HopSampler<Index, Target> sampler(rows_, target, count, options.threads);
    const Fanout limit{fanout, options.replace};
    if (options.replace) {
      sampler.template run<WithReplacement>(limit, draws, options.edge_ids, entries);
    } else {
      sampler.template run<WithoutReplacement>(limit, draws, options.edge_ids, entries);
    }
  }

  template <class Table>
  Sampled sample(Table& table, std::span<const std::int64_t> seeds,
                 std::span<const std::int64_t> fanouts, const Draw& draw,
                 const HopOptions& options) const {
    Numbering<Table, Index> numbering(table, options.threads);
    start(numbering, seeds);
    Sampled sampled;
    for (std::size_t k = 0; k < fanouts.size(); ++k) {
      Entries<Index> entries;
      const auto target = [&](std::int64_t i) {
        return static_cast<std::int64_t>(numbering.keys()[i]);
      };
      draw_hop(target, numbering.size(), fanouts[k], HopDraws(draw, k), options, entries);
      SampledHop& hop = sampled.hops.emplace_back();
      hop.indices = Buffer<std::int32_t>(entries.columns.size());
      numbering.add(entries.columns.data(), entries.columns.size(), hop.indices.data(),
                    k + 1 == fanouts.size());
      hop.indptr = std::move(entries.indptr);
      hop.edge_ids = std::move(entries.edge_ids);
      hop.sources = numbering.size();
    }
    sampled.nodes = Buffer<std::int64_t>(numbering.size());
    std::copy_n(numbering.keys(), numbering.size(), sampled.nodes.data());
    return sampled;
  }

  template <class Table>
  void start(Numbering<Table, Index>& numbering, std::span<const std::int64_t> seeds) const {
    const auto count = static_cast<std::int64_t>(seeds.size());
    Buffer<Index> keys(count);
    Buffer<std::int32_t> numbers(count);
    for (std::int64_t i = 0; i < count; ++i) {
      check(seeds[i], rows_.rows, "seed");
      keys[i] = static_cast<Index>(seeds[i]);
    }
    numbering.add(keys.data(), count, numbers.data(), false);
    if (numbering.size() == count) return;
    for (std::int64_t i = 0;; ++i) {
      if (numbers[i] != i) {
        throw std::invalid_argument("seed " + std::to_string(seeds[i]) + " is given twice");
      }
    }
  }

  Rows<Index> rows_;
  Pool<ArrayTable> arrays_;
  Pool<HashTable> hashes_;
};

// Targets and the columns that they lack, in the order found; and the columns as their numbers.
template <class Index>
std::pair<Buffer<std::int64_t>, Buffer<std::int32_t>> relabel(std::span<const std::int64_t> targets,
                                                              std::span<const Index> columns,
                                                              int threads) {
  HashTable table;
  Numbering<HashTable, std::int64_t> numbering(table, threads);
  const auto seeds = static_cast<std::int64_t>(targets.size());
  const auto count = static_cast<std::int64_t>(columns.size());
  Buffer<std::int32_t> indices(std::max(seeds, count));
  numbering.add(targets.data(), seeds, indices.data(), false);
  if (numbering.size() != seeds) throw std::invalid_argument("a target is given twice");
  Buffer<std::int64_t> keys(count);
  std::copy(columns.begin(), columns.end(), keys.data());
  indices.resize(count);
  numbering.add(keys.data(), count, indices.data(), true);
  Buffer<std::int64_t> nodes(numbering.size());
  std::copy_n(numbering.keys(), numbering.size(), nodes.data());
  return {std::move(nodes), std::move(indices)};
}

}  // namespace spgnn
