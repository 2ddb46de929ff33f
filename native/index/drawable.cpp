// What probing compares everything with: the mass of the items that can be drawn, of the clusters scanned so far.
#include "index/drawable.h"

#include <algorithm>
#include <functional>

#include "index/exclusion.h"
#include "index/masses.h"
#include "index/probe_constants.h"
#include "index/scan.h"

namespace softindex {

Drawable::Drawable(const Query& query)
    : query_(query), excluded_(query.excluded_while_probing()),
      most_aside_(query.request.draws_slates() ? probing::set_aside : 0) {}

bool Drawable::excludes(int64_t position) const { return excluded_within(excluded_, position, position + 1).count > 0; }

bool Drawable::holds_all(int64_t cluster) const {
  const int64_t* offsets = query_.view.offsets;
  return most_aside_ == 0 && excluded_within(excluded_, offsets[cluster], offsets[cluster + 1]).count == 0;
}

void Drawable::add(double log_sum) { log_sum_ = log_add(log_sum_, log_sum); }

void Drawable::add_scanned(int64_t cluster, double log_sum) {
  const View& view = query_.view;
  const int64_t begin = view.offsets[cluster], end = view.offsets[cluster + 1];
  float* dots = query_.workspace.dots.data();
  const Positions excluded = excluded_within(excluded_, begin, end);
  hide(excluded, begin, dots);
  best_score_ = query_.kernels.largest(dots, end - begin);
  const int64_t hidden = excluded.count + set_aside(cluster);
  if (hidden == 0)
    add(log_sum);
  else if (hidden < view.count(cluster))
    add(log_mass(weigh_items(query_, begin, end - begin, dots), query_.temperature, query_.pivot));
}

// Hides the items that are likelier than those set aside so far; what they push out counts. Returns how many it hid.
int64_t Drawable::set_aside(int64_t cluster) {
  if (most_aside_ == 0) return 0;
  const View& view = query_.view;
  const float* bias = view.bias_at(view.offsets[cluster]);
  float* dots = query_.workspace.dots.data();
  const double inverse = query_.inverse_temperature();
  int64_t hidden = 0;
  for (int64_t i = 0; i < view.size(cluster); ++i) {
    const double logit = (dots[i] - query_.pivot) * inverse + (bias == nullptr ? 0.0 : bias[i]);
    const bool full = (int64_t)aside_.size() == most_aside_;
    if (dots[i] == gone || (full && logit <= aside_.front())) continue;
    dots[i] = gone;
    ++hidden;
    if (full) {
      std::pop_heap(aside_.begin(), aside_.end(), std::greater<double>());
      add(aside_.back());
      aside_.pop_back();
    }
    aside_.push_back(logit);
    std::push_heap(aside_.begin(), aside_.end(), std::greater<double>());
  }
  return hidden;
}

}  // namespace softindex
