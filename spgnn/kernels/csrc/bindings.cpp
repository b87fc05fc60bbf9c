// The operations for Python, as spgnn/kernels calls them: checked tensors in, results written.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include "attention.hpp"
#include "kernel_table.hpp"
#include "rows.hpp"
#include "spmm.hpp"
#include "std.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

// Apart from the functions on plain data that they call.
namespace spgnn::python {
namespace {

using Released = nb::gil_scoped_release;

// Calls body(T{}) with the type of a tensor's elements.
template <class Body> void with_floats(const Tensor& x, const Body& body) {
  switch (x.dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kFloat64:
      return body(double{});
    case Dtype::kBfloat16:
      return body(Bfloat16{});
    default:
      throw std::invalid_argument("no kernel takes this dtype");
  }
}

template <class Body> void with_wide_floats(const Tensor& x, const Body& body) {
  if (x.dtype == Dtype::kFloat32) return body(float{});
  if (x.dtype == Dtype::kFloat64) return body(double{});
  throw std::invalid_argument("no kernel takes this dtype");
}

// Calls body(T{}, Index{}).
template <class Body> void with_types(const Tensor& x, const Tensor& indices, const Body& body) {
  with_floats(x, [&](auto element) {
    if (indices.dtype == Dtype::kInt32) return body(element, i32{});
    body(element, i64{});
  });
}

// Rows of a matrix; a list of numbers; places to write; each may be none.
template <class T> RowsOf<T> rows(const Tensor& x) { return {x.as<T>(), x.stride[0]}; }
template <class Listed = Numbers> Listed numbers(const Tensor& list) {
  if (list.dtype == Dtype::kInt64) return {nullptr, list.as<i64>()};
  return {list.as<i32>(), nullptr};
}

void check_range(const Tensor& list, i64 limit) {
  const Numbers listed = numbers(list);
  if (!list || (listed.wide ? in_range(listed.wide, list.rows(), limit)
                            : in_range(listed.narrow, list.rows(), limit))) {
    return;
  }
  for (i64 i = 0; i < list.rows(); ++i) {
    if (listed[i] >= 0 && listed[i] < limit) continue;
    throw InputError("row " + std::to_string(listed[i]) + " outside [0, " + std::to_string(limit) +
                     ")");
  }
}

DropoutRule dropout_rule(i64 key, double p) {
  return {mix64(static_cast<u64>(key)), static_cast<u64>(std::nearbyint(p * 4294967296.0)),
          1.0 / (1.0 - p)};
}

Heads heads_of(const Tensor& x, const Tensor& y) {
  return x.dims == 3 ? Heads{x.shape[1], x.stride[1], y.stride[1]} : Heads{1, 0, 0};
}

void multiply(const Tensor& indptr, const Tensor& indices, const Tensor& values,
              const Tensor& row_scale, const Tensor& col_scale, const Tensor& x, const Tensor& y,
              bool accumulate, const Tensor& scaled) {
  const Heads heads = heads_of(x, y);
  const int threads = threads_for((indices.rows() + y.rows()) * heads.count * y.columns());
  with_types(x, indices, [&]<class T, class Index>(T, Index) {
    using S = Sum<T>;
    SpmmOperands<T, Index> a{
        indptr.as<i64>(),  indices.as<Index>(), y.rows(),         {values.as<S>(), heads.count},
        row_scale.as<S>(), col_scale.as<S>(),   rows<const T>(x), x.rows(),
        rows<T>(y),        y.columns(),         accumulate};
    Released released;
    if constexpr (std::is_same_v<T, S>) {
      if (scaled) spgnn::scale_rows(a, scaled.as<T>(), threads);
    }
    spgnn::spmm(current_table(), a, heads, threads);
  });
}

void spmm(const Tensor& indptr, const Tensor& indices, const Dense& values, const Dense& row_scale,
          const Dense& col_scale, const Rows& x, const Tensor& y, bool accumulate,
          const Dense& scaled) {
  multiply(indptr, indices, values, row_scale, col_scale, x, y, accumulate, scaled);
}

// The same if all are plain matrices in memory that fit, as kernels/spmm.py would find out line by
// line, which takes longer than a small product. Whether it is done; what is not is no fault yet.
bool spmm_if_plain(nb::handle its_indptr, nb::handle its_indices, nb::handle its_values,
                   nb::handle its_row_scale, nb::handle its_col_scale, i64 cols, nb::handle of_x,
                   nb::handle of_y, bool accumulate, const Dense& scaled) {
  Tensor indptr, indices, values, row_scale, col_scale, x, y;
  if (!nb::try_cast(of_x, x) || !nb::try_cast(of_y, y) || !nb::try_cast(its_indptr, indptr) ||
      !nb::try_cast(its_indices, indices) || !nb::try_cast(its_values, values) ||
      !nb::try_cast(its_row_scale, row_scale) || !nb::try_cast(its_col_scale, col_scale)) {
    return false;
  }
  const Dtype sum = x.dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : x.dtype;
  if (x.dtype > Dtype::kBfloat16 || y.dtype != x.dtype || x.dims != 2 || y.dims != 2) return false;
  const auto is_scale = [&](const Tensor& scale, i64 count) {
    return !scale || (scale.on_cpu && scale.dtype == sum && scale.dims == 1 &&
                      scale.rows() == count && !scale.has_gaps());
  };
  const i64 rows = indptr.rows() - 1;
  if (!(indptr.on_cpu && x.on_cpu && y.on_cpu && x.rows() == cols && y.rows() == rows &&
        y.columns() == x.columns() && x.has_unit_columns() && y.has_unit_columns() &&
        is_scale(values, indices.rows()) && is_scale(row_scale, rows) &&
        is_scale(col_scale, cols))) {
    return false;
  }
  const int size = x.dtype == Dtype::kFloat64 ? 8 : x.dtype == Dtype::kFloat32 ? 4 : 2;
  const auto span = [&](const Tensor& matrix) {
    const i64 last = (matrix.rows() - 1) * matrix.stride[0] + matrix.columns();
    const auto begin = reinterpret_cast<std::intptr_t>(matrix.data);
    return Span{begin, begin + last * size};
  };
  const Span read = span(x), written = span(y);
  if (read.begin < written.end && written.begin < read.end) return false;  // or rows alternate
  multiply(indptr, indices, values, row_scale, col_scale, x, y, accumulate, scaled);
  return true;
}

void sddmm(const Tensor& indptr, const Tensor& indices, const Dense& row_scale,
           const Dense& col_scale, const Rows& g, const Rows& x, const Tensor& products) {
  const Heads heads = heads_of(x, g);
  const int threads = threads_for(indices.rows() * heads.count * x.columns());
  with_types(x, indices, [&]<class T, class Index>(T, Index) {
    using S = Sum<T>;
    const SddmmOperands<T, Index> a{
        indptr.as<i64>(),  indices.as<Index>(), g.rows(),
        row_scale.as<S>(), col_scale.as<S>(),   rows<const T>(g),
        rows<const T>(x),  x.columns(),         {products.as<S>(), heads.count}};
    Released released;
    spgnn::sddmm(current_table(), a, heads, threads);
  });
}

// Numbers of nonzeros, [nnz] or [nnz, heads].
i64 heads_of(const Tensor& numbers) { return numbers.dims == 2 ? numbers.shape[1] : 1; }

void edge_softmax(const Tensor& indptr, const Dense& scores, const Tensor& out) {
  constexpr int kExponential = 8;  // multiplications that it costs, about
  const int threads = threads_for(kExponential * scores.count());
  with_floats(scores, [&]<class T>(T) {
    Released released;
    softmax(current_table(), indptr.as<i64>(), indptr.rows() - 1, heads_of(scores),
            scores.as<const T>(), out.as<T>(), threads);
  });
}

void row_sums(const Tensor& indptr, const Dense& a, const Dense& b, const Tensor& out) {
  const int threads = threads_for(a.count());
  with_floats(a, [&]<class T>(T) {
    Released released;
    spgnn::row_sums(current_table(), indptr.as<i64>(), indptr.rows() - 1, heads_of(a),
                    a.as<const T>(), b.as<const T>(), out.as<T>(), threads);
  });
}

template <class T, class Index>
RowOperands<T, Index> row_operands(const Tensor& x, const Tensor& y, const Tensor& listed,
                                   const Tensor& scale) {
  return {rows<const T>(x),   rows<T>(y),    x.columns(),
          listed.as<Index>(), listed.rows(), scale.as<Sum<T>>()};
}

void gather_rows(const Rows& x, const Dense& listed, const Dense& scale, const Tensor& y) {
  check_range(listed, x.rows());
  const int threads = threads_for(listed.rows() * x.columns());
  with_types(x, listed, [&]<class T, class Index>(T, Index) {
    const auto a = row_operands<T, Index>(x, y, listed, scale);
    Released released;
    spgnn::gather_rows(current_table(), a, threads);
  });
}

void scatter_add_rows(const Tensor& y, const Dense& listed, const Rows& x, const Dense& scale) {
  check_range(listed, y.rows());
  const int threads = threads_for(listed.rows() * x.columns());
  with_types(x, listed, [&]<class T, class Index>(T, Index) {
    const auto a = row_operands<T, Index>(x, y, listed, scale);
    Released released;
    spgnn::scatter_add_rows(current_table(), a, threads);
  });
}

void dropout_rows(const Rows& x, const Dense& vertex_ids, i64 key, double p, const Tensor& y) {
  const int threads = threads_for(x.count());
  with_floats(x, [&]<class T>(T) {
    const auto a = row_operands<T, i64>(x, y, vertex_ids, {});
    Released released;
    spgnn::dropout_rows(current_table(), a, dropout_rule(key, p), threads);
  });
}

void update_rows(const Rows& z, const Dense& bias, const Dense& vertex_ids, i64 key, double p,
                 int act, double alpha, const Tensor& y) {
  if (z.count() == 0) return;
  const int threads = threads_for(z.count());
  with_floats(z, [&]<class T>(T) {
    const UpdateOperands<T> a{rows<const T>(z),
                              rows<T>(y),
                              z.columns(),
                              z.rows(),
                              bias.as<Sum<T>>(),
                              static_cast<Act>(act),
                              alpha,
                              vertex_ids.as<i64>(),
                              dropout_rule(key, p)};
    Released released;
    spgnn::update_rows(current_table(), a, threads);
  });
}

void update_rows_backward(const Rows& g, const Rows& y, const Dense& vertex_ids, i64 key, double p,
                          int act, double alpha, const Tensor& dz, const Tensor& sums) {
  const int threads = threads_for(g.count());
  with_floats(g, [&]<class T>(T) {
    const UpdateGradients<T> a{rows<const T>(g),
                               rows<const T>(y),
                               rows<T>(dz),
                               g.columns(),
                               g.rows(),
                               static_cast<Act>(act),
                               alpha,
                               vertex_ids.as<i64>(),
                               dropout_rule(key, p)};
    Released released;
    update_gradients(current_table(), a, sums.count() ? sums.as<Sum<T>>() : nullptr, threads);
  });
}

template <class T>
EdgeOperands<T> edge_operands(const Tensor& indptr, const Tensor& indices, const Tensor& order,
                              const Tensor& x, const Tensor& w, const Tensor& v,
                              const Tensor& out) {
  return {indptr.as<i64>(),  numbers(indices), numbers(order),
          indptr.rows() - 1, rows<const T>(x), rows<const T>(w),
          rows<const T>(v),  out.columns(),    out.columns() / v.columns(),
          rows<T>(out)};
}

void edge_sum(const Tensor& indptr, const Tensor& indices, const Tensor& order, const Rows& x,
              const Rows& w, const Rows& v, int op, const Tensor& out) {
  if (out.count() == 0) return;
  const int threads = threads_for(indices.rows() * out.columns());
  with_floats(v, [&]<class T>(T) {
    const auto a = edge_operands<T>(indptr, indices, order, x, w, v, out);
    Released released;
    spgnn::edge_sum(current_table(), a, static_cast<EdgeOp>(op), threads);
  });
}

void edge_products(const Tensor& indptr, const Tensor& indices, const Rows& g, const Rows& x,
                   const Rows& v, int op, const Tensor& out) {
  if (out.count() == 0) return;
  const int threads = threads_for(out.count());
  with_floats(out, [&]<class T>(T) {
    const EdgeProducts<T> a{indptr.as<i64>(), numbers(indices), indptr.rows() - 1, rows<const T>(g),
                            rows<const T>(x), rows<const T>(v), out.columns(),     out.as<T>()};
    Released released;
    spgnn::edge_products(current_table(), a, static_cast<EdgeOp>(op), threads);
  });
}

void edge_extremes(const Tensor& indptr, const Tensor& indices, const Rows& x, const Rows& v,
                   int op, bool largest, const Tensor& out, const Tensor& arg) {
  if (out.count() == 0) return;
  const int threads = threads_for((indices.rows() + out.rows()) * out.columns());
  with_floats(out, [&]<class T>(T) {
    const EdgeExtremes<T> a{edge_operands<T>(indptr, indices, {}, x, {}, v, out), largest,
                            numbers<Places>(arg)};
    Released released;
    spgnn::edge_extremes(current_table(), a, static_cast<EdgeOp>(op), threads);
  });
}

// Of listed rows of X, which are messages of the nonzeros.
void extreme(const Tensor& indptr, const Tensor& indices, const Rows& x, bool largest, bool begun,
             i64 first_column, const Tensor& out, const Tensor& arg) {
  const int threads = threads_for(indices.rows() * x.columns());
  with_floats(x, [&]<class T>(T) {
    const EdgeExtremes<T> a{edge_operands<T>(indptr, {}, indices, {}, {}, x, out), largest,
                            numbers<Places>(arg), begun, first_column};
    Released released;
    spgnn::edge_extremes(current_table(), a, EdgeOp::kCopy, threads);
  });
}

void extreme_adjoint(const Rows& g, const Dense& arg, const Tensor& dx) {
  const int threads = threads_for(g.count());
  with_floats(g, [&]<class T>(T) {
    const ExtremeAdjoint<T> a{rows<const T>(g), numbers(arg), g.rows(), g.columns(), dx.as<T>()};
    Released released;
    spgnn::extreme_adjoint(current_table(), a, threads);
  });
}

void quantise_rows(const Rows& x, int bits, const Dense& ids, i64 key, bool stochastic,
                   const Dense& listed, const Tensor& residual, const Tensor& lost,
                   const Tensor& packed) {
  check_range(listed, x.rows());
  const int threads = threads_for(ids.rows() * x.columns());
  with_floats(x, [&]<class T>(T) {
    const QuantiseOperands<T> a{rows<const T>(x),
                                x.columns(),
                                ids.rows(),
                                numbers(listed),
                                bits,
                                ids.as<i64>(),
                                mix64(static_cast<u64>(key)),
                                stochastic,
                                rows<T>(residual),
                                packed.as<u8>()};
    Released released;
    spgnn::quantise_rows(current_table(), a, lost.as<double>(), threads);
  });
}

void dequantise_rows(const Dense& packed, int bits, const Dense& listed, const Tensor& y) {
  check_range(listed, y.rows());
  const i64 count = listed ? listed.rows() : y.rows();
  const int threads = threads_for(count * y.columns());
  with_floats(y, [&]<class T>(T) {
    const DequantiseOperands<T> a{packed.as<u8>(), y.columns(), count,
                                  numbers(listed), bits,        rows<T>(y)};
    Released released;
    spgnn::dequantise_rows(current_table(), a, threads);
  });
}

GemmOperand gemm_operand(const Rows& x) {
  return x ? GemmOperand{x.as<float>(), x.stride[0], x.columns()} : GemmOperand{};
}

void gemm_product(const Rows& x, const Dense& w, const Tensor& z, const Rows& other_x,
                  const Dense& other_w, const Tensor& other_z, const Rows& passing,
                  const Tensor& sums) {
  const GemmOperand operands[2] = {gemm_operand(x), gemm_operand(other_x)};
  const float* weights[2] = {w.as<float>(), other_w.as<float>()};
  const GemmMatrix results[2] = {{z.as<float>(), z.columns()},
                                 {other_z.as<float>(), other_z ? other_z.columns() : 0}};
  const int threads = threads_for(z.count() * (operands[0].columns + operands[1].columns));
  Released released;
  const GemmPassing passed{passing.as<float>(), passing.stride[0]};
  spgnn::gemm_product(current_table(), operands, weights, results, x.rows(), passed,
                      sums.as<float>(), threads);
}

void gemm_gradient(const Rows& g, const Rows& x, const Tensor& sums, const Rows& other_g,
                   const Rows& other_x, const Tensor& other_sums) {
  const GemmGradient a{
      {gemm_operand(g), gemm_operand(other_g)}, {gemm_operand(x), gemm_operand(other_x)}, 0, 0, 0};
  const int threads = threads_for(g.count() * x.columns());
  float* const results[2] = {sums.as<float>(), other_sums.as<float>()};
  Released released;
  spgnn::gemm_gradient(current_table(), a, x.rows(), results, threads);
}

constexpr int kEntropyWork = 16;  // what an exponential takes, in multiplications

void cross_entropy(const Rows& x, const Dense& target, const Dense& mask, double divisor,
                   const Tensor& out, const Tensor& dx) {
  const int threads = threads_for(kEntropyWork * x.count());
  with_wide_floats(x, [&]<class T>(T) {
    const auto parts = static_cast<T>(divisor);
    const CrossEntropyOperands<T> a{rows<const T>(x), x.columns(),  x.rows(),
                                    target.as<i64>(), T{1} / parts, rows<T>(dx)};
    Released released;
    const double loss = spgnn::cross_entropy(current_table(), a, mask.as<bool>(), threads);
    *out.as<T>() = static_cast<T>(loss) / parts;
  });
}

// Heads as packed rows have them: a power of two, or a multiple of 16.
i64 padded_heads(i64 heads) {
  if (heads > 16) return (heads + 15) / 16 * 16;
  return static_cast<i64>(std::bit_ceil(static_cast<u64>(heads)));
}

// One side of an attention: rows, and packed rows of the other side that their nonzeros gather.
struct AttentionSide {
  Tensor indptr, indices, packed;  // packed: uint8 [rows, bytes]
  i64 heads, width;
  double slope;
  Tensor order;
  Rows first, second;                                    // own: [rows, heads * width]
  Dense first_numbers, second_numbers, vector;           // [rows, heads]; GATv2: [heads, width]
  Dense edge_scores, edge_features, own_ids, other_ids;  // ids: of dropout, or none
  bool by_column;                                        // whether the rows are sources
  i64 key;
  double p;

