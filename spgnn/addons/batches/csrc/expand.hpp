// From seeds to a sample, hop by hop; how the entries of a hop are drawn is somebody else's matter.
#pragma once

#include <deque>

#include "buffer.hpp"
#include "numbering.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Entries of the targets' rows whose columns have a number below `sources`: number(i, column),
// negative if none.
template <class Index, class Number>
void induce(const Rows<Index>& rows, const Targets<Index>& targets, i64 sources,
            const Number& number, bool edge_ids, int threads, Buffer<i64>& indptr,
            Buffer<i32>& indices, Buffer<i64>& ids) {
  constexpr i64 kPerTask = 128;
  const i64 tasks = (targets.count + kPerTask - 1) / kPerTask;
  indptr = Buffer<i64>(targets.count + 1);
  // Twice: first they are counted.
  const auto each = [&](i64 task, const auto& row_done, const auto& found) {
    const i64 end = std::min((task + 1) * kPerTask, targets.count);
    for (i64 i = task * kPerTask; i < end; ++i) {
      const i64 row = targets.rows[i];
      for (i64 e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
        if (targets.limits && rows.times[e] > targets.limits[i]) break;
        const i64 place = number(i, rows.indices[e]);
        if (place >= 0 && place < sources) found(i, e, place);
      }
      row_done(i);
    }
  };
  for_each_task(tasks, threads, [&](i64 task) {
    i64 count = 0;
    each(
        task,
        [&](i64 i) {
          indptr[i + 1] = count;
          count = 0;
        },
        [&](i64, i64, i64) { ++count; });
  });
  indptr[0] = 0;
  for (i64 i = 0; i < targets.count; ++i) indptr[i + 1] += indptr[i];
  indices = Buffer<i32>(indptr[targets.count]);
  if (edge_ids) ids = Buffer<i64>(indptr[targets.count]);
  for_each_task(tasks, threads, [&](i64 task) {
    i64 at = indptr[task * kPerTask];
    each(
        task, [](i64) {},
        [&](i64, i64 e, i64 place) {
          indices[at] = static_cast<i32>(place);
          if (edge_ids) ids[at] = rows.order ? rows.order[e] : e;
          ++at;
        });
  });
}

// One hop of a sample; its columns are numbers of the sample's nodes.
struct SampledHop {
  Buffer<i64> indptr;
  Buffer<i32> indices;
  Buffer<i64> edge_ids;
  Buffer<float> weights;
  bool weighted = false;
  i64 sources = 0;
};

struct Sampled {
  std::vector<Buffer<i64>> nodes;  // of each type
  std::vector<Buffer<i64>> roots;  // where trees are disjoint
  std::vector<SampledHop> hops;    // of each hop one a relation
};

inline void check_vertex(i64 vertex, i64 end, const char* what) {
  if (vertex >= 0 && vertex < end) return;
  throw std::invalid_argument(std::string(what) + " " + std::to_string(vertex) + " outside [0, " +
                              std::to_string(end) + ")");
}

// Above so many vertices a table of all of them is slower than one of those found.
inline constexpr i64 kMostInArray = i64{1} << 26;

// Tables that are kept for the next sample.
class Tables {
 public:
  explicit Tables(i64 keys) : keys_(keys) {}

  i64 keys() const { return keys_; }

  template <class Use> auto with_table(const Use& use) {
    return keys_ > kMostInArray ? with<HashTable>(use) : with<ArrayTable>(use);
  }
  template <class Table, class Use> auto with(const Use& use) {
    if constexpr (std::is_same_v<Table, ArrayTable>) {
      const auto table = arrays_.take([&] { return std::make_unique<ArrayTable>(keys_); });
      return use(*table);
    } else {
      const auto table = hashes_.take([] { return std::make_unique<HashTable>(); });
      return use(*table);
    }
  }

 private:
  i64 keys_;
  Pool<ArrayTable> arrays_;
  Pool<HashTable> hashes_;
};

