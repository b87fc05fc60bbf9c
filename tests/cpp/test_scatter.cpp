// Attention backward by rows, which send to their sources, on exactly sized heap arrays, so that a
// sanitizer sees every stray access and every race; against plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "attention.hpp"
#include "kernel_table.hpp"
#include "operands.hpp"
#include "rows.hpp"

namespace {

using spgnn::KernelTable;

// Rows of these lengths, some of which have one more nonzero; ids of both ends.
struct Graph {
  std::int64_t rows, cols;
  std::vector<std::int64_t> indptr{0}, loops, own_ids, other_ids;
  std::vector<std::int32_t> indices;
  std::unique_ptr<bool[]> there;

  Graph(const std::vector<std::int64_t>& lengths, std::int64_t columns, std::mt19937_64& rng)
      : rows(std::ssize(lengths)), cols(columns), there(std::make_unique<bool[]>(rows)) {
    const auto any = [&] { return static_cast<std::int64_t>(rng() % cols); };
    for (const std::int64_t length : lengths) {
      for (std::int64_t e = 0; e < length; ++e) {
        indices.push_back(static_cast<std::int32_t>(e ? any() : cols - 1));
      }
      indptr.push_back(std::ssize(indices));
      there[loops.size()] = rng() % 3 > 0;
      loops.push_back(any());
      own_ids.push_back(static_cast<std::int64_t>(rng() >> 20));
    }
    for (std::int64_t j = 0; j < cols; ++j) {
      other_ids.push_back(static_cast<std::int64_t>(rng() >> 20));
    }
  }

  std::vector<std::int64_t> sources_of(std::int64_t row, bool with_loops) const {
    std::vector<std::int64_t> found(indices.begin() + indptr[row],
                                    indices.begin() + indptr[row + 1]);
    if (with_loops && there[row]) found.push_back(loops[row]);
    return found;
  }
};

// Plain: z, x and g [columns or rows, heads, width], d and s [rows or columns, heads], GATv2's
// vector [heads, width].
template <class T> struct Operands {
  std::int64_t heads, width;
  std::vector<T> z, g, d, s, x, vector;

  Operands(const Graph& graph, std::int64_t count, std::int64_t each, std::mt19937_64& rng)
      : heads(count), width(each), z(random_numbers<T>(graph.cols * count * each, rng)),
        g(random_numbers<T>(graph.rows * count * each, rng)),
        d(random_numbers<T>(graph.rows * count, rng)),
        s(random_numbers<T>(graph.cols * count, rng)),
        x(random_numbers<T>(graph.rows * count * each, rng)),
        vector(random_numbers<T>(count * each, rng)) {}
};

// Gradients of z, of s, of the rows' own ends (d, or x) and of the vector: sums of what is added,
// and of its sizes.
struct Sums {
  std::vector<double> z, s, own, vector;
  std::vector<double> z_size, s_size, own_size, vector_size;

  template <class T>
  Sums(const Operands<T>& a, bool v2)
      : z(a.z.size()), s(a.s.size()), own(v2 ? a.x.size() : a.d.size()), vector(a.vector.size()),
        z_size(z), s_size(s), own_size(own), vector_size(vector) {}
};

// Whether dropout keeps a weight, as docs/kernels.md says.
bool is_kept(const spgnn::EdgeDropout& rule, std::int64_t row, std::int64_t source,
             std::int64_t head, std::int64_t heads) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const std::uint64_t number = rule.other_ids[source] * heads + head;
  const std::uint64_t stream = spgnn::mix64(rule.seed + kGolden * (rule.own_ids[row] + 1));
  const std::uint64_t bits = spgnn::mix64(stream + kGolden * (number / 2 + 1));
  return (number % 2 ? bits >> 32 : bits & 0xffffffffu) >= rule.threshold;
}

constexpr double kSlope = 0.25;
double leaky(double number) { return number > 0 ? number : kSlope * number; }

