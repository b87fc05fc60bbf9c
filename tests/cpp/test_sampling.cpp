// Samples of every kind from small random graphs, on exactly sized heap arrays, so that a sanitizer
// sees every stray access and every race; what is drawn must be there, in the number asked for.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lanes.hpp"
#include "negatives.hpp"
#include "neighbors.hpp"
#include "rows.hpp"

namespace {

using spgnn::Strategy;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// Rows of these lengths, with times that rise in a row and weights.
template <class Index> struct Graph {
  std::int64_t cols;
  std::vector<std::int64_t> indptr{0}, times, ids, order, place_of;
  std::vector<Index> indices;
  std::vector<double> weights;
  spgnn::Buffer<double> sums;
  spgnn::BigArray<spgnn::Bucket<Index>> buckets;

  Graph(const std::vector<std::int64_t>& lengths, std::mt19937_64& rng)
      : cols(std::ssize(lengths)) {
    for (const std::int64_t length : lengths) {
      std::vector<std::pair<std::int64_t, Index>> row(length);
      for (auto& [time, column] : row) {
        time = static_cast<std::int64_t>(rng() % 9);
        column = static_cast<Index>(rng() % cols);
      }
      std::sort(row.begin(), row.end());
      for (const auto& [time, column] : row) {
        times.push_back(time);
        indices.push_back(column);
        weights.push_back(rng() % 5 ? 1.0 + static_cast<double>(rng() % 7) : 1e-40);
      }
      indptr.push_back(std::ssize(indices));
      ids.push_back(static_cast<std::int64_t>(rng() >> 20));
    }
    for (std::int64_t e = 0; e < std::ssize(indices); ++e) order.push_back(e);
    std::shuffle(order.begin(), order.end(), rng);
    place_of.resize(order.size());
    for (std::int64_t e = 0; e < std::ssize(order); ++e) place_of[order[e]] = e;
    sums = spgnn::row_sums(indptr.data(), cols, weights.data(), 2);
    buckets = spgnn::alias_tables(indptr.data(), indices.data(), cols, weights.data(), 2);
  }

  spgnn::Rows<Index> view(bool timed) const {
    return {indptr.data(), indices.data(),
            ids.data(),    ids.data(),
            order.data(),  timed ? times.data() : nullptr,
            sums.data(),   timed ? nullptr : buckets.data(),
            cols,          cols};
  }
};

// How many entries a row of so many has to give.
std::int64_t wanted(std::int64_t count, std::int64_t there, bool repeats) {
  if (count < 0) return there;
  return repeats ? (there > 0 ? count : 0) : std::min(count, there);
}

struct Setting {
  std::vector<std::int64_t> fanouts, seeds, limits;
  spgnn::HopOptions options;
};

template <class Index>
void check(const Graph<Index>& graph, const Setting& setting, const spgnn::Sampled& sampled) {
  const spgnn::HopOptions& options = setting.options;
  const auto root = [&](std::int64_t i) { return sampled.roots.size() ? sampled.roots[i] : 0; };
  std::set<std::pair<std::int64_t, std::int64_t>> met;
  for (std::int64_t i = 0; i < sampled.nodes.size(); ++i) {
    require(sampled.nodes[i] >= 0 && sampled.nodes[i] < graph.cols, "a node is no vertex");
    require(root(i) >= 0 && root(i) < std::max<std::int64_t>(std::ssize(setting.seeds), 1),
            "a node is in no tree");
    const bool is_new = met.emplace(root(i), sampled.nodes[i]).second;
    require(is_new || i < std::ssize(setting.seeds), "a node is there twice");
  }
  std::int64_t targets = std::ssize(setting.seeds);
  for (std::size_t k = 0; k < sampled.hops.size(); ++k) {
    const spgnn::SampledHop& hop = sampled.hops[k];
    require(hop.indptr.size() == targets + 1 && hop.indptr[0] == 0, "a hop lacks rows");
    for (std::int64_t i = 0; i < targets; ++i) {
      const std::int64_t row = sampled.nodes[i], end = graph.indptr[row + 1];
      std::int64_t there = 0;
      for (std::int64_t e = graph.indptr[row]; e < end; ++e) {
        there += setting.limits.empty() || graph.times[e] <= setting.limits[root(i)];
      }
      const std::int64_t begin = hop.indptr[i], until = hop.indptr[i + 1];
      const bool repeats = options.replace && options.strategy != Strategy::latest;
      require(!options.directed || until - begin == wanted(setting.fanouts[k], there, repeats),
              "a row has another number of entries");
      std::set<std::int64_t> drawn;
      for (std::int64_t j = begin; j < until; ++j) {
        const std::int64_t to = hop.indices[j];
        require(to >= 0 && to < hop.sources && root(to) == root(i), "an edge leaves its tree");
        if (hop.weighted) require(hop.weights[j] > 0 && hop.weights[j] < 1e30F, "a wild factor");
        if (!options.edge_ids) continue;
        require(hop.edge_ids[j] >= 0 && hop.edge_ids[j] < std::ssize(graph.order), "no number");
        const std::int64_t e = graph.place_of[hop.edge_ids[j]];
        require(e >= graph.indptr[row] && e < graph.indptr[row] + there, "an edge is no entry");
        require(graph.indices[e] == sampled.nodes[to], "an edge leads elsewhere");
        require(drawn.insert(e).second || repeats, "an edge was drawn twice");
      }
    }
    targets = hop.sources;
  }
  require(targets == sampled.nodes.size(), "nodes that no hop found");
}

template <class Index>
void draw_neighbors(const Graph<Index>& graph, spgnn::Tables& tables, std::mt19937_64& rng) {
  const std::vector<std::int64_t> choices{-1, 0, 1, 2, 5, 24, 30, 70, 400};
  for (int number = 0; number < 192; ++number) {
    const auto bit = [&](int place) { return (number >> place & 1) != 0; };
    Setting setting;
    spgnn::HopOptions& options = setting.options;
    options.strategy = static_cast<Strategy>(number % 3);
    options.replace = bit(0);
    options.directed = bit(1) || bit(2);
    options.resample = bit(3);
    options.edge_ids = bit(4);
    const bool timed = options.strategy == Strategy::latest || bit(5);
    options.disjoint = timed || rng() % 2;
    for (std::uint64_t hop = 0; hop < 1 + rng() % 3; ++hop) {
      setting.fanouts.push_back(choices[rng() % choices.size()]);
    }
    std::vector<std::int64_t> vertices(graph.cols);
    for (std::int64_t v = 0; v < graph.cols; ++v) vertices[v] = v;
    std::shuffle(vertices.begin(), vertices.end(), rng);
    vertices.resize(rng() % (graph.cols + 1));
    if (options.disjoint && !vertices.empty()) vertices.push_back(vertices[0]);
    setting.seeds = vertices;
    for (std::size_t i = 0; timed && i < vertices.size(); ++i) {
      setting.limits.push_back(static_cast<std::int64_t>(rng() % 9));
    }
    const spgnn::Draw draw{rng(), 1, 2};
    for (const int threads : {1, 3, 10}) {
      const auto rows = graph.view(timed);
      check(graph, setting,
            spgnn::sample_neighbors(rows, tables, std::span<const std::int64_t>(setting.seeds),
                                    std::span<const std::int64_t>(setting.limits),
                                    std::span<const std::int64_t>(setting.fanouts), draw, options,
                                    threads));
    }
  }
}

// One row of all vertices.
template <class Index> Graph<Index> all_vertices(std::int64_t count, std::mt19937_64& rng) {
  Graph<Index> one({count}, rng);
  one.cols = count;
  for (std::int64_t v = 0; v < count; ++v) one.indices[v] = static_cast<Index>(v);
  one.buckets =
      spgnn::alias_tables(one.indptr.data(), one.indices.data(), 1, one.weights.data(), 1);
  return one;
}

template <class Index>
void draw_others(const Graph<Index>& graph, spgnn::Tables& tables, std::mt19937_64& rng) {
  const spgnn::Draw draw{rng(), 3, 4};
  const auto rows = graph.view(false);
  Setting setting;
  setting.options.edge_ids = true;
  for (std::int64_t v = 0; v < graph.cols; v += 2) setting.seeds.push_back(v);
  const std::span<const std::int64_t> seeds(setting.seeds);
  const Graph<Index> vertices = all_vertices<Index>(graph.cols, rng);
  auto every = vertices.view(false);
  every.rows = 1;
  for (const int threads : {1, 3, 10}) {
    for (const std::int64_t count : {-1, 0, 1, 4, 300}) {
      const auto sample = [&](const auto& draw_hop) {
        return spgnn::sample_layers(rows, tables, seeds, 2, threads, draw_hop);
      };
      for (const int iterations : {0, 2}) {
        sample([&](std::int64_t k, const spgnn::Targets<Index>& targets, auto*) {
          const spgnn::HopDraws draws(draw, k);
          return spgnn::LaborHop<Index>(rows, tables, targets, count, draws,
                                        {iterations, false, true}, threads)
              .run();
        });
      }
      sample([&](std::int64_t k, const spgnn::Targets<Index>& targets, auto*) {
        return spgnn::ladies_hop(rows, tables, targets, graph.weights.data(), count,
                                 spgnn::HopDraws(draw, k), true, threads);
      });
      if (graph.cols == 0) continue;
      sample([&](std::int64_t k, const spgnn::Targets<Index>& targets, auto*) {
        return spgnn::fastgcn_hop(rows, every, tables, targets, count, spgnn::HopDraws(draw, k),
                                  true, threads);
      });
      const spgnn::Negatives<Index> negatives(rows, every, false, false);
      if (count > 0) negatives.draw(seeds, count, draw, threads);
      spgnn::random_walks(rows, seeds, std::max<std::int64_t>(count, 0), draw, threads);
    }
    setting.options.directed = false;
    check(graph, setting, spgnn::induced_sample(rows, tables, seeds, true, threads));
    spgnn::relabel(seeds.first(std::min<std::size_t>(seeds.size(), 1)),
                   std::span<const Index>(graph.indices));
    spgnn::row_order(std::span<const std::int64_t>(graph.indptr), graph.indices.data(),
                     graph.ids.data(), graph.times.data(), threads);
  }
}

template <class Index> void run(std::mt19937_64& rng) {
  std::vector<std::int64_t> many(300);
  for (std::int64_t& length : many) length = static_cast<std::int64_t>(rng() % 12);
  many[3] = 2000;
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{}, {0}, {1}, {0, 0, 0}, {5, 0, 3, 70, 1, 2}, many}) {
    const Graph<Index> graph(lengths, rng);
    spgnn::Tables tables(graph.cols);
    draw_neighbors(graph, tables, rng);
    draw_others(graph, tables, rng);
  }
}

}  // namespace

int main() {
  std::mt19937_64 rng(1);
  for (const auto isa : spgnn::available_isas()) {
    spgnn::current_isa() = isa;
    run<std::int32_t>(rng);
  }
  run<std::int64_t>(rng);
  std::puts("samples: every kind of small graphs");
}