  // So many passes over the features of each nonzero.
  int threads(i64 passes) const {
    constexpr i64 kEdge = 8;  // multiplications that a nonzero costs beside those
    return threads_for(passes * indices.rows() * padded_heads(heads) * (width + kEdge));
  }

  template <class T> AttentionOperands<T> operands() const {
    using S = Sum<T>;
    const DropoutRule rule = dropout_rule(key, p);
    return {indptr.as<i64>(),
            indptr.rows() - 1,
            numbers(indices),
            numbers(order),
            heads,
            padded_heads(heads),
            width,
            static_cast<S>(slope),
            {packed.as<char>(), packed.stride[0]},
            {rows<const T>(first), rows<const T>(second)},
            {first_numbers.as<S>(), second_numbers.as<S>()},
            vector.as<S>(),
            edge_scores.as<S>(),
            edge_features.as<T>(),
            {own_ids.as<i64>(), other_ids.as<i64>(), by_column, rule.seed, rule.threshold,
             rule.factor}};
  }
};

constexpr i64 kRowsOfSpan = 256;  // of a task of attention, where rows are by themselves

template <class T> const AttentionKernels<T>& attention_kernels() {
  return std::get<AttentionKernels<T>>(*current_table().attention);
}

// Matrices and numbers of heads of the rows that others gather, beside each other.
void attention_pack(i64 heads, const std::vector<Rows>& matrices,
                    const std::vector<Dense>& numbers_of_heads, const Tensor& packed) {
  const Tensor& first = matrices[0];
  const int threads = threads_for(first.count());
  with_floats(first, [&]<class T>(T) {
    PackOperands<T> a{heads, padded_heads(heads), first.columns() / heads, {},
                      {},    packed.as<char>(),   packed.stride[0]};
    for (std::size_t i = 0; i < matrices.size(); ++i) a.matrices[i] = rows<const T>(matrices[i]);
    for (std::size_t i = 0; i < numbers_of_heads.size(); ++i) {
      a.numbers[i] = numbers_of_heads[i].as<Sum<T>>();
    }
    Released released;
    for_each_span(first.rows(), kRowsOfSpan, threads,
                  [&](i64, Span span) { attention_kernels<T>().pack(a, span); });
  });
}

using State = std::array<Tensor, 5>;  // m, n, O, P, pi

template <class S> Triples<S> triples(const State& state) {
  return {state[0].as<S>(), state[1].as<S>(), state[2].as<S>(), state[3].as<S>(), state[4].as<S>()};
}

// `like` has the dtype of features.
void attend(const AttentionSide& side, const Tensor& like, const State& state, int ending,
            const Tensor& out, const Tensor& lse, bool v2) {
  const int threads = side.threads(1 + v2);
  with_floats(like, [&]<class T>(T) {
    const auto a = side.operands<T>();
    const AttentionTarget<T> target{triples<Sum<T>>(state), static_cast<Ending>(ending),
                                    out.as<T>(), lse.as<Sum<T>>()};
    Released released;
    spgnn::attend(current_table(), a, target, v2, threads);
  });
}

// `kind`: of columns, of columns in GATv2, of rows in GATv2.
void attend_backward(const AttentionSide& side, int kind, const Tensor& own_rows,
                     const Tensor& numbers_of_heads, const Tensor& vector,
                     const Tensor& edge_scores, const Tensor& edge_features) {
  const int threads = side.threads(kind == 0 ? 2 : 3);
  with_floats(own_rows, [&]<class T>(T) {
    using S = Sum<T>;
    const auto a = side.operands<T>();
    const AttentionGradients<T> target{
        own_rows.as<T>(), numbers_of_heads.as<S>(), nullptr,
        vector.as<S>(),   edge_scores.as<S>(),      edge_features.as<T>()};
    Released released;
    spgnn::attend_backward(current_table(), a, target, kind, threads);
  });
}

// What rows send to their sources is added to packed sums; gradients of the rows' own ends.
void attention_scatter(const AttentionSide& side, const Dense& loops, const Dense& loop_columns,
                       const Tensor& sums, const Tensor& ends, const Tensor& vector, bool v2) {
  const int threads = side.threads(3);
  with_wide_floats(ends, [&]<class T>(T) {
    const auto a = side.operands<T>();
    const AttentionLoops more{loops.as<bool>(), loop_columns.as<i64>()};
    const AttentionSent<T> sent{sums.as<char>(), sums.stride[0], v2 ? nullptr : ends.as<T>(),
                                v2 ? ends.as<T>() : nullptr};
    Released released;
    AttentionScatter<T>(*current_table().weighing, a, more, sent, v2, threads).run(vector.as<T>());
  });
}

// O / n and m + log n of triples.
void attention_finish(const Dense& m, const Dense& n, const Dense& o, const Tensor& out,
                      const Tensor& lse) {
  const i64 heads = lse.columns(), columns = out.columns();
  const int threads = threads_for(out.count());
  with_floats(out, [&]<class T>(T) {
    using S = Sum<T>;
    const AttentionTarget<T> target{{}, Ending::kFinished, out.as<T>(), lse.as<S>()};
    Released released;
    for_each_span(lse.rows(), kRowsOfSpan, threads, [&](i64, Span span) {
      for (i64 i = span.begin; i < span.end; ++i) {
        const Triples<S> row{m.as<S>() + i * heads, n.as<S>() + i * heads, o.as<S>() + i * columns,
                             nullptr, nullptr};
        attention_kernels<T>().end(target, i, row, heads, heads ? columns / heads : 0);
      }
    });
  });
}

// <x[i, h], y[i, h]>; y has the dtype of x, or of its sums.
void head_products(const Rows& x, const Rows& y, const Tensor& products) {
  const i64 heads = products.columns();
  const int threads = threads_for(x.count());
  with_floats(x, [&]<class T>(T) {
    using S = Sum<T>;
    const i64 width = heads ? x.columns() / heads : 0;
    const auto& kernels = attention_kernels<T>();
    Released released;
    for_each_span(products.rows(), kRowsOfSpan, threads, [&](i64, Span span) {
      for (i64 i = span.begin; i < span.end; ++i) {
        const T* row = x.as<T>() + i * x.stride[0];
        S* place = products.as<S>() + i * heads;
        if (y.dtype == x.dtype) {
          kernels.head_products(row, y.as<T>() + i * y.stride[0], heads, width, place);
        } else {
          kernels.head_products_of_sums(row, y.as<S>() + i * y.stride[0], heads, width, place);
        }
      }
    });
  });
}

// Asks for huge pages under a fresh allocation: fewer TLB misses and faults. A hint.
void advise_huge_pages([[maybe_unused]] const Tensor& memory) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  const std::uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + memory.count()) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace
}  // namespace spgnn::python

