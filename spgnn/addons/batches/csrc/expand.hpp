// From seeds to a sample, hop by hop; how the entries of a hop are drawn is somebody else's matter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "numbering.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Entries of the targets' rows whose columns have a number below `sources`; number(i, column) is
// that of a column for target i, negative if it has none.
template <class Index, class Number>
void induce(const Rows<Index>& rows, const Targets<Index>& targets, std::int64_t sources,
            const Number& number, bool edge_ids, int threads, Buffer<std::int64_t>& indptr,
            Buffer<std::int32_t>& indices, Buffer<std::int64_t>& ids) {
  constexpr std::int64_t kPerTask = 128;
  const std::int64_t tasks = (targets.count + kPerTask - 1) / kPerTask;
  indptr = Buffer<std::int64_t>(targets.count + 1);
  // Twice: first they are counted.
  const auto each = [&](std::int64_t task, const auto& row_done, const auto& found) {
    const std::int64_t end = std::min((task + 1) * kPerTask, targets.count);
    for (std::int64_t i = task * kPerTask; i < end; ++i) {
      const std::int64_t row = targets.rows[i];
      for (std::int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
        if (targets.limits && rows.times[e] > targets.limits[i]) break;
        const std::int64_t place = number(i, rows.indices[e]);
        if (place >= 0 && place < sources) found(i, e, place);
      }
      row_done(i);
    }
  };
  for_each_task(tasks, threads, [&](std::int64_t task) {
    std::int64_t count = 0;
    each(
        task,
        [&](std::int64_t i) {
          indptr[i + 1] = count;
          count = 0;
        },
        [&](std::int64_t, std::int64_t, std::int64_t) { ++count; });
  });
  indptr[0] = 0;
  for (std::int64_t i = 0; i < targets.count; ++i) indptr[i + 1] += indptr[i];
  indices = Buffer<std::int32_t>(indptr[targets.count]);
  if (edge_ids) ids = Buffer<std::int64_t>(indptr[targets.count]);
  for_each_task(tasks, threads, [&](std::int64_t task) {
    std::int64_t at = indptr[task * kPerTask];
    each(
        task, [](std::int64_t) {},
        [&](std::int64_t, std::int64_t e, std::int64_t place) {
          indices[at] = static_cast<std::int32_t>(place);
          if (edge_ids) ids[at] = rows.order ? rows.order[e] : e;
          ++at;
        });
  });
}

// One hop of a sample; its columns are numbers of the sample's nodes.
struct SampledHop {
  Buffer<std::int64_t> indptr;
  Buffer<std::int32_t> indices;
  Buffer<std::int64_t> edge_ids;
  Buffer<float> weights;
  bool weighted = false;
  std::int64_t sources = 0;
};

struct Sampled {
  Buffer<std::int64_t> nodes;
  Buffer<std::int64_t> roots;  // where trees are disjoint
  std::vector<SampledHop> hops;
};

inline void check_vertex(std::int64_t vertex, std::int64_t end, const char* what) {
  if (vertex >= 0 && vertex < end) return;
  throw std::invalid_argument(std::string(what) + " " + std::to_string(vertex) + " outside [0, " +
                              std::to_string(end) + ")");
}

// Above so many vertices a table of all of them is slower than one of those found.
inline constexpr std::int64_t kMostInArray = std::int64_t{1} << 26;

// Tables that are kept for the next sample.
class Tables {
 public:
  explicit Tables(std::int64_t keys) : keys_(keys) {}

  template <class Use>
  auto with_table(const Use& use) {
    if (keys_ > kMostInArray) return with_hashes(use);
    const auto table = arrays_.take([&] { return std::make_unique<ArrayTable>(keys_); });
    return use(*table);
  }
  template <class Use>
  auto with_hashes(const Use& use) {
    const auto table = hashes_.take([] { return std::make_unique<HashTable>(); });
    return use(*table);
  }

 private:
  std::int64_t keys_;
  Pool<ArrayTable> arrays_;
  Pool<HashTable> hashes_;
};