// A table of each of some types.
template <class Table, class Use>
Sampled with_each(std::span<Tables* const> all, std::vector<Table*>& taken, const Use& use) {
  if (taken.size() == all.size()) return use(taken);
  return all[taken.size()]->template with<Table>([&](Table& table) {
    taken.push_back(&table);
    return with_each(all, taken, use);
  });
}

// Vertices of one type in a sample while it grows: each once, or (root, vertex) pairs, each once.
template <class Index, class Table, bool kDisjoint> class Nodes {
 public:
  using Key = std::conditional_t<kDisjoint, u64, Index>;

  // `limits`: the latest time of each root's tree, if entries have times.
  Nodes(Table& table, i64 vertices, std::span<const i64> seeds, std::span<const i64> limits)
      : of_all_(vertices), limits_(limits), numbering_(table) {
    const auto count = std::ssize(seeds);
    Buffer<Key> keys(count);
    Buffer<i32> numbers(count);
    for (i64 i = 0; i < count; ++i) {
      check_vertex(seeds[i], vertices, "seed");
      keys[i] = key(i, seeds[i]);
    }
    numbering_.add(keys.data(), count, numbers.data());
    check_once(seeds, numbers);
    take_apart();
  }

  i64 size() const { return numbering_.size(); }

  // The first so many.
  Targets<Index> targets(i64 count) const {
    if constexpr (kDisjoint) {
      return {vertices_.data(), count, roots_.data(), limits_.empty() ? nullptr : limit_of_.data()};
    } else {
      return {numbering_.keys(), count};
    }
  }

  i64 find(i64 root, i64 vertex) const { return numbering_.find(key(root, vertex)); }

  // Numbers of the columns of a hop.
  class Numbers final : public Sink<Index> {
   public:
    Numbers(Nodes& nodes, const Targets<Index>& targets) : nodes_(nodes), targets_(targets) {}

    void begin(const Entries<Index>& entries) override {
      taken_ = true;
      make_room(entries);
      nodes_.numbering_.expect(entries.columns.size());
    }
    void take(const Entries<Index>& entries, i64 first, i64 end) override {
      const i64 at = entries.indptr[first], count = entries.indptr[end] - at;
      const Key* keys = this->keys(entries, first, end);
      nodes_.numbering_.add_expected(keys + at, count, numbers_.data() + at);
    }
    // Of all entries; those that did not come one by one are added now.
    Buffer<i32> of(const Entries<Index>& entries) {
      if (!taken_) {
        make_room(entries);
        const Key* keys = this->keys(entries, 0, entries.indptr.size() - 1);
        nodes_.numbering_.add(keys, entries.columns.size(), numbers_.data());
      }
      nodes_.take_apart();
      return std::move(numbers_);
    }

   private:
    void make_room(const Entries<Index>& entries) {
      numbers_ = Buffer<i32>(entries.columns.size());
      if constexpr (kDisjoint) keys_ = Buffer<Key>(entries.columns.size());
    }
    // Of all entries; those of targets [first, end) are there.
    const Key* keys(const Entries<Index>& entries, i64 first, i64 end) {
      if constexpr (kDisjoint) {
        for (i64 i = first; i < end; ++i) {
          for (i64 e = entries.indptr[i]; e < entries.indptr[i + 1]; ++e) {
            keys_[e] = nodes_.key(targets_.roots[i], entries.columns[e]);
          }
        }
        return keys_.data();
      } else {
        return entries.columns.data();
      }
    }

    Nodes& nodes_;
    const Targets<Index>& targets_;
    bool taken_ = false;
    Buffer<i32> numbers_;
    Buffer<Key> keys_;  // where they are not the columns
  };

  void finish(Sampled& sampled) const {
    const Targets<Index> all = targets(size());
    std::copy_n(all.rows, all.count, sampled.nodes.emplace_back(all.count).data());
    if constexpr (kDisjoint) {
      std::copy_n(all.roots, all.count, sampled.roots.emplace_back(all.count).data());
    }
  }

 private:
  Key key(i64 root, i64 vertex) const {
    return static_cast<Key>(kDisjoint ? root * of_all_ + vertex : vertex);
  }

  // Roots and vertices of the pairs that are new.
  void take_apart() {
    if constexpr (kDisjoint) {
      const i64 known = vertices_.size(), all = numbering_.size();
      vertices_.resize(all);
      roots_.resize(all);
      if (!limits_.empty()) limit_of_.resize(all);
      for (i64 i = known; i < all; ++i) {
        const u64 pair = numbering_.keys()[i];
        roots_[i] = static_cast<i32>(pair / of_all_);
        vertices_[i] = static_cast<Index>(pair % of_all_);
        if (!limits_.empty()) limit_of_[i] = limits_[roots_[i]];
      }
    }
  }

  void check_once(std::span<const i64> seeds, const Buffer<i32>& numbers) const {
    if (numbering_.size() == std::ssize(seeds)) return;
    for (std::size_t i = 0;; ++i) {
      if (numbers[i] != static_cast<i32>(i)) {
        throw std::invalid_argument("seed " + std::to_string(seeds[i]) + " is given twice");
      }
    }
  }

  i64 of_all_;
  std::span<const i64> limits_;
  Numbering<Table, Key> numbering_;
  Buffer<Index> vertices_;
  Buffer<i32> roots_;
  Buffer<i64> limit_of_;
};

