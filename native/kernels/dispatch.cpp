// Chooses the set of kernels for the CPU at hand.
#include <cstring>

#include "kernels/kernels.h"

namespace softindex {
namespace {

#define SOFTINDEX_TABLE(target)   \
  {#target,                       \
   target::scan,                  \
   target::scan_group,            \
   target::scan_int8,             \
   target::scan_int16,            \
   target::largest,               \
   target::weigh,                 \
   target::weigh_masses,          \
   target::pick,                  \
   target::outer_product,         \
   target::square_sums,           \
   target::decode,                \
   target::screen,                \
   target::screen_nibbles,        \
   target::double_dot,            \
   target::pull,                  \
   target::mixture_tile,          \
   target::mixture_tile_double,   \
   target::mixture_gather,        \
   target::mixture_gather_double, \
   target::mixture_logits,        \
   target::mixture_largest,       \
   target::mixture_scores,        \
   target::mixture_scores_double, \
   target::mixture_reaching}

struct Candidate {
  Kernels kernels;
  bool (*runs)();
};

const Candidate candidates[] = {
#ifdef SOFTINDEX_X86
    {SOFTINDEX_TABLE(avx512),
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512cd");
     }},
    {SOFTINDEX_TABLE(avx2),
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"); }},
#endif
    {SOFTINDEX_TABLE(baseline), [] { return true; }},
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
