// The interrupt that each thread looks at.
#include "base/interrupt.h"

namespace softindex {
namespace {

thread_local InterruptScope::Watched watched;

}  // namespace

InterruptScope::InterruptScope(Interrupt* interrupt, bool calling) : before_(watched) {
  watched = {interrupt, calling};
}
InterruptScope::~InterruptScope() { watched = before_; }

Interrupt* InterruptScope::current() { return watched.interrupt; }

void check_interrupt() {
  if (watched.interrupt != nullptr && watched.interrupt->stops(watched.calling)) throw Interrupted();
}

}  // namespace softindex