void bind_kernels(nb::module_& m) {
  namespace of = spgnn::python;
  using of::AttentionSide, spgnn::Dense, spgnn::Rows, spgnn::Tensor;
  const auto maybe = [](const char* name) { return nb::arg(name).none(); };
  m.def("spmm", &of::spmm, "indptr"_a, "indices"_a, maybe("values"), maybe("row_scale"),
        maybe("col_scale"), "X"_a, "out"_a, "accumulate"_a, maybe("scaled") = nb::none());
  m.def("spmm_if_plain", &of::spmm_if_plain, "indptr"_a, "indices"_a, maybe("values"),
        maybe("row_scale"), maybe("col_scale"), "cols"_a, "X"_a, maybe("out"), "accumulate"_a,
        maybe("scaled") = nb::none());
  m.def("sddmm", &of::sddmm, "indptr"_a, "indices"_a, maybe("row_scale"), maybe("col_scale"), "G"_a,
        "X"_a, "out"_a);
  m.def("edge_softmax", &of::edge_softmax, "indptr"_a, "scores"_a, "out"_a);
  m.def("row_sums", &of::row_sums, "indptr"_a, "a"_a, maybe("b"), "out"_a);
  m.def("gather_rows", &of::gather_rows, "X"_a, "rows"_a, maybe("scale"), "out"_a);
  m.def("scatter_add_rows", &of::scatter_add_rows, "Y"_a, "rows"_a, "X"_a, maybe("scale"));
  m.def("dropout_rows", &of::dropout_rows, "X"_a, "vertex_ids"_a, "key"_a, "p"_a, "out"_a);
  m.def("update_rows", &of::update_rows, "Z"_a, maybe("bias"), maybe("vertex_ids"), "key"_a, "p"_a,
        "act"_a, "alpha"_a, "out"_a);
  m.def("update_rows_backward", &of::update_rows_backward, "G"_a, maybe("Y"), maybe("vertex_ids"),
        "key"_a, "p"_a, "act"_a, "alpha"_a, "dZ"_a, "sums"_a);
  m.def("extreme", &of::extreme, "indptr"_a, "indices"_a, "X"_a, "largest"_a, "begun"_a,
        "first_column"_a, "out"_a, "arg"_a);
  m.def("extreme_adjoint", &of::extreme_adjoint, "G"_a, "arg"_a, "dX"_a);
  m.def("edge_sum", &of::edge_sum, "indptr"_a, "indices"_a, maybe("order"), maybe("X"), maybe("W"),
        "V"_a, "op"_a, "out"_a);
  m.def("edge_products", &of::edge_products, "indptr"_a, "indices"_a, maybe("G"), maybe("X"),
        maybe("V"), "op"_a, "out"_a);
  m.def("edge_extremes", &of::edge_extremes, "indptr"_a, "indices"_a, maybe("X"), "V"_a, "op"_a,
        "largest"_a, "out"_a, "arg"_a);
  m.def("quantise_rows", &of::quantise_rows, "X"_a, "bits"_a, "ids"_a, "key"_a, "stochastic"_a,
        maybe("rows"), maybe("residual"), maybe("lost"), "out"_a);
  m.def("dequantise_rows", &of::dequantise_rows, "packed"_a, "bits"_a, maybe("rows"), "out"_a);
  m.def("gemm_product", &of::gemm_product, "X"_a, "W"_a, "out"_a, maybe("other_X"),
        maybe("other_W"), maybe("other_out"), maybe("passing"), maybe("sums"));
  m.def("gemm_gradient", &of::gemm_gradient, "G"_a, "X"_a, "out"_a, maybe("other_G"),
        maybe("other_X"), maybe("other_out"));
  m.def("cross_entropy", &of::cross_entropy, "X"_a, "target"_a, maybe("mask"), "divisor"_a, "out"_a,
        maybe("gradient"));
  nb::class_<AttentionSide>(m, "AttentionSide")
      .def(nb::init<Tensor, Tensor, Tensor, i64, i64, double, Tensor, Rows, Rows, Dense, Dense,
                    Dense, Dense, Dense, Dense, Dense, bool, i64, double>(),
           "indptr"_a, "indices"_a, "packed"_a, "heads"_a, "width"_a, "slope"_a,
           maybe("order") = nb::none(), maybe("first") = nb::none(), maybe("second") = nb::none(),
           maybe("first_numbers") = nb::none(), maybe("second_numbers") = nb::none(),
           maybe("vector") = nb::none(), maybe("edge_scores") = nb::none(),
           maybe("edge_features") = nb::none(), maybe("own_ids") = nb::none(),
           maybe("other_ids") = nb::none(), "by_column"_a = false, "key"_a = 0, "p"_a = 0.0);
  m.def("attention_pack", &of::attention_pack, "heads"_a, "matrices"_a, "numbers"_a, "packed"_a);
  m.def("attend", &of::attend, "side"_a, "like"_a, "state"_a, "ending"_a, maybe("out"),
        maybe("lse"), "v2"_a);
  m.def("attend_backward", &of::attend_backward, "side"_a, "kind"_a, "rows"_a, maybe("numbers"),
        maybe("vector"), maybe("edge_scores"), maybe("edge_features"));
  m.def("attention_scatter", &of::attention_scatter, "side"_a, maybe("loops"),
        maybe("loop_columns"), "sums"_a, "ends"_a, "vector"_a, "v2"_a);
  m.def("attention_finish", &of::attention_finish, "m"_a, "n"_a, "O"_a, "out"_a, "lse"_a);
  m.def("head_products", &of::head_products, "G"_a, "X"_a, "products"_a);
  m.def("advise_huge_pages", &of::advise_huge_pages, "memory"_a);
  m.def("is_intel", &of::is_intel);
  m.def("last_cache_bytes", [] { return spgnn::last_cache_bytes(); });
  m.def("use_last_cache_bytes", [](i64 bytes) { spgnn::last_cache_bytes() = bytes; }, "bytes"_a);
  m.def("near_bytes", [] { return spgnn::near_bytes(); });
  m.def("use_near_bytes", [](i64 bytes) { spgnn::near_bytes() = bytes; }, "bytes"_a);
}
