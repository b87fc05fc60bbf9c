// Answers of the system in every form, and many jobs at once on a pool that grows, by threads and
// through io_uring, so that a sanitizer sees every stray access and every race.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "read_queue.hpp"
#include "reading_pool.hpp"

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<char>& bytes) {
    const int handle = mkstemp(path.data());
    expect(handle >= 0 && write(handle, bytes.data(), bytes.size()) == std::ssize(bytes),
           "a file is written");
    close(handle);
  }
  ~TemporaryFile() { unlink(path.c_str()); }
  std::string path = "reading-XXXXXX";
};

std::string said(spgnn::FileRead& read, std::int64_t answer) {
  try {
    read.take(answer);
  } catch (const std::exception& error) { return error.what(); }
  return "";
}

void test_answers(const std::string& path) {
  const spgnn::DataFile file(path, false);
  spgnn::FileRead read(file, 100, 300, 150);
  expect(said(read, -EINTR).empty() && said(read, -EAGAIN).empty(), "asked again");
  expect(read.offset() == 100 && read.bytes() == 200 && !read.done(), "nothing has come");
  expect(said(read, 120).empty() && !read.done(), "a part has come");
  expect(read.offset() == 220 && read.bytes() == 80 && read.got() == 120, "the rest is asked for");
  expect(said(read, -EIO).starts_with("cannot be read at byte 220: "), "where it failed");
  expect(said(read, 30).empty() && read.done(), "what is needed has come");
  spgnn::FileRead cut(file, 0, 512, 512);
  expect(said(cut, 0).ends_with("before byte 512 that is to be read; it was cut off"), "the end");
}

void test_jobs(const std::string& path, const std::vector<char>& bytes, bool ring) {
  const auto file = std::make_shared<const spgnn::DataFile>(path, true);
  auto& pool = spgnn::ReadingPool::of_process(ring);
  const auto ask = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<spgnn::Stretch> stretches;
    std::vector<char> out(200 * 700);
    for (int i = 0; i < 200; ++i) {
      const std::int64_t begin = random() % (bytes.size() - 700);
      stretches.push_back({begin, begin + 700, out.data() + i * 700});
    }
    const auto expected = stretches;
    const auto job = std::make_shared<spgnn::StretchJob>(file, std::move(stretches), seed % 3000);
    pool.submit(job, 1 + static_cast<int>(seed % 150));
    if (seed % 7 == 0) job->give_up();
    while (!job->done_within(100)) {}
    expect(job->error().empty(), "no error");
    if (seed % 7 == 0) return;
    for (const spgnn::Stretch& stretch : expected) {
      expect(std::equal(stretch.to, stretch.to + 700, bytes.data() + stretch.begin), "the bytes");
    }
  };
  std::vector<std::jthread> askers;
  for (unsigned asker = 0; asker < 4; ++asker) {
    askers.emplace_back([&, asker] {
      for (unsigned round = 0; round < 20; ++round) ask(20 * asker + round);
    });
  }
}

}  // namespace

int main() {
  std::mt19937 random(0);
  std::vector<char> bytes(1 << 20);
  for (char& byte : bytes) byte = static_cast<char>(random());
  const TemporaryFile file(bytes);
  test_answers(file.path);
  test_jobs(file.path, bytes, false);
  const std::string refusal = spgnn::ring_refusal();
  if (refusal.empty()) test_jobs(file.path, bytes, true);
  if (!refusal.empty()) std::printf("io_uring is left out: %s\n", refusal.c_str());
  if (failures == 0) std::puts("all reading tests passed");
  return failures == 0 ? 0 : 1;
}
