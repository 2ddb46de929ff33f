// A lock that is free in a forked child, whichever thread of the parent used it.
#pragma once

#include <mutex>

namespace softindex {

// One for the process. fork() waits until it is free, so hold it for a few instructions only.
std::mutex& fork_lock();

}  // namespace softindex
