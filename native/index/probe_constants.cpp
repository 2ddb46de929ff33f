// The numbers that were chosen for probing, by name.
#include "index/probe_constants.h"

#include "index/probe.h"

namespace softindex {

std::map<std::string, double> probing_constants() {
  using namespace probing;
  return {{"tail_samples", (double)tail_samples},
          {"shortest_stretch", (double)shortest_stretch},
          {"most_precise", most_precise},
          {"nearest_clusters", (double)nearest_clusters},
          {"large_share", large_share},
          {"first_probes", (double)first_probes},
          {"surprising", surprising},
          {"budget_numbers", (double)budget_numbers},
          {"budget_part", (double)budget_part},
          {"mean_deviation", mean_deviation},
          {"largest_variance", largest_variance},
          {"largest_misfit", largest_misfit},
          {"nearly", nearly},
          {"copy_lengths", (double)copy_lengths},
          {"length_step", length_step},
          {"copied", copied},
          {"relevant", relevant},
          {"allowed_chance", allowed_chance},
          {"searched_part", searched_part},
          {"nil", nil},
          {"expected_part", expected_part},
          {"tame", tame},
          {"no_hope", no_hope},
          {"set_aside", (double)set_aside}};
}

}  // namespace softindex
