// An order of working on rows in which neighbouring rows share columns, so that the rows of X they
// read are still in cache. Neither X nor Y is moved: only the work is done in another order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace spgnn {

// How many nonzeros read a column that the last `window` nonzeros did not: a guess at cache misses.
template <class Index>
std::int64_t count_far(const std::int64_t* indptr, const Index* indices, std::int64_t rows,
                       std::int64_t cols, const std::int32_t* order, std::int64_t window) {
  std::vector<std::int64_t> last_use(cols, -window - 1);
  std::int64_t time = 0, far = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = order ? order[i] : i;
    for (std::int64_t e = indptr[row]; e < indptr[row + 1]; ++e, ++time) {
      std::int64_t& last = last_use[indices[e]];
      far += time - last > window;
      last = time;
    }
  }
  return far;
}

// Size-constrained label propagation (Meyerhenke, Sanders & Schulz, SEA 2014, section 3): each row
// in turn joins the cluster that most of its columns are in, if that has room. Sequential, so the
// same on every machine. Ties go to the row's own cluster, then to the one met first.
template <class Index>
class LabelPropagation {
 public:
  LabelPropagation(const std::int64_t* indptr, const Index* indices, std::int64_t rows,
                   std::int64_t largest)
      : indptr_(indptr),
        indices_(indices),
        rows_(rows),
        largest_(largest),
        label_(rows),
        size_(rows, 1),
        votes_(rows, 0) {
    std::iota(label_.begin(), label_.end(), 0);
  }

  // Stops early once fewer than 1 row in 50 moves.
  const std::vector<std::int32_t>& run(int sweeps) {
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      std::int64_t moved = 0;
      for (std::int64_t row = 0; row < rows_; ++row) moved += move(row);
      if (moved * 50 < rows_) break;
    }
    return label_;
  }

 private:
  // A hub's vote is spread over everything; looking at this many of its columns is enough.
  static constexpr std::int64_t kLooksAt = 512;

  bool move(std::int64_t row) {
    const std::int64_t begin = indptr_[row];
    const std::int64_t end = std::min(indptr_[row + 1], begin + kLooksAt);
    const std::int32_t own = label_[row];
    // The diagonal is no vote, or no row would ever leave its first cluster.
    for (std::int64_t e = begin; e < end; ++e) votes_[label_[indices_[e]]] += indices_[e] != row;
    std::int32_t best = own;
    for (std::int64_t e = begin; e < end; ++e) {
      const std::int32_t label = label_[indices_[e]];
      if (votes_[label] > votes_[best] && size_[label] < largest_) best = label;
    }
    for (std::int64_t e = begin; e < end; ++e) votes_[label_[indices_[e]]] = 0;
    if (best == own) return false;
    --size_[own];
    ++size_[best];
    label_[row] = best;
    return true;
  }

  const std::int64_t* indptr_;
  const Index* indices_;
  std::int64_t rows_, largest_;
  std::vector<std::int32_t> label_, size_, votes_;
};

// Rows sorted by cluster; clusters in the order of their first row, rows in their old order.
inline void order_by_label(const std::vector<std::int32_t>& label, std::int32_t* order) {
  const auto rows = static_cast<std::int64_t>(label.size());
  std::vector<std::int64_t> rank(rows, -1), begin{0};
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t& cluster = rank[label[row]];
    if (cluster < 0) {
      cluster = static_cast<std::int64_t>(begin.size()) - 1;
      begin.push_back(0);
    }
    ++begin[cluster + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  for (std::int64_t row = 0; row < rows; ++row) {
    order[begin[rank[label[row]]]++] = static_cast<std::int32_t>(row);
  }
}

}  // namespace spgnn
