// Walks down a binary tree over the clusters: at every node a softmax of the two children, evaluated when first met.
#include "index/tree.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/philox.h"
#include "index/draw.h"
#include "index/masses.h"

namespace softindex {
namespace {

// log of 1 / (1 + exp(-x)), to full precision on both sides.
double log_sigmoid(double x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); }

}  // namespace

std::vector<int64_t> tree_splits(const int64_t* children, int64_t k) {
  std::vector<int64_t> splits(k - 1), waiting;  // waiting: nodes whose left side is being visited
  int64_t nodes = 0, clusters = 0, next = k > 1 ? 0 : -1;
  while (clusters < k) {
    if (next >= 0) {
      if (next != nodes || nodes >= k - 1) throw std::invalid_argument("the nodes of the tree are out of order");
      waiting.push_back(nodes++);
      next = children[2 * next];
      continue;
    }
    if (-1 - next != clusters)
      throw std::invalid_argument("the leaves of the tree are not the clusters in their order");
    ++clusters;
    if (waiting.empty()) break;
    const int64_t node = waiting.back();
    waiting.pop_back();
    splits[node] = clusters;
    next = children[2 * node + 1];
  }
  if (clusters != k || nodes != k - 1 || !waiting.empty())
    throw std::invalid_argument("the tree does not cover the clusters");
  return splits;
}

TreeWalk::TreeWalk(const Kernels& kernels, const View& view, const Law& law, int64_t place, Workspace& workspace)
    : kernels_(kernels), view_(view), tree_(*view.tree), law_(law), workspace_(workspace), place_(place),
      query_(&workspace.queries[place * padded(view.d)]) {
  ++workspace.tree_stamp;
  if (!law.dispersion) return;
  squared_norm_ = squared_norm(query_, view.d);
  if (view.forms_kind == Forms::full)
    stage_full_query(kernels, view, squared_norm_, place, workspace);
  else
    unit_ = stage_rank_query(view, place, workspace);
}

// By how much the estimate of q' S q is larger on the right.
double TreeWalk::difference_of_forms(int64_t node) {
  const int64_t first = 2 * node, end = 2 * tree_.inner;
  if (view_.forms_kind == Forms::full) {
    const int64_t width = view_.triangle();
    float dots[2];
    kernels_.scan_int16({tree_.full_forms + first * width, 2, width, tree_.full_forms + end * width},
                        &workspace_.form_queries[place_ * padded(width)], 1, dots, 2);
    const double left = std::max((double)dots[0] * tree_.scales[first], 0.0);
    return squared_norm_ * (std::max((double)dots[1] * tree_.scales[first + 1], 0.0) - left);
  }
  const int64_t rank = view_.rank, width = rank * view_.d;
  double sums[2];
  kernels_.scan_int8({tree_.rank_forms + first * width, 2 * rank, view_.d, tree_.rank_forms + end * width},
                     &workspace_.integer_queries[place_ * padded(view_.d)], 1, workspace_.integer_dots.data(),
                     2 * rank);
  kernels_.square_sums(workspace_.integer_dots.data(), tree_.scales + first * rank, 2, rank, sums);
  return (sums[1] - sums[0]) * unit_ * unit_ + ((double)tree_.spread[first + 1] - tree_.spread[first]) * squared_norm_;
}

// The log mass of the right child minus that of the left. Only this difference is ever formed: at low temperatures the
// masses themselves are so large that their digits would drown what tells them apart.
double TreeWalk::lead(int64_t node) {
  if (workspace_.tree_stamps[node] == workspace_.tree_stamp) return workspace_.tree_leads[node];
  float dots[2];
  kernels_.scan({tree_.means + 2 * node * view_.d, 2, view_.d, tree_.means + 2 * tree_.inner * view_.d}, query_, dots);
  double lead =
      ((double)dots[1] - dots[0]) * (1.0 / law_.temperature) + (law_.offset[2 * node + 1] - law_.offset[2 * node]);
  if (law_.dispersion) lead += 0.5 / (law_.temperature * law_.temperature) * difference_of_forms(node);
  // Numbers that were finite when the tree was built give a difference.
  if (std::isnan(lead)) throw std::runtime_error("a node of the tree holds no weight");
  workspace_.tree_stamps[node] = workspace_.tree_stamp;
  return workspace_.tree_leads[node] = lead;
}

TreeWalk::Leaf TreeWalk::descend(double uniform) {
  double log_share = 0.0;
  int64_t next = tree_.inner > 0 ? 0 : -1;
  while (next >= 0) {
    const double ahead = lead(next), left = 1.0 / (1.0 + std::exp(ahead));
    const bool right = !(uniform < left);
    // What is left of the uniform is uniform within the side taken, and serves for the next choice. A side of share
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
  double* paths = workspace_.tree_paths.data();
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

void leaf_shares(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace) {
  for (int64_t g = 0; g < count; ++g) {
    TreeWalk(kernels, view, law, g, workspace).log_shares(&workspace.log_masses[g * view.k]);
    workspace.pivots[g] = 0.0;
  }
}

int64_t choose_leaves(const View& view, TreeWalk& walk, uint64_t key, uint64_t stream, int64_t n, int64_t first_slot,
                      PendingDraw* pending) {
  for (int64_t j = 0; j < n; ++j) {
    const Uniforms u = uniforms(key, stream, (uint64_t)j);
    const TreeWalk::Leaf leaf = walk.descend(u.first);
    pending[j] = {leaf.cluster, first_slot + j, u.second, leaf.log_share};
  }
  return settle_clusters(view, pending, n);
}

void leaf_log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                            TreeWalk& walk, const int64_t* positions, int64_t m, double* log_prob,
                            Workspace& workspace) {
  locate_items(view, positions, m, workspace);
  for (PendingDraw& next : workspace.pending) next.log_share = walk.log_share(next.cluster);
  located_log_probabilities(kernels, view, law.temperature, query, positions, m, log_prob, workspace);
}

}  // namespace softindex
