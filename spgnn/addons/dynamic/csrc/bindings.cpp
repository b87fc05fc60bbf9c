// Lists of neighbours that grow and shrink in place, for Python (spgnn/addons/dynamic/updates.py).
#include <nanobind/stl/optional.h>

#include <cstring>

#include "arrays.hpp"
#include "std.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using spgnn::python::Array, spgnn::python::span_of, spgnn::python::to_numpy,
    spgnn::python::to_tuple;

namespace {

using Rows = Array<i64>;

// Lists of (column, weight), one a row, in one array. A row that outgrows its room moves to the
// end, with room for as many again; what rows left behind is taken out when it is half of the
// array.
class Neighbours {
 public:
  Neighbours(const Rows& lengths, const Array<i32>& columns,
             const std::optional<Array<float>>& weights)
      : lengths_(lengths.data(), lengths.data() + lengths.size()),
        columns_(columns.data(), columns.data() + columns.size()), used_(std::ssize(columns_)) {
    room_ = lengths_;
    starts_.reserve(lengths_.size());
    i64 end = 0;
    for (const i64 length : lengths_) {
      starts_.push_back(end);
      end += length;
    }
    weighted_ = weights.has_value();
    if (weighted_) weights_.assign(weights->data(), weights->data() + weights->size());
  }

  bool weighted() const { return weighted_; }

  nb::object lengths(const std::optional<Rows>& rows) const {
    if (!rows) return to_numpy(std::vector<i64>(lengths_));
    std::vector<i64> result;
    result.reserve(rows->size());
    for (const i64 row : span_of(*rows)) result.push_back(lengths_[row]);
    return to_numpy(std::move(result));
  }

  void extend(i64 rows, i64 before) {
    for (auto* array : {&lengths_, &room_, &starts_}) {
      array->insert(array->begin() + before, rows, 0);
    }
  }

  void renumber(i64 from, i64 by) {
    for (i32& column : columns_) column += column >= from ? static_cast<i32>(by) : 0;
  }

  nb::object find(const Rows& rows, const Rows& columns, i64 skip) const {
    std::vector<i64> places(rows.size(), -1);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto begin = columns_.begin() + starts_[rows.data()[i]];
      const auto end = begin + lengths_[rows.data()[i]];
      const auto place = std::find(std::min(begin + skip, end), end, columns.data()[i]);
      if (place != end) places[i] = place - columns_.begin();
    }
    return to_numpy(std::move(places));
  }

  void add(const Rows& rows, const Rows& columns, const std::optional<Array<float>>& weights) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const i64 row = rows.data()[i];
      if (lengths_[row] == room_[row]) move(row);
      const i64 place = starts_[row] + lengths_[row]++;
      columns_[place] = static_cast<i32>(columns.data()[i]);
      if (weighted_) weights_[place] = weights ? weights->data()[i] : 1.0F;
      ++used_;
    }
    if (std::ssize(columns_) > 2 * used_ + 1024) pack();
  }

  // Places are of these rows, each once; the last of a row takes the place of what is dropped.
  void drop(const Rows& rows, const Rows& places) {
    std::vector<i64> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](i64 a, i64 b) { return places.data()[a] > places.data()[b]; });
    for (const i64 i : order) {
      const i64 row = rows.data()[i], last = starts_[row] + --lengths_[row];
      columns_[places.data()[i]] = columns_[last];
      if (weighted_) weights_[places.data()[i]] = weights_[last];
      --used_;
    }
  }

  // Rows in CSR form, without the first entries of those that are marked.
  nb::tuple take(const Rows& rows, const std::optional<Array<bool>>& skip) const {
    std::vector<i64> indptr(rows.size() + 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      indptr[i + 1] = indptr[i] + lengths_[rows.data()[i]] - (skip && skip->data()[i]);
    }
    std::vector<i32> columns(indptr.back());
    std::vector<float> weights(weighted_ ? indptr.back() : 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const i64 start = starts_[rows.data()[i]] + (skip && skip->data()[i]);
      const i64 count = indptr[i + 1] - indptr[i];
      std::copy_n(&columns_[start], count, &columns[indptr[i]]);
      if (weighted_) std::copy_n(&weights_[start], count, &weights[indptr[i]]);
    }
    const nb::object of_columns = weighted_ ? to_numpy(std::move(weights)) : nb::none();
    return nb::make_tuple(to_numpy(std::move(indptr)), to_numpy(std::move(columns)), of_columns);
  }

  // The numbers in some rows, and others, each once, rising; all are below `limit`.
  nb::object ends(const Rows& rows, const Rows& others, i64 limit) {
    marks_.resize(limit, 0);
    std::vector<i64> result;
    const auto mark = [&](i64 number) {
      if (!marks_[number]) result.push_back(number);
      marks_[number] = 1;
    };
    for (const i64 row : span_of(rows)) {
      for (i64 e = starts_[row]; e < starts_[row] + lengths_[row]; ++e) mark(columns_[e]);
    }
    for (const i64 other : span_of(others)) mark(other);
    if (std::ssize(result) * 32 < limit) {
      std::sort(result.begin(), result.end());
    } else {
      auto to = result.begin();
      for (i64 number = 0; number < limit; ++number) {
        if (marks_[number]) *to++ = number;
      }
    }
    for (const i64 number : result) marks_[number] = 0;
    return to_numpy(std::move(result));
  }

 private:
  void move(i64 row) {
    const i64 start = std::ssize(columns_), length = lengths_[row];
    room_[row] = 2 * (length + 1);
    columns_.resize(start + room_[row]);
    std::copy_n(columns_.begin() + starts_[row], length, columns_.begin() + start);
    if (weighted_) {
      weights_.resize(start + room_[row]);
      std::copy_n(weights_.begin() + starts_[row], length, weights_.begin() + start);
    }
    starts_[row] = start;
  }

  void pack() {
    std::vector<i32> columns;
    std::vector<float> weights;
    columns.reserve(used_ + used_ / 4);
    weights.reserve(weighted_ ? used_ + used_ / 4 : 0);
    for (std::size_t row = 0; row < lengths_.size(); ++row) {
      const i64 begin = starts_[row], end = begin + lengths_[row];
      starts_[row] = std::ssize(columns);
      columns.insert(columns.end(), columns_.begin() + begin, columns_.begin() + end);
      if (weighted_)
        weights.insert(weights.end(), weights_.begin() + begin, weights_.begin() + end);
    }
    columns_.swap(columns);
    weights_.swap(weights);
    room_ = lengths_;
  }

  std::vector<i64> lengths_, room_, starts_;
  std::vector<i32> columns_;
  std::vector<float> weights_;
  std::vector<char> marks_;
  i64 used_;
  bool weighted_;
};

