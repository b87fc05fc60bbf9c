// Attention for Python, on addresses of checked arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "attention.hpp"
#include "bindings.hpp"
#include "scatter.hpp"

namespace nb = nanobind;

namespace {

// A list of numbers, and whether they are 64 bits wide; address 0: number i is i.
using List = std::tuple<Address, bool>;
// indptr, rows, indices, order of edges
using Block = std::tuple<Address, std::int64_t, List, List>;
// heads, padded heads, width
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
// packed rows of the other side, bytes from one to the next
using Packed = std::tuple<Address, std::int64_t>;
// own ids, others' ids, whether rows are sources, seed, threshold, factor; ids 0: none
using Dropout = std::tuple<Address, Address, bool, std::uint64_t, std::uint64_t, double>;
// two matrices, strides of their rows, two arrays of numbers of heads
using Own = std::tuple<Address, std::int64_t, Address, std::int64_t, Address, Address>;
// GATv2's vector, edge scores, edge features
using Scores = std::tuple<double, Address, Address, Address>;
using FiveArrays = std::tuple<Address, Address, Address, Address, Address>;

spgnn::Numbers numbers(const List& list) {
  const auto [address, wide] = list;
  return {wide ? nullptr : at<std::int32_t>(address), wide ? at<std::int64_t>(address) : nullptr};
}

template <class T>
spgnn::AttentionOperands<T> operands(const Block& block, const Shape& shape, const Packed& packed,
                                     const Own& own, const Scores& scores, const Dropout& dropout) {
  using S = spgnn::Sum<T>;
  const auto& [indptr, rows, indices, order] = block;
  const auto [heads, padded, width] = shape;
  const auto [own_ids, other_ids, by_column, seed, threshold, factor] = dropout;
  return {
      at<std::int64_t>(indptr),
      rows,
      numbers(indices),
      numbers(order),
      heads,
      padded,
      width,
      static_cast<S>(std::get<0>(scores)),
      {at<char>(std::get<0>(packed)), std::get<1>(packed)},
      {at<T>(std::get<0>(own)), at<T>(std::get<2>(own))},
      {std::get<1>(own), std::get<3>(own)},
      {at<S>(std::get<4>(own)), at<S>(std::get<5>(own))},
      at<S>(std::get<1>(scores)),
      at<S>(std::get<2>(scores)),
      at<T>(std::get<3>(scores)),
      {at<std::int64_t>(own_ids), at<std::int64_t>(other_ids), by_column, seed, threshold, factor}};
}

template <class S>
spgnn::Triples<S> triples(const FiveArrays& arrays) {
  const auto [m, n, o, p, pi] = arrays;
  return {at<S>(m), at<S>(n), at<S>(o), at<S>(p), at<S>(pi)};
}

template <class T>
const spgnn::AttentionKernels<T>& kernels() {
  return std::get<spgnn::AttentionKernels<T>>(*spgnn::current_table().attention);
}

// Matrices and numbers of heads of the rows that others gather, beside each other.
template <class T>
void pack(const Shape& shape, std::int64_t rows, Address first, std::int64_t first_stride,
          Address second, std::int64_t second_stride,
          const std::tuple<Address, Address, Address>& arrays, const Packed& packed, int threads) {
  using S = spgnn::Sum<T>;
  const auto [heads, padded, width] = shape;
  const spgnn::PackOperands<T> a{
      heads,
      padded,
      width,
      {at<T>(first), at<T>(second)},
      {first_stride, second_stride},
      {at<S>(std::get<0>(arrays)), at<S>(std::get<1>(arrays)), at<S>(std::get<2>(arrays))},
      at<char>(std::get<0>(packed)),
      std::get<1>(packed)};
  nb::gil_scoped_release released;
  spgnn::for_each_rows(rows, threads, [&](spgnn::Span span) { kernels<T>().pack(a, span); });
}

template <class T>
void attend(const Block& block, const Shape& shape, const Packed& packed, const Own& own,
            const Scores& scores, const Dropout& dropout, const FiveArrays& state, int ending,
            Address out, Address lse, bool v2, int threads) {
  using S = spgnn::Sum<T>;
  const auto a = operands<T>(block, shape, packed, own, scores, dropout);
  const spgnn::AttentionTarget<T> target{triples<S>(state), static_cast<spgnn::Ending>(ending),
                                         at<T>(out), at<S>(lse)};
  nb::gil_scoped_release released;
  spgnn::attend(spgnn::current_table(), a, target, v2, threads);
}

template <class T>
void attend_backward(const Block& block, const Shape& shape, const Packed& packed, const Own& own,
                     const Scores& scores, const Dropout& dropout, const FiveArrays& gradients,
                     int side, int threads) {
  using S = spgnn::Sum<T>;
  const auto a = operands<T>(block, shape, packed, own, scores, dropout);
  const auto [rows, numbers, vector, edge_scores, edge_features] = gradients;
  const spgnn::AttentionGradients<T> target{
      at<T>(rows),   at<S>(numbers),     nullptr,
      at<S>(vector), at<S>(edge_scores), at<T>(edge_features)};
  nb::gil_scoped_release released;
  spgnn::attend_backward(spgnn::current_table(), a, target, side, threads);
}

// What rows send to their sources is added to packed sums; gradients of the rows' own ends.
template <class T>
void scatter(const Block& block, const Shape& shape, const Packed& packed, const Own& own,
             const Scores& scores, const Dropout& dropout,
             const std::tuple<Address, Address>& loops, const Packed& sums, Address ends,
             Address vector, bool v2, int threads) {
  using S = spgnn::Sum<T>;
  const auto a = operands<T>(block, shape, packed, own, scores, dropout);
  const spgnn::AttentionLoops more{at<bool>(std::get<0>(loops)),
                                   at<std::int64_t>(std::get<1>(loops))};
  const spgnn::AttentionSent<T> sent{at<char>(std::get<0>(sums)), std::get<1>(sums),
                                     v2 ? nullptr : at<S>(ends), v2 ? at<T>(ends) : nullptr};
  nb::gil_scoped_release released;
  spgnn::AttentionScatter<T>(*spgnn::current_table().weighing, a, more, sent, v2, threads).run(at<S>(vector));
}

// Merges triples into listed rows of others (all in their order where the list is 0).
template <class T>
void merge(const FiveArrays& state, const List& listed, const FiveArrays& others, std::int64_t rows,
           std::int64_t heads, std::int64_t width, int threads) {
  const auto into = triples<T>(state), from = triples<T>(others);
  const auto list = numbers(listed);
  const auto row_of = [=](const spgnn::Triples<T>& a, std::int64_t row) {
    const std::int64_t o = row * heads * width, h = row * heads;
    return spgnn::Triples<T>{a.m + h, a.n + h, a.o + o, a.p ? a.p + o : nullptr,
                             a.p ? a.pi + h : nullptr};
  };
  nb::gil_scoped_release released;
  spgnn::for_each_rows(rows, threads, [&](spgnn::Span span) {
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      const std::int64_t row = list.narrow ? list.narrow[i] : list.wide ? list.wide[i] : i;
      kernels<T>().merge(row_of(into, row), row_of(from, i), heads, width);
    }
  });
}

