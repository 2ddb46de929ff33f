// Takes the lock before a fork and releases it on both sides.
#include "base/fork_lock.h"

#include <pthread.h>

namespace softindex {

std::mutex& fork_lock() {
  static std::mutex lock;
  // Once, before anybody can hold the lock. If there is no memory for it, forking is as unsafe as without it.
  static const int registered = pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); });
  (void)registered;
  return lock;
}

}  // namespace softindex
