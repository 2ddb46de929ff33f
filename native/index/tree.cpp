// Walks down a binary tree over the clusters: at every node a softmax of the two children, evaluated when first met.
#include "index/tree.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/interrupt.h"
#include "index/draw.h"
#include "index/masses.h"

namespace softindex {
namespace {

// log of 1 / (1 + exp(-x)), to full precision on both sides.
double log_sigmoid(double x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); }

}  // namespace

TreeWalk::TreeWalk(Query& query)
    : query_(query), tree_(query.view.tree), log_sizes_(tree_.sizes.of(query.request.law)) {
  ++query.workspace.tree_stamp;
  if (!query.request.law.dispersion) return;
  if (query.view.dispersion.kind == Forms::full)
    stage_full_query(query);
  else
    unit_ = stage_rank_query(query);
}

// By how much the estimate of q' S q is larger on the right.
double TreeWalk::difference_of_forms(int64_t node) {
  const Dispersion& forms = tree_.dispersion;
  const int64_t d = query_.view.d, first = 2 * node, end = 2 * tree_.inner;
  Workspace& workspace = query_.workspace;
  if (forms.kind == Forms::full) {
    const int64_t width = query_.view.triangle();
    float dots[2];
    query_.kernels.scan_int16({forms.full + first * width, 2, width, forms.full + end * width},
                              &workspace.form_queries[query_.place * padded(width)], 1, dots, 2);
    const double left = std::max((double)dots[0] * forms.scales[first], 0.0);
    return query_.squared_norm() * (std::max((double)dots[1] * forms.scales[first + 1], 0.0) - left);
  }
  const int64_t rank = forms.rank, width = rank * d;
  double sums[2];
  query_.kernels.scan_int8({forms.low + first * width, 2 * rank, d, forms.low + end * width},
                           &workspace.integer_queries[query_.place * padded(d)], 1, workspace.integer_dots.data(),
                           2 * rank);
  query_.kernels.square_sums(workspace.integer_dots.data(), forms.scales + first * rank, 2, rank, sums);
  return (sums[1] - sums[0]) * unit_ * unit_ +
         ((double)forms.spread[first + 1] - forms.spread[first]) * query_.squared_norm();
}

// The log mass of the right child minus that of the left. Only this difference is ever formed: at low temperatures the
// masses themselves are so large that the digits in which they differ would be lost.
double TreeWalk::lead(int64_t node) {
  Workspace& workspace = query_.workspace;
  if (workspace.tree_stamps[node] == workspace.tree_stamp) return workspace.tree_leads[node];
  const int64_t d = query_.view.d;
  const double temperature = query_.temperature;
  float dots[2];
  query_.kernels.scan({tree_.means + 2 * node * d, 2, d, tree_.means + 2 * tree_.inner * d}, query_.vector, dots);
  double lead = ((double)dots[1] - dots[0]) * (1.0 / temperature) + (log_sizes_[2 * node + 1] - log_sizes_[2 * node]);
  if (query_.request.law.dispersion) lead += 0.5 / (temperature * temperature) * difference_of_forms(node);
  // Numbers that were finite when the tree was built give a difference.
  if (std::isnan(lead)) throw std::runtime_error("a node of the tree holds no weight");
  workspace.tree_stamps[node] = workspace.tree_stamp;
  return workspace.tree_leads[node] = lead;
}

TreeWalk::Leaf TreeWalk::descend(double uniform) {
  double log_share = 0.0;
  int64_t next = tree_.inner > 0 ? 0 : -1;
  while (next >= 0) {
    const double ahead = lead(next), left = 1.0 / (1.0 + std::exp(ahead));
    const bool right = !(uniform < left);
    // The rest of the uniform is uniform within the side taken, and serves for the next choice. A side of share
    // zero is never taken, so nothing is divided by zero; rounding must not make a certain side miss.
    uniform = std::min(right ? (uniform - left) / (1.0 - left) : uniform / left, 1.0 - 0x1.0p-53);
    log_share += log_sigmoid(right ? ahead : -ahead);
    next = tree_.children[2 * next + right];
  }
  return {-1 - next, log_share};
}

double TreeWalk::log_share(int64_t cluster) {
  double log_share = 0.0;
  int64_t next = tree_.inner > 0 ? 0 : -1;
  while (next >= 0) {
    const bool right = cluster >= tree_.splits[next];
    const double ahead = lead(next);
    log_share += log_sigmoid(right ? ahead : -ahead);
    next = tree_.children[2 * next + right];
  }
  return log_share;
}

void TreeWalk::log_shares(double* log_shares) {
  double* paths = query_.workspace.tree_paths.data();
  if (tree_.inner == 0) {
    log_shares[0] = 0.0;
    return;
  }
  paths[0] = 0.0;
  // Parents come before their children.
  for (int64_t node = 0; node < tree_.inner; ++node) {
    const double ahead = lead(node);
    for (int64_t right = 0; right < 2; ++right) {
      const int64_t child = tree_.children[2 * node + right];
      const double path = paths[node] + log_sigmoid(right ? ahead : -ahead);
      (child >= 0 ? paths[child] : log_shares[-1 - child]) = path;
    }
  }
}

void leaf_shares(const Group& group) {
  for (Query& query : group) {
    TreeWalk(query).log_shares(query.log_masses);
    query.pivot = 0.0;
  }
}

void choose_leaves(Query& query, int64_t n, int64_t first_slot, PendingDraw* pending) {
  TreeWalk walk(query);
  for (int64_t j = 0; j < n; ++j) {
    check_interrupt_every(1 << 14, j);
    const Uniforms u = query.stream((uint64_t)j);
    const TreeWalk::Leaf leaf = walk.descend(u.first);
    pending[j] = {leaf.cluster, first_slot + j, u.second, leaf.log_share};
  }
  order_by_cluster(pending, pending + n);
}

void leaf_log_probabilities(Query& query, const int64_t* positions, int64_t m, double* log_prob) {
  TreeWalk walk(query);
  locate_items(query, positions, m);
  for (PendingDraw& next : query.workspace.pending) next.log_share = walk.log_share(next.cluster);
  located_log_prob(query, positions, log_prob, [&](int64_t cluster) { return scan_cluster(query, cluster); });
}

}  // namespace softindex