// A sample while it grows: vertices, each once, or (root, vertex) pairs, each once.
template <class Index, class Table, bool kDisjoint>
class Growth {
 public:
  using Key = std::conditional_t<kDisjoint, std::uint64_t, Index>;

  Growth(const Rows<Index>& rows, Table& table, std::span<const std::int64_t> seeds,
         std::span<const std::int64_t> limits, int threads)
      : rows_(rows), limits_(limits), threads_(threads), numbering_(table, threads) {
    const auto count = static_cast<std::int64_t>(seeds.size());
    Buffer<Key> keys(count);
    Buffer<std::int32_t> numbers(count);
    for (std::int64_t i = 0; i < count; ++i) {
      check_vertex(seeds[i], rows.rows, "seed");
      keys[i] = key(i, seeds[i]);
    }
    numbering_.add(keys.data(), count, numbers.data(), false);
    check_once(seeds, numbers);
    take_apart();
  }

  // draw(hop, targets, sink) gives the entries of a hop, and to the sink, which may be null, while
  // they are drawn, or not at all. Targets are all that was found before.
  template <class DrawHop>
  Sampled grow(std::int64_t hops, bool directed, bool edge_ids, const DrawHop& draw) {
    Sampled sampled;
    std::vector<std::int64_t> sizes{numbering_.size()};
    for (std::int64_t k = 0; k < hops; ++k) {
      const Targets<Index> targets = this->targets();
      Numbers numbers(*this);
      Entries<Index> entries = draw(k, targets, numbering_.is_serial() ? &numbers : nullptr);
      SampledHop& hop = sampled.hops.emplace_back();
      hop.indices = numbers.of(entries, directed && k + 1 == hops);
      take_apart();
      hop.indptr = std::move(entries.indptr);
      hop.edge_ids = std::move(entries.edge_ids);
      hop.weights = std::move(entries.weights);
      hop.weighted = entries.weighted;
      hop.sources = numbering_.size();
      sizes.push_back(hop.sources);
    }
    for (std::int64_t k = 0; k < hops && !directed; ++k) {
      sampled.hops[k] = between(sizes[k], sizes[k + 1], edge_ids);
    }
    finish(sampled);
    return sampled;
  }

 private:
  Key key(std::int64_t root, std::int64_t vertex) const {
    return static_cast<Key>(kDisjoint ? root * rows_.cols + vertex : vertex);
  }

  // All nodes.
  Targets<Index> targets() const {
    if constexpr (kDisjoint) {
      return {vertices_.data(), numbering_.size(), roots_.data(),
              limits_.empty() ? nullptr : limit_of_.data()};
    } else {
      return {numbering_.keys(), numbering_.size()};
    }
  }

  // Numbers of the columns of a hop.
  class Numbers final : public Sink<Index> {
   public:
    explicit Numbers(Growth& growth) : growth_(growth) {}

    void begin(const Entries<Index>& entries) override {
      taken_ = true;
      make_room(entries);
      growth_.numbering_.expect(entries.columns.size());
    }
    void take(const Entries<Index>& entries, std::int64_t first, std::int64_t end) override {
      const std::int64_t at = entries.indptr[first], count = entries.indptr[end] - at;
      const Key* keys = this->keys(entries, first, end);
      growth_.numbering_.add_expected(keys + at, count, numbers_.data() + at);
    }
    // Of all entries; those that did not come one by one are added now.
    Buffer<std::int32_t> of(const Entries<Index>& entries, bool last) {
      if (!taken_) {
        make_room(entries);
        const Key* keys = this->keys(entries, 0, entries.indptr.size() - 1);
        growth_.numbering_.add(keys, entries.columns.size(), numbers_.data(), last);
      }
      return std::move(numbers_);
    }

   private:
    void make_room(const Entries<Index>& entries) {
      numbers_ = Buffer<std::int32_t>(entries.columns.size());
      if constexpr (kDisjoint) keys_ = Buffer<Key>(entries.columns.size());
    }
    // Of all entries; those of targets [first, end) are there.
    const Key* keys(const Entries<Index>& entries, std::int64_t first, std::int64_t end) {
      if constexpr (kDisjoint) {
        for (std::int64_t i = first; i < end; ++i) {
          for (std::int64_t e = entries.indptr[i]; e < entries.indptr[i + 1]; ++e) {
            keys_[e] = growth_.key(growth_.roots_[i], entries.columns[e]);
          }
        }
        return keys_.data();
      } else {
        return entries.columns.data();
      }
    }

