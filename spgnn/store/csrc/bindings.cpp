#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "row_reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Reads under way; holds on to the memory that they fill.
class Ticket {
 public:
  Ticket(std::shared_ptr<spgnn::StretchJob> job, Bytes out)
      : job_(std::move(job)), out_(std::move(out)) {}
  Ticket(Ticket&&) = default;
  ~Ticket() {
    if (!job_) return;
    job_->give_up();
    nb::gil_scoped_release released;
    while (!job_->done_within(1000)) {
    }
  }

  // What went wrong, or nothing. Ctrl-C is let through.
  std::string wait() {
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release released;
        done = job_->done_within(100);
      }
      if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    return job_->error();
  }
  std::int64_t bytes() const { return job_->bytes(); }
  std::int64_t reads() const { return job_->reads(); }

 private:
  std::shared_ptr<spgnn::StretchJob> job_;
  Bytes out_;
};

class Reader {
 public:
  Reader(const std::string& path, bool direct, int depth)
      : file_(std::make_shared<const spgnn::DataFile>(path, direct)), depth_(depth) {}

  std::int64_t alignment() const { return file_->alignment(); }
  std::int64_t size() const { return file_->size(); }

  // Stretch i of the file goes to out[to[i]:].
  Ticket read(Ids begins, Ids lengths, Ids to, Bytes out, std::int64_t gap) const {
    return start(begins.size(), std::move(out), gap, [&](std::size_t i, char* data) {
      const std::int64_t begin = begins.data()[i];
      return spgnn::Stretch{begin, begin + lengths.data()[i], data + to.data()[i]};
    });
  }

  // Row ids[i] of the table that begins at `offset` goes to row places[i] of `out`.
  Ticket read_rows(Ids ids, Ids places, Bytes out, std::int64_t offset, std::int64_t row_bytes,
                   std::int64_t gap) const {
    return start(ids.size(), std::move(out), gap, [&](std::size_t i, char* data) {
      const std::int64_t begin = offset + ids.data()[i] * row_bytes;
      return spgnn::Stretch{begin, begin + row_bytes, data + places.data()[i] * row_bytes};
    });
  }

 private:
  template <class StretchOf>
  Ticket start(std::size_t size, Bytes out, std::int64_t gap, const StretchOf& stretch_of) const {
    std::shared_ptr<spgnn::StretchJob> job;
    char* data = reinterpret_cast<char*>(out.data());
    {
      nb::gil_scoped_release released;
      std::vector<spgnn::Stretch> stretches(size);
      for (std::size_t i = 0; i < size; ++i) stretches[i] = stretch_of(i, data);
      job = std::make_shared<spgnn::StretchJob>(file_, std::move(stretches), gap);
      if (job->reads() > 0) spgnn::ReadingPool::of_process().submit(job, depth_);
    }
    return Ticket(std::move(job), std::move(out));
  }

  std::shared_ptr<const spgnn::DataFile> file_;
  int depth_;
};

}  // namespace

NB_MODULE(_store, m) {
  m.doc() = "Reading rows of files and planning caches, on arguments that store/*.py has checked.";
  nb::class_<Ticket>(m, "Ticket", "Reads under way.")
      .def("wait", &Ticket::wait, "What went wrong, or an empty text, once all is read.")
      .def_prop_ro("bytes", &Ticket::bytes, "Bytes that the disk is asked for.")
      .def_prop_ro("reads", &Ticket::reads, "Reads that the disk is asked for.");
  nb::class_<Reader>(m, "Reader", "A file, read by many threads at once.")
      .def(nb::init<const std::string&, bool, int>(), "path"_a, "direct"_a, "depth"_a)
      .def_prop_ro("alignment", &Reader::alignment, "1 where the page cache is used.")
      .def_prop_ro("size", &Reader::size, "Bytes of the file.")
      .def("read", &Reader::read, "begins"_a, "lengths"_a, "to"_a, "out"_a, "gap"_a)
      .def("read_rows", &Reader::read_rows, "ids"_a, "places"_a, "out"_a, "offset"_a, "row_bytes"_a,
           "gap"_a);
}
