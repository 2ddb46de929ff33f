// Scratch memory that is used again for call after call.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork_lock.h"

namespace softindex {

// What a workspace gives back when it is no longer in use; types that may have grown large have one of their own.
template <class Workspace>
void shrink(Workspace&) {}

// Workspaces that are not in use. Taking one is a lock and a pop. The lock is that of the process: a child that is
// forked while another thread holds any other lock could never take it.
template <class Workspace>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  class Lease {
   public:
    // source: what a new one is made from.
    template <class Source>
    Lease(Pool& pool, const Source& source) : pool_(pool) {
      {
        const std::lock_guard<std::mutex> hold(fork_lock());
        if (!pool_.free_.empty()) {
          workspace_ = std::move(pool_.free_.back());
          pool_.free_.pop_back();
        }
      }
      if (!workspace_) workspace_ = std::make_unique<Workspace>(source);
    }
    ~Lease() {
      shrink(*workspace_);
      const std::lock_guard<std::mutex> hold(fork_lock());
      try {
        pool_.free_.push_back(std::move(workspace_));
      } catch (const std::bad_alloc&) {
        // Then the next call makes a new one.
      }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    Pool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace softindex
