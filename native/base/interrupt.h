// Lets the caller of a long computation end it, on all of its threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>

namespace softindex {

// Thrown by check_interrupt: the results of the call are incomplete.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "the call was interrupted"; }
};

// Who may end a computation. One object per call; its threads find it by check_interrupt.
class Interrupt {
 public:
  virtual ~Interrupt() = default;

  // On the thread that made the call: whether to stop, by asking at most every 50 ms. On others: whether it said so.
  bool stops(bool calling) {
    if (!stopped_.load(std::memory_order_relaxed) && calling && is_time() && wants_to_stop()) stopped_ = true;
    return stopped_.load(std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;

  virtual bool wants_to_stop() = 0;
  bool is_time() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    const bool first = next_ == Clock::time_point();
    next_ = now + std::chrono::milliseconds(50);
    return !first;
  }

  std::atomic<bool> stopped_{false};
  Clock::time_point next_;  // of the calling thread only
};

// The interrupt of the computation that this thread works on, until the end of the scope.
class InterruptScope {
 public:
  struct Watched {
    Interrupt* interrupt = nullptr;
    bool calling = false;  // whether this thread made the call
  };

  InterruptScope(Interrupt* interrupt, bool calling);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static Interrupt* current();

 private:
  const Watched before_;
};

// Throws Interrupted if the caller wants to stop. It takes about 30 ns, and belongs between pieces of work of at most
// a tenth of a second.
void check_interrupt();

// For loops of short steps: looks once in `steps` of them, a power of two.
inline void check_interrupt_every(int64_t steps, int64_t step) {
  if ((step & (steps - 1)) == steps - 1) check_interrupt();
}

// std::sort, which an interrupt ends; the order is then undefined.
template <class Element, class Before>
void sort_until_interrupted(Element* begin, Element* end, const Before& before) {
  constexpr int64_t many = 1 << 20;
  if (end - begin < many) return std::sort(begin, end, before);
  int64_t compared = 0;
  std::sort(begin, end, [&](const Element& a, const Element& b) {
    check_interrupt_every(many, compared++);
    return before(a, b);
  });
}

}  // namespace softindex
