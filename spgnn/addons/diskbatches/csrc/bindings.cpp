#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "arrays.hpp"
#include "cache_table.hpp"
#include "reading_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using spgnn::python::Array, spgnn::python::Output, spgnn::python::span_of, spgnn::python::to_numpy,
    spgnn::python::to_tuple, spgnn::python::unlocked;

namespace {

using Ids = Array<i64>;
using Bytes = Output<u8>;

// Reads under way; holds on to the memory that they fill.
class Ticket {
 public:
  Ticket(std::shared_ptr<spgnn::StretchJob> job, Bytes out, int depth, bool ring)
      : job_(std::move(job)), out_(std::move(out)), depth_(depth), ring_(ring) {
    submit();
  }
  Ticket(Ticket&&) = default;
  ~Ticket() {
    if (!job_) return;
    if (is_inherited()) {
      leave_behind();
      return;
    }
    job_->give_up();
    nb::gil_scoped_release released;
    while (!job_->done_within(1000)) {}
  }

  // What went wrong, or nothing. Ctrl-C is let through.
  std::string wait() {
    if (is_inherited()) begin_again();
    for (bool done = false; !done;) {
      done = unlocked([&] { return job_->done_within(100); });
      if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    return job_->error();
  }
  i64 bytes() const { return job_->bytes(); }
  i64 reads() const { return job_->reads(); }

 private:
  void submit() {
    if (job_->reads() > 0) spgnn::ReadingPool::of_process(ring_).submit(job_, depth_);
  }

  // A fork has the memory of its parent, but none of the threads that were filling it.
  bool is_inherited() const { return process_ != getpid(); }
  void begin_again() {
    auto fresh = std::make_shared<spgnn::StretchJob>(*job_);
    leave_behind();
    job_ = std::move(fresh);
    process_ = getpid();
    submit();
  }
  // Whoever held the job's lock when the process was forked holds it for ever.
  void leave_behind() { new std::shared_ptr<spgnn::StretchJob>(std::move(job_)); }

  std::shared_ptr<spgnn::StretchJob> job_;
  Bytes out_;
  int depth_;
  bool ring_;
  pid_t process_ = getpid();
};

class Reader {
 public:
  Reader(const std::string& path, bool direct, int depth)
      : file_(std::make_shared<const spgnn::DataFile>(path, direct)), depth_(depth) {}

  bool ring = false;

  i64 alignment() const { return file_->alignment(); }
  i64 size() const { return file_->size(); }

  // Stretch i of the file goes to out[to[i]:].
  Ticket read(Ids begins, Ids lengths, Ids to, Bytes out, i64 gap) const {
    return start(begins.size(), std::move(out), gap, [&](std::size_t i, char* data) {
      const i64 begin = begins.data()[i];
      return spgnn::Stretch{begin, begin + lengths.data()[i], data + to.data()[i]};
    });
  }

  // Row ids[i] of the table that begins at `offset` goes to row places[i] of `out`.
  Ticket read_rows(Ids ids, Ids places, Bytes out, i64 offset, i64 row_bytes, i64 gap) const {
    return start(ids.size(), std::move(out), gap, [&](std::size_t i, char* data) {
      const i64 begin = offset + ids.data()[i] * row_bytes;
      return spgnn::Stretch{begin, begin + row_bytes, data + places.data()[i] * row_bytes};
    });
  }

 private:
  template <class StretchOf>
  Ticket start(std::size_t size, Bytes out, i64 gap, const StretchOf& stretch_of) const {
    char* data = reinterpret_cast<char*>(out.data());
    auto job = unlocked([&] {
      std::vector<spgnn::Stretch> stretches(size);
      for (std::size_t i = 0; i < size; ++i) stretches[i] = stretch_of(i, data);
      return std::make_shared<spgnn::StretchJob>(file_, std::move(stretches), gap);
    });
    return Ticket(std::move(job), std::move(out), depth_, ring);
  }

