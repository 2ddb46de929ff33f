// Runs native code without the GIL. A signal handler that raises, as Ctrl-C does, ends it.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "base/interrupt.h"

namespace softindex {

// Asks Python whether a signal arrived. Handlers run on the main thread, so no other thread asks twice.
class SignalInterrupt : public Interrupt {
 public:
  // Raises what a signal handler raised, if any did. Needs the GIL.
  void rethrow() {
    if (raised_) throw nanobind::python_error(std::move(*raised_));
  }

 private:
  bool wants_to_stop() override;

  bool elsewhere_ = false;  // whether this is known not to be the main thread
  std::optional<nanobind::python_error> raised_;
};

// Releases the GIL until the end of the scope.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Every call of native code that may take long goes through here.
template <class Work>
void call_native(const Work& work) {
  SignalInterrupt interrupt;
  try {
    const WithoutGil released;
    const InterruptScope scope(&interrupt, true);
    work();
  } catch (const Interrupted&) {
    interrupt.rethrow();
    throw;
  }
  interrupt.rethrow();
}

}  // namespace softindex