// Finished rows of a state.
template <class T>
void finish(const FiveArrays& state, Address out, Address lse, std::int64_t rows,
            std::int64_t heads, std::int64_t width, int threads) {
  using S = spgnn::Sum<T>;
  auto from = triples<S>(state);
  const spgnn::AttentionTarget<T> target{{nullptr, nullptr, nullptr, nullptr, nullptr},
                                         spgnn::Ending::kFinished,
                                         at<T>(out),
                                         at<S>(lse)};
  nb::gil_scoped_release released;
  spgnn::for_each_rows(rows, threads, [&](spgnn::Span span) {
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      const spgnn::Triples<S> row{from.m + i * heads, from.n + i * heads,
                                  from.o + i * heads * width, nullptr, nullptr};
      kernels<T>().end(target, i, row, heads, width);
    }
  });
}

template <class T>
void head_products(Address x, std::int64_t x_stride, Address y, std::int64_t y_stride, bool sums,
                   Address products, std::int64_t rows, std::int64_t heads, std::int64_t width,
                   int threads) {
  using S = spgnn::Sum<T>;
  nb::gil_scoped_release released;
  spgnn::for_each_rows(rows, threads, [&](spgnn::Span span) {
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      const T* row = at<T>(x) + i * x_stride;
      S* place = at<S>(products) + i * heads;
      if (sums) {
        kernels<T>().head_products_of_sums(row, at<S>(y) + i * y_stride, heads, width, place);
      } else {
        kernels<T>().head_products(row, at<T>(y) + i * y_stride, heads, width, place);
      }
    }
  });
}

template <class T>
void define_for(nb::module_& m, const std::string& type) {
  m.def(("attention_pack_" + type).c_str(), &pack<T>);
  m.def(("attend_" + type).c_str(), &attend<T>);
  m.def(("attend_backward_" + type).c_str(), &attend_backward<T>);
  m.def(("attention_finish_" + type).c_str(), &finish<T>);
  m.def(("head_products_" + type).c_str(), &head_products<T>);
}

}  // namespace

void define_attention(nb::module_& m) {
  define_for<float>(m, "float32");
  define_for<double>(m, "float64");
  define_for<spgnn::Bfloat16>(m, "bfloat16");
  m.def("attention_scatter_float32", &scatter<float>);
  m.def("attention_scatter_float64", &scatter<double>);
  m.def("attention_merge_float32", &merge<float>);
  m.def("attention_merge_float64", &merge<double>);
}