  std::shared_ptr<const spgnn::DataFile> file_;
  int depth_;
};

using ConstBytes = Array<u8>;

// Row from_row[i] of one table becomes row to_row[i] of another.
void copy_rows(ConstBytes source, Ids from_row, Bytes target, Ids to_row, i64 row_bytes) {
  nb::gil_scoped_release released;
  constexpr std::size_t kSoon = 8;  // rows lie anywhere: the processor is told a few ahead
  for (std::size_t i = 0; i < from_row.size(); ++i) {
    if (i + kSoon < from_row.size()) {
      __builtin_prefetch(source.data() + from_row.data()[i + kSoon] * row_bytes);
    }
    std::memcpy(target.data() + to_row.data()[i] * row_bytes,
                source.data() + from_row.data()[i] * row_bytes, row_bytes);
  }
}

// Bytes [begins[i], begins[i] + lengths[i]) go to target[to[i]:].
void copy_stretches(ConstBytes source, Ids begins, Ids lengths, Ids to, Bytes target) {
  nb::gil_scoped_release released;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    std::memcpy(target.data() + to.data()[i], source.data() + begins.data()[i], lengths.data()[i]);
  }
}

std::unique_ptr<spgnn::CacheTable> make_table(const std::string& policy, i64 rows, i64 slots,
                                              Array<float> scores) {
  using Made = std::unique_ptr<spgnn::CacheTable>;
  if (policy == "lru") return Made(new spgnn::LruTable(rows, slots));
  return Made(new spgnn::BeladyTable(rows, slots, {scores.data(), scores.data() + scores.size()}));
}

std::unique_ptr<spgnn::CacheTable> make_fixed_table(i64 rows, Ids kept) {
  return std::make_unique<spgnn::FixedTable>(rows, span_of(kept));
}

using Uses = Array<i32>;

nb::tuple begin(spgnn::CacheTable& table, Uses first) {
  auto fill = unlocked([&] { return table.begin(span_of(first)); });
  return to_tuple(std::move(fill.ids), std::move(fill.slots));
}

nb::tuple plan(spgnn::CacheTable& table, Ids ids, const std::optional<Uses>& uses) {
  auto change = unlocked([&] { return table.plan(span_of(ids), span_of(uses)); });
  return to_tuple(std::move(change.from), std::move(change.to));
}

}  // namespace

void bind_store(nb::module_& m) {
  nb::class_<Ticket>(m, "Ticket", "Reads under way.")
      .def("wait", &Ticket::wait, "What went wrong, or an empty text, once all is read.")
      .def_prop_ro("bytes", &Ticket::bytes, "Bytes that the disk is asked for.")
      .def_prop_ro("reads", &Ticket::reads, "Reads that the disk is asked for.");
  nb::class_<Reader>(m, "Reader", "A file, many of whose bytes are read at once.")
      .def(nb::init<const std::string&, bool, int>(), "path"_a, "direct"_a, "depth"_a)
      .def_prop_ro("alignment", &Reader::alignment, "1 where the page cache is used.")
      .def_prop_ro("size", &Reader::size, "Bytes of the file.")
      .def_rw("ring", &Reader::ring, "Whether it reads through io_uring, if there is one.")
      .def("read", &Reader::read, "begins"_a, "lengths"_a, "to"_a, "out"_a, "gap"_a)
      .def("read_rows", &Reader::read_rows, "ids"_a, "places"_a, "out"_a, "offset"_a, "row_bytes"_a,
           "gap"_a);
  m.def("ring_refusal", &spgnn::ring_refusal, "Why io_uring is not used; empty if it can be.");
  nb::class_<spgnn::CacheTable>(m, "CacheTable", "Which rows a cache keeps.")
      .def("begin", &begin, "first"_a,
           "Batches follow, of which this one needs each row first, or −1: rows to read now, and "
           "the slots that get them.")
      .def("plan", &plan, "ids"_a, "uses"_a = nb::none(),
           "Of the next batch, distinct rows: slots that hold them, or get them; or −1.");
  m.def("copy_rows", &copy_rows, "source"_a, "from_row"_a, "target"_a, "to_row"_a, "row_bytes"_a);
  m.def("copy_stretches", &copy_stretches, "source"_a, "begins"_a, "lengths"_a, "to"_a, "target"_a);
  m.def("cache_table", &make_table, "policy"_a, "rows"_a, "slots"_a, "scores"_a);
  m.def("fixed_cache_table", &make_fixed_table, "rows"_a, "kept"_a);
}
