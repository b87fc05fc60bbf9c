// Minimum vertex cover of a bipartite graph: Hopcroft–Karp (1973) and König's theorem.
#pragma once

#include "std.hpp"

namespace spgnn {

// Row r is joined to columns[begin[r] .. begin[r + 1]). Fewer than 2^31 rows and columns.
template <class Column> struct BipartiteGraph {
  std::span<const i64> begin;       // rows + 1 entries
  std::span<const Column> columns;  // each in [0, num_columns)
  i64 num_columns;

  i64 num_rows() const { return std::ssize(begin) - 1; }
};

// Holds its work arrays, so that one object can cover many blocks without allocating anew.
template <class Column> class MinimumVertexCover {
 public:
  // Marks the rows and columns of one minimum cover and returns its size. Deterministic.
  i64 operator()(const BipartiteGraph<Column>& graph, std::vector<u8>& row_cover,
                 std::vector<u8>& column_cover) {
    i64 size = match(graph);
    // König: with Z = all that alternating paths from free rows reach, the cover is
    // (rows outside Z) and (columns inside Z). search_layers leaves Z in row_layer_.
    row_cover.assign(graph.num_rows(), 0);
    column_cover.assign(graph.num_columns, 0);
    for (i64 row = 0; row < graph.num_rows(); ++row) {
      if (row_layer_[row] == kUnreached) {
        row_cover[row] = 1;
        continue;
      }
      for (i64 e = graph.begin[row]; e < graph.begin[row + 1]; ++e) {
        column_cover[graph.columns[e]] = 1;
      }
    }
    return size;
  }

 private:
  using Node = i32;  // halves what the search has to touch
  static constexpr Node kFree = -1;
  static constexpr i32 kUnreached = std::numeric_limits<i32>::max();

  // Returns the size of a maximum matching; row_layer_ holds the last, fruitless search.
  i64 match(const BipartiteGraph<Column>& graph) {
    row_mate_.assign(graph.num_rows(), kFree);
    column_mate_.assign(graph.num_columns, kFree);
    row_layer_.assign(graph.num_rows(), kUnreached);
    next_edge_.resize(graph.num_rows());
    i64 size = match_greedily(graph);
    while (search_layers(graph)) {
      std::copy(graph.begin.begin(), graph.begin.end() - 1, next_edge_.begin());
      for (i64 row = 0; row < graph.num_rows(); ++row) {
        if (row_mate_[row] == kFree && augment(graph, row)) ++size;
      }
    }
    return size;
  }

  // Most rows find a free column at once; the phases after this are few.
  i64 match_greedily(const BipartiteGraph<Column>& graph) {
    i64 size = 0;
    for (i64 row = 0; row < graph.num_rows(); ++row) {
      for (i64 e = graph.begin[row]; e < graph.begin[row + 1]; ++e) {
        if (column_mate_[graph.columns[e]] != kFree) continue;
        row_mate_[row] = static_cast<Node>(graph.columns[e]);
        column_mate_[graph.columns[e]] = static_cast<Node>(row);
        ++size;
        break;
      }
    }
    return size;
  }

  // Breadth-first from all free rows; true if some shortest augmenting path exists.
  bool search_layers(const BipartiteGraph<Column>& graph) {
    queue_.clear();
    for (i64 row = 0; row < graph.num_rows(); ++row) {
      row_layer_[row] = row_mate_[row] == kFree ? 0 : kUnreached;
      if (row_mate_[row] == kFree) queue_.push_back(static_cast<Node>(row));
    }
    bool found = false;
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      i64 row = queue_[head];
      for (i64 e = graph.begin[row]; e < graph.begin[row + 1]; ++e) {
        const Node mate = column_mate_[graph.columns[e]];
        if (mate == kFree) {
          found = true;
        } else if (row_layer_[mate] == kUnreached) {
          row_layer_[mate] = row_layer_[row] + 1;
          queue_.push_back(mate);
        }
      }
    }
    return found;
  }

  // Depth-first along the layers; an explicit stack, because paths can be as long as the graph.
  bool augment(const BipartiteGraph<Column>& graph, i64 root) {
    stack_.assign(1, static_cast<Node>(root));
    while (!stack_.empty()) {
      i64 row = stack_.back();
      i64& e = next_edge_[row];
      if (e == graph.begin[row + 1]) {
        row_layer_[row] = kUnreached;
        stack_.pop_back();
        // The parent's edge led nowhere; move past it.
        if (!stack_.empty()) ++next_edge_[stack_.back()];
        continue;
      }
      const Node mate = column_mate_[graph.columns[e]];
      if (mate == kFree) {
        flip_path(graph);
        return true;
      }
      if (row_layer_[mate] == row_layer_[row] + 1) {
        stack_.push_back(mate);
      } else {
        ++e;
      }
    }
    return false;
  }

  void flip_path(const BipartiteGraph<Column>& graph) {
    for (const Node row : stack_) {
      const auto column = static_cast<Node>(graph.columns[next_edge_[row]]);
      row_mate_[row] = column;
      column_mate_[column] = row;
    }
    // Rows on the path are used up in this phase.
    for (const Node row : stack_) row_layer_[row] = kUnreached;
  }

  std::vector<Node> row_mate_, column_mate_, queue_, stack_, row_layer_;
  std::vector<i64> next_edge_;
};

}  // namespace spgnn