// What one head of a row adds, by the formulas.
template <class T>
void add_row(const Operands<T>& a, const std::vector<std::int64_t>& sources, std::int64_t row,
             std::int64_t head, const spgnn::EdgeDropout& rule, bool v2, Sums& sums) {
  const auto place = [&](std::int64_t i) { return (i * a.heads + head) * a.width; };
  const auto both = [&](std::int64_t j, std::int64_t c) {
    return double{a.x[place(row) + c]} + a.z[place(j) + c];
  };
  const std::int64_t number = row * a.heads + head;
  std::vector<double> weights, products;
  double total = 0, inner = 0, inner_size = 0;
  for (const std::int64_t j : sources) {
    double score = v2 ? 0 : leaky(double{a.d[number]} + a.s[j * a.heads + head]), product = 0;
    for (std::int64_t c = 0; c < a.width; ++c) {
      if (v2) score += leaky(both(j, c)) * a.vector[head * a.width + c];
      product += double{a.g[place(row) + c]} * a.z[place(j) + c];
    }
    const bool kept = !rule.own_ids || is_kept(rule, row, j, head, a.heads);
    products.push_back(kept ? product * rule.factor : 0);
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  for (std::size_t e = 0; e < sources.size(); ++e) {
    inner += weights[e] / total * products[e];
    inner_size += weights[e] / total * std::abs(products[e]);
  }
  const auto add = [](std::vector<double>& to, std::vector<double>& size, std::int64_t at,
                      double what, double how_large) { to[at] += what, size[at] += how_large; };
  for (std::size_t e = 0; e < sources.size(); ++e) {
    const std::int64_t j = sources[e];
    const bool kept = !rule.own_ids || is_kept(rule, row, j, head, a.heads);
    const double weight = weights[e] / total, sent = kept ? weight * rule.factor : 0;
    double change = weight * (products[e] - inner);
    double size = weight * (std::abs(products[e]) + inner_size);
    if (!v2) {
      const bool above = double{a.d[number]} + a.s[j * a.heads + head] > 0;
      change *= above ? 1 : kSlope;
      add(sums.s, sums.s_size, j * a.heads + head, change, size);
      add(sums.own, sums.own_size, number, change, size);
    }
    for (std::int64_t c = 0; c < a.width; ++c) {
      double what = sent * a.g[place(row) + c], how_large = std::abs(what);
      if (v2) {
        const std::int64_t of_a = head * a.width + c;
        const double on = change * a.vector[of_a] * (both(j, c) > 0 ? 1 : kSlope);
        add(sums.own, sums.own_size, place(row) + c, on, size * std::abs(a.vector[of_a]));
        add(sums.vector, sums.vector_size, of_a, change * leaky(both(j, c)),
            size * std::abs(both(j, c)));
        what += on, how_large += size * std::abs(a.vector[of_a]);
      }
      add(sums.z, sums.z_size, place(j) + c, what, how_large);
    }
  }
}

template <class T>
bool all_close(const std::vector<T>& found, const std::vector<double>& expected,
               const std::vector<double>& sizes) {
  bool close = true;
  for (std::size_t i = 0; i < found.size(); ++i) {
    close &= is_close(found[i], expected[i], 10 * sizes[i]);  // exponentials are to some ulps
  }
  return close;
}

template <class T>
void test(const KernelTable& table, const Graph& graph, std::int64_t heads, std::int64_t padded,
          std::int64_t width, bool v2, bool drops, bool with_loops) {
  std::mt19937_64 rng(heads + width);
  const Operands<T> a(graph, heads, width, rng);
  const std::int64_t matrix = spgnn::packed_columns(padded, width), columns = heads * width;
  const auto stride = static_cast<std::int64_t>((matrix + (v2 ? 0 : padded)) * sizeof(T));
  std::vector<char> rows(graph.cols * stride);
  const auto& kernels = std::get<spgnn::AttentionKernels<T>>(*table.attention);
  kernels.pack({heads,
                padded,
                width,
                {{a.z.data(), columns}, {}},
                {v2 ? nullptr : a.s.data(), nullptr, nullptr},
                rows.data(),
                stride},
               {0, graph.cols});
  const spgnn::EdgeDropout rule{drops ? graph.own_ids.data() : nullptr,
                                drops ? graph.other_ids.data() : nullptr,
                                false,
                                spgnn::mix64(3),
                                std::uint64_t{1} << 30,
                                drops ? 4.0 / 3 : 1.0};
  const spgnn::AttentionOperands<T> operands{graph.indptr.data(),
                                             graph.rows,
                                             {graph.indices.data(), nullptr},
                                             {},
                                             heads,
                                             padded,
                                             width,
                                             T(kSlope),
                                             {rows.data(), stride},
                                             {{a.x.data(), columns}, {a.g.data(), columns}},
                                             {a.d.data(), nullptr},
                                             v2 ? a.vector.data() : nullptr,
                                             nullptr,
                                             nullptr,
                                             rule};
  const spgnn::AttentionLoops loops{with_loops ? graph.there.get() : nullptr, graph.loops.data()};
  std::vector<char> first_sums;
  std::vector<T> first_own, first_vector;
  for (int threads : {1, 2, 5}) {
    std::vector<char> sums(rows.size());
    std::vector<T> own(v2 ? a.x.size() : a.d.size()), vector(a.vector.size());
    const spgnn::AttentionSent<T> sent{sums.data(), stride, v2 ? nullptr : own.data(),
                                       v2 ? own.data() : nullptr};
    spgnn::AttentionScatter<T>(*table.weighing, operands, loops, sent, v2, threads)
        .run(vector.data());
    if (threads == 1) first_sums = sums, first_own = own, first_vector = vector;
    expect(sums == first_sums, "what rows send depends on threads", table, columns);
    expect(same_bits(own, first_own), "gradients of own ends do", table, columns);
    expect(same_bits(vector, first_vector), "the vector's gradient does", table, columns);
  }
  Sums expected(a, v2);
  for (std::int64_t row = 0; row < graph.rows; ++row) {
    const auto sources = graph.sources_of(row, with_loops);
    for (std::int64_t h = 0; h < heads; ++h) add_row(a, sources, row, h, rule, v2, expected);
  }
  std::vector<T> z(a.z.size()), s(v2 ? 0 : a.s.size());
  for (std::int64_t j = 0; j < graph.cols; ++j) {
    const T* packed = reinterpret_cast<const T*>(first_sums.data() + j * stride);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t c = 0; c < width; ++c) {
        z[(j * heads + h) * width + c] = packed[c * padded + h];
      }
      if (!v2) s[j * heads + h] = packed[matrix + h];
    }
  }
  expect(all_close(z, expected.z, expected.z_size), "what rows send differs", table, columns);
  expect(all_close(s, expected.s, expected.s_size), "gradients of scores differ", table, columns);
  expect(all_close(first_own, expected.own, expected.own_size), "own ends", table, columns);
  if (v2) {
    expect(all_close(first_vector, expected.vector, expected.vector_size), "vector", table,
           columns);
  }
}

