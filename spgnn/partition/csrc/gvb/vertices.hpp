// What graphs and hypergraphs share: vertices with weights, and the weights of parts of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace spgnn::gvb {

using Vertex = std::int32_t;
using Part = std::int32_t;
using Bound = std::vector<std::int64_t>;  // largest weight, per constraint

struct WeightedVertices {
  Vertex num_vertices = 0;
  int constraints = 1;
  std::vector<std::int64_t> vertex_weight{};  // [vertices × constraints]

  std::span<const std::int64_t> weight_of(Vertex v) const {
    return {vertex_weight.data() + static_cast<std::int64_t>(v) * constraints,
            static_cast<std::size_t>(constraints)};
  }
  std::vector<std::int64_t> total_weight() const {
    std::vector<std::int64_t> total(constraints, 0);
    for (std::size_t i = 0; i < vertex_weight.size(); ++i) {
      total[i % constraints] += vertex_weight[i];
    }
    return total;
  }
};

// The weight of each part in each constraint, kept up to date under moves of vertices.
class PartWeights {
 public:
  template <class Labels>
  PartWeights(const WeightedVertices& vertices, const Labels& part, Part parts)
      : vertices_(vertices),
        constraints_(vertices.constraints),
        weight_(static_cast<std::size_t>(parts) * vertices.constraints, 0) {
    for (Vertex v = 0; v < vertices.num_vertices; ++v) add(v, part[v], 1);
  }

  std::int64_t operator()(Part p, int constraint) const {
    return weight_[p * constraints_ + constraint];
  }
  void add(Vertex v, Part p, int sign) {
    const auto weight = vertices_.weight_of(v);
    for (std::int64_t c = 0; c < constraints_; ++c) {
      weight_[p * constraints_ + c] += sign * weight[c];
    }
  }
  void move(Vertex v, Part from, Part to) {
    add(v, from, -1);
    add(v, to, 1);
  }

  // Whether p keeps its bound with v as well.
  bool fits(Vertex v, Part p, const Bound& bound) const {
    const auto weight = vertices_.weight_of(v);
    for (std::int64_t c = 0; c < constraints_; ++c) {
      if (weight_[p * constraints_ + c] + weight[c] > bound[c]) return false;
    }
    return true;
  }
  bool within(Part p, const Bound& bound) const {
    for (std::int64_t c = 0; c < constraints_; ++c) {
      if (weight_[p * constraints_ + c] > bound[c]) return false;
    }
    return true;
  }
  // Weight above the bound, summed over parts and constraints.
  std::int64_t overload(const Bound& bound) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < weight_.size(); ++i) {
      sum += std::max<std::int64_t>(0, weight_[i] - bound[i % constraints_]);
    }
    return sum;
  }

 private:
  const WeightedVertices& vertices_;
  std::int64_t constraints_;
  std::vector<std::int64_t> weight_;  // [parts × constraints]
};

}  // namespace spgnn::gvb