// Overwrites rows of a table; the numbers of those that were others, bit by bit.
nb::object put_rows(const spgnn::Tensor& table, const Rows& at, const spgnn::Dense& rows) {
  const auto size_of = [](const spgnn::Tensor& t) {
    return t.dtype == spgnn::Dtype::kFloat64 ? 8 : t.dtype == spgnn::Dtype::kBfloat16 ? 2 : 4;
  };
  const i64 bytes = table.rows() ? table.count() / table.rows() * size_of(table) : 0;
  std::vector<i64> changed;
  for (std::size_t i = 0; i < at.size(); ++i) {
    char* to = table.as<char>() + at.data()[i] * bytes;
    const char* from = rows.as<char>() + static_cast<i64>(i) * bytes;
    if (std::memcmp(to, from, bytes) == 0) continue;
    std::memcpy(to, from, bytes);
    changed.push_back(at.data()[i]);
  }
  return to_numpy(std::move(changed));
}

}  // namespace

void bind_dynamic(nb::module_& m) {
  nb::class_<Neighbours>(m, "Neighbours", "Lists of numbers, one a row, that grow and shrink.")
      .def(nb::init<const Rows&, const Array<i32>&, const std::optional<Array<float>>&>(),
           "lengths"_a, "columns"_a, "weights"_a = nb::none())
      .def_prop_ro("weighted", &Neighbours::weighted)
      .def("lengths", &Neighbours::lengths, "rows"_a = nb::none(), "Of some rows, or of all.")
      .def("extend", &Neighbours::extend, "rows"_a, "before"_a, "Inserts rows without entries.")
      .def("renumber", &Neighbours::renumber, "first"_a, "by"_a, "Adds to all columns from one on.")
      .def("find", &Neighbours::find, "rows"_a, "columns"_a, "skip"_a = 0,
           "Places of entries, the first few of each row left out; -1 for what is not there.")
      .def("add", &Neighbours::add, "rows"_a, "columns"_a, "weights"_a = nb::none(),
           "Adds entries at the ends of their rows.")
      .def("drop", &Neighbours::drop, "rows"_a, "places"_a, "Drops entries of rows at places.")
      .def("take", &Neighbours::take, "rows"_a, "skip"_a = nb::none(),
           "Some rows in CSR form: indptr, columns, and weights.")
      .def("ends", &Neighbours::ends, "rows"_a, "others"_a, "limit"_a,
           "The numbers in some rows, and others, each once, rising.");
  m.def("put_rows", &put_rows, "table"_a, "at"_a, "rows"_a,
        "Overwrites rows of a table; the numbers of those that were others, bit by bit.");
}
