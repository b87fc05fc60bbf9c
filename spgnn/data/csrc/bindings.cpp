#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "numbers.hpp"
#include "random_graphs.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Lets Ctrl-C through and reports progress; runs on the thread that Python called from.
spgnn::Tick make_tick(nb::object progress) {
  return [progress](std::int64_t done, std::int64_t all) {
    nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done, all);
  };
}

template <class Holder, class T>
nb::object to_numpy(Holder&& values, T* data, std::size_t size, std::size_t offset = 0) {
  auto* kept = new Holder(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Holder*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data + offset, {size}, owner));
}

template <class Model>
nb::object count_degrees(const Model& model, std::uint64_t vertices, std::uint64_t edges,
                         int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::BigArray<std::int32_t> degrees;
  {
    nb::gil_scoped_release released;
    degrees = spgnn::count_degrees(model, vertices, edges, threads, tick);
  }
  std::int32_t* data = degrees.data();
  std::size_t size = degrees.size();
  return to_numpy(std::move(degrees), data, size);
}

template <class Model>
nb::tuple draw_rows(const Model& model, std::uint64_t first, Array<std::int32_t> degrees,
                    std::uint64_t edges, int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  spgnn::RowRange range;
  {
    nb::gil_scoped_release released;
    range = spgnn::draw_rows(model, first, {degrees.data(), degrees.size()}, edges, threads, tick);
  }
  std::int32_t *lengths = range.lengths.data(), *columns = range.columns.data();
  std::size_t rows = range.lengths.size();
  return nb::make_tuple(to_numpy(std::move(range.lengths), lengths, rows),
                        to_numpy(std::move(range.columns), columns, range.nonzeros));
}

template <class Model>
void define(nb::class_<Model>& model) {
  model
      .def("count_degrees", &count_degrees<Model>, "vertices"_a, "edges"_a, "threads"_a,
           "progress"_a.none(), "Entries of each row, int32 [vertices], duplicates included.")
      .def("draw_rows", &draw_rows<Model>, "first"_a, "degrees"_a, "edges"_a, "threads"_a,
           "progress"_a.none(), "(lengths, columns) of the rows that `degrees` counts.");
}

// The starts come as an array.
class ArrayBlockModel : public spgnn::BlockModel {
 public:
  ArrayBlockModel(Array<std::int64_t> starts, std::uint64_t district, double inside, double near,
                  double exponent, double hub, std::uint64_t seed)
      : BlockModel({starts.data(), starts.data() + starts.size()}, district, inside, near, exponent,
                   hub, seed) {}
};

template <class T>
nb::object vector_to_numpy(std::vector<T>&& values) {
  T* data = values.data();
  std::size_t size = values.size();
  return to_numpy(std::move(values), data, size);
}

nb::tuple parse_lines(nb::bytes text, std::int64_t first_line, const std::string& head,
                      const std::string& cycle, const std::string& separators,
                      const std::string& comments, bool blank_rows) {
  constexpr const char* kFaults[] = {"", "integer", "large", "number", "range", "count"};
  spgnn::Grammar grammar{head, cycle, separators, comments, blank_rows};
  spgnn::Rows rows;
  std::string_view view(text.c_str(), text.size());
  {
    nb::gil_scoped_release released;
    spgnn::LineParser(view, grammar, rows).run(first_line);
  }
  nb::tuple fault = nb::make_tuple(kFaults[static_cast<int>(rows.fault)], rows.line, rows.begin,
                                   rows.end, rows.fields);
  return nb::make_tuple(
      vector_to_numpy(std::move(rows.integers)), vector_to_numpy(std::move(rows.reals)),
      vector_to_numpy(std::move(rows.counts)), vector_to_numpy(std::move(rows.lines)), fault);
}

}  // namespace

void bind_data(nb::module_& m) {
  m.def("parse_lines", &parse_lines, "text"_a, "first_line"_a, "head"_a, "cycle"_a, "separators"_a,
        "comments"_a, "blank_rows"_a,
        "(integers, reals, counts, lines, (fault, line, begin, end, fields)) of some lines.");
  auto rmat = nb::class_<spgnn::Rmat>(m, "Rmat", "R-MAT with quadrant probabilities a, b, c.");
  rmat.def(nb::init<std::uint64_t, double, double, double, std::uint64_t>(), "vertices"_a, "a"_a,
           "b"_a, "c"_a, "seed"_a);
  define(rmat);
  auto block_model = nb::class_<ArrayBlockModel>(
      m, "BlockModel", "Degree-corrected block model over communities [starts[c], starts[c + 1]).");
  block_model.def(
      nb::init<Array<std::int64_t>, std::uint64_t, double, double, double, double, std::uint64_t>(),
      "starts"_a, "district"_a, "inside"_a, "near"_a, "exponent"_a, "hub"_a, "seed"_a);
  define(block_model);
}