// Rows of the vertices of one type, whose columns are those of another, or of the same.
template <class Index> struct Relation {
  const Rows<Index>* rows;
  int source = 0;
  int target = 0;
};

// A sample while it grows, hop by hop and relation by relation.
template <class Index, class Table, bool kDisjoint> class Growth {
 public:
  using OfType = Nodes<Index, Table, kDisjoint>;

  // Of each type a table and seeds.
  Growth(std::span<const Relation<Index>> relations, std::span<Table* const> tables,
         std::span<Tables* const> types, std::span<const std::span<const i64>> seeds,
         std::span<const i64> limits, int threads)
      : relations_(relations), threads_(threads) {
    for (std::size_t t = 0; t < types.size(); ++t) {
      nodes_.emplace_back(*tables[t], types[t]->keys(), seeds[t], limits);
    }
  }

  // draw(hop, relation, targets, sink) gives the entries of a hop, and may give them to the sink
  // while they are drawn.
  template <class DrawHop>
  Sampled grow(i64 hops, bool directed, bool edge_ids, const DrawHop& draw) {
    Sampled sampled;
    const auto relations = std::ssize(relations_);
    std::vector<std::vector<i64>> sizes{this->sizes()};
    for (i64 k = 0; k < hops; ++k) {
      for (i64 r = 0; r < relations; ++r) {
        const auto [rows, source, target] = relations_[r];
        const Targets<Index> targets = targets_of(*rows, target, sizes[k][target]);
        typename OfType::Numbers numbers(nodes_[source], targets);
        Entries<Index> entries = draw(k, r, targets, &numbers);
        SampledHop& hop = sampled.hops.emplace_back();
        hop.indices = numbers.of(entries);
        hop.indptr = std::move(entries.indptr);
        hop.edge_ids = std::move(entries.edge_ids);
        hop.weights = std::move(entries.weights);
        hop.weighted = entries.weighted;
      }
      sizes.push_back(this->sizes());
      for (i64 r = 0; r < relations; ++r) {
        sampled.hops[k * relations + r].sources = sizes[k + 1][relations_[r].source];
      }
    }
    for (i64 k = 0; k < hops && !directed; ++k) {
      for (i64 r = 0; r < relations; ++r) {
        const auto [rows, source, target] = relations_[r];
        sampled.hops[k * relations + r] =
            between(relations_[r], sizes[k][target], sizes[k + 1][source], edge_ids);
      }
    }
    for (const OfType& nodes : nodes_) nodes.finish(sampled);
    return sampled;
  }

 private:
  std::vector<i64> sizes() const {
    std::vector<i64> sizes;
    for (const OfType& nodes : nodes_) sizes.push_back(nodes.size());
    return sizes;
  }

  // Entries without times are never too late.
  Targets<Index> targets_of(const Rows<Index>& rows, int type, i64 count) const {
    Targets<Index> targets = nodes_[type].targets(count);
    if (!rows.times) targets.limits = nullptr;
    return targets;
  }

  // All entries between the first so many nodes.
  SampledHop between(const Relation<Index>& relation, i64 targets, i64 sources, bool edge_ids) {
    SampledHop hop;
    const Targets<Index> rows = targets_of(*relation.rows, relation.target, targets);
    const auto number = [&](i64 i, i64 column) {
      return nodes_[relation.source].find(kDisjoint ? rows.roots[i] : 0, column);
    };
    induce(*relation.rows, rows, sources, number, edge_ids, threads_, hop.indptr, hop.indices,
           hop.edge_ids);
    hop.sources = sources;
    return hop;
  }

  std::span<const Relation<Index>> relations_;
  int threads_;
  std::deque<OfType> nodes_;
};

