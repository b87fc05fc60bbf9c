// All entries between some vertices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer.hpp"
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

}  // namespace spgnn