template <class T> void test_all(const KernelTable& table) {
  std::mt19937_64 rng(1);
  const Graph empty({}, 3, rng), one({5}, 7, rng), alone({0}, 1, rng);
  // Rows of more nonzeros than are kept at once, and than a batch has.
  const Graph many({0, 3, 1030, 0, 17'000, 1, 0, 2}, 53, rng);
  std::vector<std::int64_t> lengths(900);
  for (auto& length : lengths) length = static_cast<std::int64_t>(rng() % 60);
  const Graph usual(lengths, 53, rng);
  for (const bool v2 : {false, true}) {
    for (const auto& [heads, padded] : {std::pair{1, 1}, {3, 4}, {8, 8}, {16, 16}, {17, 32}}) {
      for (const std::int64_t width : {1, 5, 17}) {
        test<T>(table, one, heads, padded, width, v2, true, true);
        test<T>(table, alone, heads, padded, width, v2, false, width == 5);
      }
      test<T>(table, empty, heads, padded, 2, v2, false, false);
    }
    test<T>(table, usual, 3, 4, 5, v2, true, true);
    test<T>(table, usual, 1, 1, 33, v2, false, false);
    test<T>(table, many, 2, 2, 3, v2, true, true);
  }
}

}  // namespace

int main() {
  for (const auto isa : spgnn::available_isas()) {
    const KernelTable& table = spgnn::table_of(isa);
    test_all<float>(table);
    test_all<double>(table);
    std::printf("%s, scatter: %d failures\n", spgnn::name_of(isa), failures);
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
