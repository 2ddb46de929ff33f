// Chooses the set of kernels for the CPU it runs on.
#include <cstring>

#include "kernels/kernels.h"

namespace softindex {

#define SOFTINDEX_ADDRESS(result, name, parameters) &name,
namespace baseline {
static const Kernels table = {"baseline", SOFTINDEX_KERNELS(SOFTINDEX_ADDRESS)};
}
#ifdef SOFTINDEX_X86
namespace avx2 {
static const Kernels table = {"avx2", SOFTINDEX_KERNELS(SOFTINDEX_ADDRESS)};
}
namespace avx512 {
static const Kernels table = {"avx512", SOFTINDEX_KERNELS(SOFTINDEX_ADDRESS)};
}
namespace avx512vnni {
static const Kernels table = {"avx512vnni", SOFTINDEX_KERNELS(SOFTINDEX_ADDRESS)};
}
#endif
#undef SOFTINDEX_ADDRESS

namespace {

struct Candidate {
  const Kernels& kernels;
  bool (*runs)();
};

#ifdef SOFTINDEX_X86
bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}
#endif

// Best first.
const Candidate candidates[] = {
#ifdef SOFTINDEX_X86
    {avx512vnni::table, [] { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }},
    {avx512::table, runs_avx512},
    {avx2::table,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"); }},
#endif
    {baseline::table, [] { return true; }},
};

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (const Candidate& candidate : candidates) {
    if (*name != '\0' && std::strcmp(name, candidate.kernels.name) != 0) continue;
    if (candidate.runs()) return &candidate.kernels;
  }
  return nullptr;
}

}  // namespace softindex
