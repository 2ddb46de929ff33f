// One query in context: everything that the steps of a draw know and share about it.
#pragma once

#include <algorithm>
#include <vector>

#include "base/streams.h"
#include "index/request.h"
#include "index/view.h"
#include "index/workspace.h"

namespace softindex {

// What the steps of a call need for one query. Only the temperature, and the scratch memory of each thread, differ
// between the queries of a call.
struct Context {
  const Kernels& kernels;
  const View& view;
  const Request& request;
  Workspace& workspace;
  double temperature;

  double inverse_temperature() const { return 1.0 / temperature; }
};

struct Query : Context {
  int64_t number;       // among the queries of the call
  int64_t place;        // in its group: the row of the workspace's arrays that belongs to it
  const float* vector;  // padded with zeros
  uint64_t content;     // hash of its numbers
  Stream stream;        // of random numbers

  float* mean_dots;    // (k) dot products with the means
  double* log_masses;  // (k) relative to pivot / temperature
  double* variances;   // (k) of the logits in each cluster, by the dispersion; null if the law has none
  // The largest score of a mean. The digits in which clusters differ would be lost in a large common score.
  double pivot = 0;
  double rounding_loss = 0;       // at least |q - rounded q|, where the query was rounded to integers
  double error = 0;               // estimated total variation to the softmax; NaN where nothing was scanned to judge it
  double log_error = 0;           // expected |log Z - estimate|; NaN likewise
  int64_t scored = 0;             // items
  bool without_excluded = false;  // the log masses are those of a scan that left the excluded items out

  double squared_norm() {
    if (squared_norm_ < 0) squared_norm_ = softindex::squared_norm(vector, view.d);
    return squared_norm_;
  }
  // Adaptive probing looks for the items that can be drawn; a fixed number of probes is that of the law of all items.
  Positions excluded_while_probing() const { return request.probes < 0 ? request.excluded_of(number) : Positions{}; }
  // Whether it has a list of the items that it may draw.
  bool lists() const { return request.lists(number); }
  double log_partition(const Total& total) const { return pivot / temperature + (total.peak + total.log_total); }

  double squared_norm_ = -1;  // not computed yet; read it by squared_norm()
};

// One to four queries that share each read of memory.
struct Group {
  Query* queries;
  int64_t count;

  Query& operator[](int64_t g) const { return queries[g]; }
  Query* begin() const { return queries; }
  Query* end() const { return queries + count; }
  bool all_list() const {
    return std::all_of(begin(), end(), [](const Query& query) { return query.lists(); });
  }
  // All queries of a group have the same context, but for their temperatures.
  const Context& context() const { return queries[0]; }
};

inline std::vector<Group> groups_in(std::vector<Query>& queries) {
  const int64_t count = (int64_t)queries.size();
  std::vector<Group> groups;
  for (int64_t begin = 0; begin < count; begin += group_size)
    groups.push_back({queries.data() + begin, std::min<int64_t>(group_size, count - begin)});
  return groups;
}

}  // namespace softindex
