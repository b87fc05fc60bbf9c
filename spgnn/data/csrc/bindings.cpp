#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "names.hpp"
#include "numbers.hpp"
#include "random_graphs.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spgnn::python;

namespace {

nb::object count_degrees(const spgnn::BlockModel& model, u64 vertices, u64 edges, int threads,
                         nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  return to_numpy(
      unlocked([&] { return spgnn::count_degrees(model, vertices, edges, threads, tick); }));
}

nb::tuple draw_rows(const spgnn::BlockModel& model, u64 first, Array<i32> degrees, u64 edges,
                    int threads, nb::object progress) {
  spgnn::Tick tick = make_tick(progress);
  auto range = unlocked(
      [&] { return spgnn::draw_rows(model, first, span_of(degrees), edges, threads, tick); });
  return nb::make_tuple(to_numpy(std::move(range.lengths)),
                        to_numpy(std::move(range.columns), range.nonzeros));
}

nb::tuple parse_lines(nb::bytes text, i64 first_line, const std::string& head,
                      const std::string& cycle, const std::string& separators,
                      const std::string& comments, bool blank_rows) {
  constexpr const char* kFaults[] = {"",      "integer", "spelling", "missing",
                                     "large", "number",  "range",    "count"};
  spgnn::Grammar grammar{head, cycle, separators, comments, blank_rows};
  spgnn::Rows rows;
  std::string_view view(text.c_str(), text.size());
  unlocked([&] { spgnn::LineParser(view, grammar, rows).run(first_line); });
  nb::tuple fault = nb::make_tuple(kFaults[static_cast<int>(rows.fault)], rows.line, rows.begin,
                                   rows.end, rows.fields);
  return nb::make_tuple(to_numpy(std::move(rows.integers)), to_numpy(std::move(rows.reals)),
                        to_numpy(std::move(rows.counts)), to_numpy(std::move(rows.lines)), fault);
}

nb::object number_names(spgnn::NameTable& table, Array<i64> begins, Array<u8> bytes,
                        bool all_known) {
  std::vector<i64> numbers(begins.size() - 1);
  unlocked([&] {
    table.number(span_of(begins), reinterpret_cast<const char*>(bytes.data()), all_known,
                 numbers.data());
  });
  return to_numpy(std::move(numbers));
}

nb::tuple take_names(const spgnn::NameTable& table, Array<i64> numbers) {
  std::vector<i64> begins{0};
  std::vector<u8> bytes;
  for (const i64 number : span_of(numbers)) {
    const auto name = table[static_cast<std::size_t>(number)];
    bytes.insert(bytes.end(), name.begin(), name.end());
    begins.push_back(static_cast<i64>(bytes.size()));
  }
  return to_tuple(std::move(begins), std::move(bytes));
}

}  // namespace

void bind_data(nb::module_& m) {
  m.def("parse_lines", &parse_lines, "text"_a, "first_line"_a, "head"_a, "cycle"_a, "separators"_a,
        "comments"_a, "blank_rows"_a,
        "(integers, reals, counts, lines, (fault, line, begin, end, fields)) of some lines.");
  nb::class_<spgnn::NameTable>(m, "NameTable", "Numbers of names, in the order they first occur.")
      .def(nb::init<>())
      .def("number", &number_names, "begins"_a, "bytes"_a, "all_known"_a,
           "The number of each name; new ones get the next, or -1 if all are to be known.")
      .def("take", &take_names, "numbers"_a, "(begins, bytes) of the names of some numbers.")
      .def(
          "order",
          [](const spgnn::NameTable& table) {
            return to_numpy(unlocked([&] { return table.order(); }));
          },
          "Numbers in rising order of their names' bytes.")
      .def("__len__", &spgnn::NameTable::size);
  nb::class_<spgnn::BlockModel>(
      m, "BlockModel", "Degree-corrected block model over communities [starts[c], starts[c + 1]).")
      .def(
          "__init__",
          [](spgnn::BlockModel* self, Array<i64> starts, u64 district, double inside, double near,
             double exponent, double hub, u64 seed) {
            std::vector<i64> begins(starts.data(), starts.data() + starts.size());
            new (self) spgnn::BlockModel(begins, district, inside, near, exponent, hub, seed);
          },
          "starts"_a, "district"_a, "inside"_a, "near"_a, "exponent"_a, "hub"_a, "seed"_a)
      .def("count_degrees", &count_degrees, "vertices"_a, "edges"_a, "threads"_a,
           "progress"_a.none(), "Entries of each row, int32 [vertices], duplicates included.")
      .def("draw_rows", &draw_rows, "first"_a, "degrees"_a, "edges"_a, "threads"_a,
           "progress"_a.none(), "(lengths, columns) of the rows that `degrees` counts.");
}
