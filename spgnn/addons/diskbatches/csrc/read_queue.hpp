// A file, stretches of it that are read in any order, and a queue of reads for threads.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "std.hpp"

namespace spgnn {

// Files that are read past the page cache where the file system allows it, and one read of them.

constexpr i64 kBlock = 4096;           // buffers lie at multiples of it
constexpr i64 kLongestRead = 1 << 18;  // bytes; more gains nothing, and idles the others

struct AlignedBuffer {
  AlignedBuffer() : data(static_cast<char*>(std::aligned_alloc(kBlock, kLongestRead))) {
    if (!data) throw std::bad_alloc();
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data); }
  char* data;
};

class DataFile {
 public:
  DataFile(const std::string& path, bool direct) {
    if (direct) {
      handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      if (handle_ >= 0 && !find_alignment()) close(std::exchange(handle_, -1));
    }
    if (handle_ < 0) {
      handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (handle_ < 0) throw std::runtime_error(std::strerror(errno));
      // Rows are read here and there: what lies behind one is not what is wanted next.
      posix_fadvise(handle_, 0, 0, POSIX_FADV_RANDOM);
    }
  }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile() {
    if (handle_ >= 0) close(handle_);
  }

  int handle() const { return handle_; }

  // Reads begin and end at multiples of it; 1 where the page cache is used.
  i64 alignment() const { return alignment_; }

  i64 size() const {
    struct stat found;
    if (fstat(handle_, &found) != 0) throw std::runtime_error(std::strerror(errno));
    return found.st_size;
  }

 private:
  bool find_alignment() {
    AlignedBuffer buffer;
    for (const i64 tried : {i64{512}, kBlock}) {
      if (pread(handle_, buffer.data, tried, 0) >= 0 &&
          pread(handle_, buffer.data, tried, tried) >= 0) {
        alignment_ = tried;
        return true;
      }
    }
    return false;
  }

  int handle_ = -1;
  i64 alignment_ = 1;
};

// Bytes [begin, end) of a file, both aligned, of which `needed` must be there. The system may give
// fewer, or want to be asked again: `take` is called with each answer, until the read is done.
class FileRead {
 public:
  FileRead() = default;  // done
  FileRead(const DataFile& file, i64 begin, i64 end, i64 needed)
      : file_(&file), begin_(begin), end_(end), needed_(needed) {}

  bool done() const { return got_ >= needed_; }

  // What to ask for next: so many bytes from `offset` on, `got` bytes into the buffer.
  int handle() const { return file_->handle(); }
  i64 offset() const { return begin_ + got_; }
  i64 bytes() const { return end_ - begin_ - got_; }
  i64 got() const { return got_; }

  // An answer: bytes, or the number of an error below zero.
  void take(i64 answer) {
    if (answer == -EINTR || answer == -EAGAIN) return;
    if (answer < 0) {
      throw std::runtime_error("cannot be read at byte " + std::to_string(offset()) + ": " +
                               std::strerror(static_cast<int>(-answer)));
    }
    got_ += answer;
    // Direct reads go on at aligned places only; they stop elsewhere at the file's end alone.
    if (answer == 0 || (!done() && got_ % file_->alignment() != 0)) {
      throw std::runtime_error("ends at byte " + std::to_string(file_->size()) + ", before byte " +
                               std::to_string(begin_ + needed_) +
                               " that is to be read; it was cut off");
    }
  }

 private:
  const DataFile* file_ = nullptr;
  i64 begin_ = 0, end_ = 0, needed_ = 0, got_ = 0;
};

// Every read of [0, reads) is taken once, by any thread, and told when it is over. The first that
// fails is what the job says; those that have not begun then never do.
class ReadingJob {
 public:
  static constexpr i64 kNone = -1;

  virtual ~ReadingJob() = default;

  virtual FileRead read(i64 number) const = 0;
  // The bytes of a read are there.
  virtual void use(i64 number, const char* buffer) = 0;

  // The number of a read that nobody has taken, or kNone.
  i64 take() {
    const i64 number = next_.fetch_add(1);
    return number < reads_ ? number : kNone;
  }
  bool waiting() const { return next_ < reads_; }

  // A read is over; `wrong` is empty if nothing is.
  void finish(const std::string& wrong) {
    if (wrong.empty() && left_.fetch_sub(1) != 1) return;
    std::scoped_lock locked(lock_);
    if (!wrong.empty()) {
      given_up_ = true;
      if (error_.empty()) error_ = wrong;
      left_.fetch_sub(1);
    }
    if (left_ <= 0) changed_.notify_all();
  }

  bool given_up() const { return given_up_; }
  void give_up() { given_up_ = true; }

