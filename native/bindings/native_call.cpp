// How native code meets the interpreter: signals, and the end of the process.
#include "bindings/native_call.h"

#include <unistd.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace softindex {
namespace {

bool on_main_thread() {
  const nanobind::module_ threading = nanobind::module_::import_("threading");
  return threading.attr("get_ident")().equal(threading.attr("main_thread")().attr("ident"));
}

// Takes the GIL. While the interpreter ends, CPython ends every thread that asks for it by unwinding its stack. The
// functions of nanobind do not let that pass, and the process would abort: wait for its end instead.
template <class Take>
auto take_gil(const Take& take) {
#ifdef __GLIBCXX__
  try {
    return take();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  return take();
#endif
}

}  // namespace

bool SignalInterrupt::wants_to_stop() {
  if (elsewhere_) return false;
  const PyGILState_STATE held = take_gil([] { return PyGILState_Ensure(); });
  try {
    elsewhere_ = !on_main_thread();
    if (!elsewhere_ && PyErr_CheckSignals() != 0) nanobind::raise_python_error();
  } catch (nanobind::python_error& raised) {
    raised_.emplace(std::move(raised));
  }
  PyGILState_Release(held);
  return raised_.has_value();
}

WithoutGil::~WithoutGil() {
  take_gil([this] { PyEval_RestoreThread(state_); });
}

}  // namespace softindex
