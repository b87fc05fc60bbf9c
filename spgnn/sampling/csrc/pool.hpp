// Things that are kept for the next call, one for each call at the same time.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spgnn {

template <class T>
class Pool {
 public:
  // Borrowed until it goes out of scope.
  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<T> thing) : pool_(pool), thing_(std::move(thing)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      std::scoped_lock locked(pool_.lock_);
      pool_.free_.push_back(std::move(thing_));
    }
    T& operator*() const { return *thing_; }

   private:
    Pool& pool_;
    std::unique_ptr<T> thing_;
  };

  template <class Make>
  Lease take(const Make& make) {
    std::unique_ptr<T> thing;
    {
      std::scoped_lock locked(lock_);
      if (!free_.empty()) {
        thing = std::move(free_.back());
        free_.pop_back();
      }
    }
    return Lease(*this, thing ? std::move(thing) : make());
  }

 private:
  std::mutex lock_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace spgnn