  // Whether all is done, after at most so many milliseconds.
  bool done_within(int milliseconds) {
    std::unique_lock locked(lock_);
    return changed_.wait_for(locked, std::chrono::milliseconds(milliseconds),
                             [&] { return left_ <= 0; });
  }
  std::string error() {
    std::scoped_lock locked(lock_);
    return error_;
  }

 protected:
  void expect(i64 reads) { reads_ = left_ = reads; }

 private:
  i64 reads_ = 0;
  std::atomic<i64> next_{0}, left_{0};
  std::atomic<bool> given_up_{false};
  std::mutex lock_;
  std::condition_variable changed_;
  std::string error_;
};

// A read of a job.
struct OneRead {
  std::shared_ptr<ReadingJob> job;
  i64 number = ReadingJob::kNone;
};

// Carries reads out, for the one thread that made it.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;

  // Reads that may be under way at once, and those that are.
  virtual int depth() const = 0;
  virtual int under_way() const = 0;

  // Begins a read; there must be room for it. Its job is told when it is over.
  virtual void begin(OneRead read) = 0;

  // Returns when reads may be over. Throws if the system will have no more to do with any of them.
  virtual void wait() = 0;

  // Reads that were begun and are not over.
  virtual std::vector<OneRead> unfinished() const = 0;
};

// Where the thread waits for each read.
class BlockingQueue : public ReadQueue {
 public:
  int depth() const override { return 1; }
  int under_way() const override { return 0; }

  void begin(OneRead read) override {
    std::string wrong;
    try {
      FileRead way = read.job->read(read.number);
      while (!way.done()) {
        const ssize_t got =
            pread(way.handle(), buffer_.data + way.got(), way.bytes(), way.offset());
        way.take(got < 0 ? -errno : got);
      }
      read.job->use(read.number, buffer_.data);
    } catch (const std::exception& error) { wrong = error.what(); }
    read.job->finish(wrong);
  }

  void wait() override {}
  std::vector<OneRead> unfinished() const override { return {}; }

 private:
  AlignedBuffer buffer_;
};

// Bytes [begin, end) of the file, which go to `to`.
struct Stretch {
  i64 begin, end;
  char* to;
};

class StretchJob : public ReadingJob {
 public:
  // `gap`: so many bytes that nobody asked for are read rather than skipped.
  StretchJob(std::shared_ptr<const DataFile> file, std::vector<Stretch> stretches, i64 gap)
      : file_(std::move(file)), stretches_(std::move(stretches)) {
    const auto before = [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; };
    if (!std::is_sorted(stretches_.begin(), stretches_.end(), before)) {
      std::sort(stretches_.begin(), stretches_.end(), before);
    }
    for (std::size_t i = 0; i < stretches_.size(); ++i) add(i, gap);
    for (const Piece& piece : pieces_) bytes_ += piece.end - piece.begin;
    expect(reads());
  }

  // The same reads, none of which has begun.
  StretchJob(const StretchJob& other)
      : ReadingJob(), file_(other.file_), stretches_(other.stretches_), pieces_(other.pieces_),
        bytes_(other.bytes_) {
    expect(reads());
  }

  // What the disk is asked for.
  i64 bytes() const { return bytes_; }
  i64 reads() const { return std::ssize(pieces_); }

 private:
  struct Piece {
    i64 begin, end;
    std::size_t first, last;
  };

  // To the last piece, if it lies close enough; in pieces of its own if it is longer than a read.
  void add(std::size_t i, i64 gap) {
    const i64 unit = file_->alignment();
    i64 begin = stretches_[i].begin / unit * unit;
    const i64 end = (stretches_[i].end + unit - 1) / unit * unit;
    if (!pieces_.empty()) {
      Piece& before = pieces_.back();
      const i64 last = std::max(end, before.end);
      if (before.begin <= begin && begin <= before.end + gap &&
          last - before.begin <= kLongestRead) {
        before.end = last;
        before.last = i + 1;
        return;
      }
    }
    do {
      const i64 until = std::min(begin + kLongestRead, end);
      pieces_.push_back({begin, until, i, i + 1});
      begin = until;
    } while (begin < end);
  }

  FileRead read(i64 number) const override {
    const Piece& piece = pieces_[number];
    i64 last = piece.begin;
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      last = std::max(last, std::min(stretches_[i].end, piece.end));
    }
    return {*file_, piece.begin, piece.end, last - piece.begin};
  }

  void use(i64 number, const char* buffer) override {
    const Piece& piece = pieces_[number];
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      const Stretch& stretch = stretches_[i];
      const i64 first = std::max(piece.begin, stretch.begin);
      const i64 last = std::min(piece.end, stretch.end);
      std::memcpy(stretch.to + (first - stretch.begin), buffer + (first - piece.begin),
                  last - first);
    }
  }

  std::shared_ptr<const DataFile> file_;
  std::vector<Stretch> stretches_;
  std::vector<Piece> pieces_;
  i64 bytes_ = 0;
};

}  // namespace spgnn