    Growth& growth_;
    bool taken_ = false;
    Buffer<std::int32_t> numbers_;
    Buffer<Key> keys_;  // where they are not the columns
  };

  // Roots and vertices of the pairs that are new.
  void take_apart() {
    if constexpr (kDisjoint) {
      const std::int64_t known = vertices_.size(), all = numbering_.size();
      vertices_.resize(all);
      roots_.resize(all);
      if (!limits_.empty()) limit_of_.resize(all);
      for (std::int64_t i = known; i < all; ++i) {
        const std::uint64_t pair = numbering_.keys()[i];
        roots_[i] = static_cast<std::int32_t>(pair / rows_.cols);
        vertices_[i] = static_cast<Index>(pair % rows_.cols);
        if (!limits_.empty()) limit_of_[i] = limits_[roots_[i]];
      }
    }
  }

  void check_once(std::span<const std::int64_t> seeds, const Buffer<std::int32_t>& numbers) const {
    if (numbering_.size() == static_cast<std::int64_t>(seeds.size())) return;
    for (std::size_t i = 0;; ++i) {
      if (numbers[i] != static_cast<std::int32_t>(i)) {
        throw std::invalid_argument("seed " + std::to_string(seeds[i]) + " is given twice");
      }
    }
  }

  // All entries between the first so many nodes.
  SampledHop between(std::int64_t targets, std::int64_t sources, bool edge_ids) {
    SampledHop hop;
    const auto number = [&](std::int64_t i, std::int64_t column) {
      return numbering_.find(key(kDisjoint ? roots_[i] : 0, column));
    };
    Targets<Index> rows = this->targets();
    rows.count = targets;
    induce(rows_, rows, sources, number, edge_ids, threads_, hop.indptr, hop.indices, hop.edge_ids);
    hop.sources = sources;
    return hop;
  }

  void finish(Sampled& sampled) const {
    const Targets<Index> all = targets();
    sampled.nodes = Buffer<std::int64_t>(all.count);
    std::copy_n(all.rows, all.count, sampled.nodes.data());
    if constexpr (kDisjoint) {
      sampled.roots = Buffer<std::int64_t>(all.count);
      std::copy_n(all.roots, all.count, sampled.roots.data());
    }
  }

  const Rows<Index>& rows_;
  std::span<const std::int64_t> limits_;
  int threads_;
  Numbering<Table, Key> numbering_;
  Buffer<Index> vertices_;
  Buffer<std::int32_t> roots_;
  Buffer<std::int64_t> limit_of_;
};

// A sample of which draw(k, targets, sink) gives the hops.
template <class Index, class DrawHop>
Sampled sample_layers(const Rows<Index>& rows, Tables& tables, std::span<const std::int64_t> seeds,
                      std::int64_t hops, int threads, const DrawHop& draw) {
  return tables.with_table([&](auto& table) {
    using Table = std::remove_reference_t<decltype(table)>;
    Growth<Index, Table, false> growth(rows, table, seeds, {}, threads);
    return growth.grow(hops, true, false, draw);
  });
}

// The vertices alone, and all entries between them.
template <class Index>
Sampled induced_sample(const Rows<Index>& rows, Tables& tables,
                       std::span<const std::int64_t> vertices, bool edge_ids, int threads) {
  return tables.with_table([&](auto& table) {
    using Table = std::remove_reference_t<decltype(table)>;
    Growth<Index, Table, false> growth(rows, table, vertices, {}, threads);
    return growth.grow(1, false, edge_ids,
                       [](std::int64_t, const Targets<Index>& targets, Sink<Index>*) {
                         Entries<Index> none;
                         none.indptr = Buffer<std::int64_t>(targets.count + 1);
                         none.resize(0, false, false);
                         return none;
                       });
  });
}

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