// A sample of one type, which grow(growth) gives.
template <class Index, class Grow>
Sampled grow_one_type(const Rows<Index>& rows, Tables& tables, std::span<const i64> seeds,
                      int threads, const Grow& grow) {
  return tables.with_table([&](auto& table) {
    using Table = std::remove_reference_t<decltype(table)>;
    const Relation<Index> square[]{{&rows}};
    Table* const taken[]{&table};
    Tables* const types[]{&tables};
    const std::span<const i64> of_type[]{seeds};
    Growth<Index, Table, false> growth(square, taken, types, of_type, {}, threads);
    return grow(growth);
  });
}

// A sample of which draw(k, targets, sink) gives the hops.
template <class Index, class DrawHop>
Sampled sample_layers(const Rows<Index>& rows, Tables& tables, std::span<const i64> seeds, i64 hops,
                      int threads, const DrawHop& draw) {
  return grow_one_type(rows, tables, seeds, threads, [&](auto& growth) {
    return growth.grow(hops, true, false,
                       [&](i64 k, i64, const Targets<Index>& targets, Sink<Index>* sink) {
                         return draw(k, targets, sink);
                       });
  });
}

// The vertices alone, and all entries between them.
template <class Index>
Sampled induced_sample(const Rows<Index>& rows, Tables& tables, std::span<const i64> vertices,
                       bool edge_ids, int threads) {
  return grow_one_type(rows, tables, vertices, threads, [&](auto& growth) {
    return growth.grow(1, false, edge_ids,
                       [](i64, i64, const Targets<Index>& targets, Sink<Index>*) {
                         Entries<Index> none;
                         none.indptr = Buffer<i64>(targets.count + 1);
                         none.resize(0, false, false);
                         return none;
                       });
  });
}

// Targets and the columns that they lack, in the order found; and the columns as their numbers.
template <class Index>
std::pair<Buffer<i64>, Buffer<i32>> relabel(std::span<const i64> targets,
                                            std::span<const Index> columns) {
  HashTable table;
  Numbering<HashTable, i64> numbering(table);
  const auto seeds = std::ssize(targets);
  const auto count = std::ssize(columns);
  Buffer<i32> indices(std::max(seeds, count));
  numbering.add(targets.data(), seeds, indices.data());
  if (numbering.size() != seeds) throw std::invalid_argument("a target is given twice");
  Buffer<i64> keys(count);
  std::copy(columns.begin(), columns.end(), keys.data());
  indices.resize(count);
  numbering.add(keys.data(), count, indices.data());
  Buffer<i64> nodes(numbering.size());
  std::copy_n(numbering.keys(), numbering.size(), nodes.data());
  return {std::move(nodes), std::move(indices)};
}

}  // namespace spgnn
