// Runs tasks on several threads, which live for the call only.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/interrupt.h"

namespace softindex {

// work(next) is called once on each thread; next() hands out task numbers until it returns -1. Between tasks an
// interrupt ends the work on all threads.
template <class Work>
void parallel(int64_t tasks, int64_t threads, const Work& work) {
  std::atomic<int64_t> counter{0};
  const auto next = [&]() -> int64_t {
    const int64_t task = counter.fetch_add(1);
    if (task >= tasks) return -1;
    // A call of few queries has one task: it never looks at the clock.
    if (task > 0) check_interrupt();
    return task;
  };
  Interrupt* const interrupt = InterruptScope::current();
  std::exception_ptr failure;
  std::mutex guard;
  const auto run = [&] {
    try {
      work(next);
    } catch (...) {
      std::lock_guard<std::mutex> hold(guard);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads && i < tasks; ++i)
      others.emplace_back([&] {
        const InterruptScope scope(interrupt, false);
        run();
      });
  } catch (...) {
    // The system gave fewer threads than requested: the ones it gave do the work.
  }
  run();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace softindex
