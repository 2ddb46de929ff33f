// Distributions over few items, listed one by one: a nucleus, or the best k.
#pragma once

#include "index/remainder.h"

namespace softindex {

// Items with their log-probabilities, the most probable first.
struct Listed {
  std::vector<int64_t> positions;
  std::vector<double> log_prob;

  int64_t size() const { return (int64_t)positions.size(); }
};

// The most probable items of the remainder, in order, until they reach top_p together; renormalised.
Listed nucleus(const Query& query, Remainder& rest, double top_p);

// The softmax of the k best items that are not excluded.
struct BestListed {
  Listed items;
  double log_sum;  // log of its Z, relative to pivot / temperature
  int64_t scored;
};
BestListed best_items(Query& query, const Positions& excluded, int64_t k);

// Keeps the first items that reach top_p together; renormalised.
void cut(Listed& listed, double top_p);

// n draws: positions and log_prob (n), each that of its step.
void draw_listed(const Query& query, const Listed& listed, int64_t n, int64_t* positions, double* log_prob);

// log_prob (m) of the items at positions (m); -infinity for those that are not listed.
void listed_log_prob(const Listed& listed, const int64_t* positions, int64_t m, double* log_prob);

// The same of the steps of a slate, each drawn from what the steps before it left: what draw_listed reports.
void listed_steps_log_prob(const Kernels& kernels, const Listed& listed, const int64_t* positions, int64_t m,
                           double* log_prob);

}  // namespace softindex
