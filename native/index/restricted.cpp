// Draws from a part of a law: without some items, without those already drawn, or from its most probable ones only.
#include "index/restricted.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "index/allowed.h"
#include "index/draw.h"
#include "index/listed.h"
#include "index/masses.h"
#include "index/probe.h"
#include "index/remainder.h"
#include "index/scan.h"

namespace softindex {
namespace {

// Independent draws: those that chose the same cluster share its weighing.
void draw_with_replacement(const Query& query, Remainder& rest, int64_t n, const Slots& slots) {
  std::vector<PendingDraw>& pending = query.workspace.pending;
  resize_pending(pending, n);
  const Total total = weigh_clusters(query, rest.log_masses());
  choose_clusters(query, rest.log_masses(), total, n, 0, pending.data());
  for (int64_t from = 0, to = 0; from < n; from = to) {
    const int64_t cluster = pending[from].cluster;
    while (to < n && pending[to].cluster == cluster) ++to;
    const ScannedCluster scanned = weigh_cluster(query, cluster, rest.dots(cluster));
    pick_items(query, scanned, &pending[from], pending.data() + to, slots);
  }
}

// Each draw from what the earlier ones left.
void draw_in_sequence(const Query& query, Remainder& rest, int64_t n, const Slots& slots) {
  const Workspace& workspace = query.workspace;
  for (int64_t j = 0; j < n; ++j) {
    check_interrupt_every(1 << 6, j);
    const Uniforms u = query.stream((uint64_t)j);
    const Total total = weigh_clusters(query, rest.log_masses());
    const int64_t cluster =
        query.kernels.pick(workspace.cluster_weights.data(), workspace.cluster_prefix.data(), query.view.k, u.first);
    const PendingDraw draw = {cluster, j, u.second, log_share(rest.log_masses()[cluster], total)};
    const ScannedCluster scanned = weigh_cluster(query, cluster, rest.dots(cluster));
    pick_items(query, scanned, &draw, &draw + 1, slots);
    if (j + 1 < n) rest.take(slots.positions[j]);
  }
}

// The log-probability of each of these steps, computed as draw_in_sequence does. An item that is gone, or was never
// there, cannot be drawn and takes nothing away.
void steps_log_prob(const Query& query, Remainder& rest, const int64_t* positions, int64_t m, double* log_prob) {
  for (int64_t j = 0; j < m; ++j) {
    check_interrupt_every(1 << 6, j);
    log_prob[j] = minus_infinity;
    if (positions[j] < 0 || rest.left() == 0) continue;
    const int64_t cluster = query.view.cluster_of(positions[j]);
    if (rest.left(cluster) == 0) continue;
    const int64_t i = positions[j] - query.view.offsets[cluster];
    const float* dots = rest.dots(cluster);
    if (dots[i] == gone) continue;
    const Total total = weigh_clusters(query, rest.log_masses());
    const ScannedCluster scanned = weigh_cluster(query, cluster, dots);
    log_prob[j] = log_share(rest.log_masses()[cluster], total) + log_within(query, scanned, i);
    if (j + 1 < m) rest.take(positions[j]);
  }
}

double log_of(const Total& total) { return total.peak + total.log_total; }

// The error of a law of which only a share is looked at. A law that states none (NaN) still does not, and an exact one
// stays exact.
double magnify(double error, double share) {
  if (error == 0 || std::isnan(error)) return error;
  return share > 0 ? std::min(1.0, error / share) : 1.0;
}

// The share of the law that its error is to be divided by; adaptive probing states that of the items left.
double share_left(const Query& query, const Total& left) {
  if (query.request.probes < 0) return 1.0;
  return std::exp(log_of(left) - log_of(query.kernels.weigh_masses(query.log_masses, query.view.k, nullptr, nullptr)));
}

bool enough(const Restriction& restriction, int64_t n, int64_t left) { return restriction.replace || n <= left; }

// Draws from the k best, which are compared with the total of the law.
RestrictedDraws sample_best(Query& query, const Positions& excluded, const Remainder& rest, int64_t n,
                            const Slots& slots) {
  const Restriction& restriction = *query.request.restriction;
  const Total total = rest.total();
  BestListed best = best_items(query, excluded, restriction.k);
  const bool complete = best.items.size() == rest.left();
  const double share = std::exp(best.log_sum - log_of(total));
  cut(best.items, restriction.top_p);
  // An estimated total may be below that of the k best: its own error still counts, as zero would be a proof.
  const double left_out = std::max(0.0, 1.0 - share) + (query.error > 0 ? query.error : 0.0) + 1e-16;
  RestrictedDraws drawn;
  drawn.left = best.items.size();
  drawn.scored = std::min(query.view.n, best.scored + rest.scored());
  drawn.error = complete ? 0.0 : magnify(std::min(1.0, left_out), restriction.top_p);
  drawn.log_partition = query.log_partition(total);
  if (enough(restriction, n, drawn.left)) draw_listed(query, best.items, n, slots.positions, slots.log_prob);
  return drawn;
}

// Draws from the items that a query lists. All of them are scored, so only the k best leave something out.
RestrictedDraws sample_allowed(const Query& query, int64_t n, const Slots& slots) {
  const Restriction& restriction = *query.request.restriction;
  const Allowed allowed = allowed_items(query);
  RestrictedDraws drawn;
  drawn.left = allowed.items.size();
  drawn.scored = allowed.scored;
  drawn.error = magnify(allowed.left_out, restriction.top_p);
  drawn.log_partition = allowed.log_partition;
  if (enough(restriction, n, drawn.left)) draw_listed(query, allowed.items, n, slots.positions, slots.log_prob);
  return drawn;
}

}  // namespace

bool scans_everything(const View& view, const Request& request) {
  // The k best are searched with the probes of the request.
  const bool shared = request.restriction != nullptr && request.restriction->shared && request.restriction->k == 0;
  return shared && request.probes < 0 && scan_is_cheaper(view, request.excluded_of(0));
}

Request exhaustive(const Request& request) {
  Request all = request;
  all.law = {Kind::exhaustive, false, false};
  all.probes = 0;
  return all;
}

void probe_or_scan(Query& query) {
  if (query.request.probes > 0 || !scan_is_cheaper(query.view, query.request.excluded_of(query.number)))
    return probe(query);
  query.without_excluded = true;
  query.error = query.log_error = 0.0;
  query.scored = query.view.n;
  scan_clusters(Group{&query, 1}, 0, query.view.k, query.workspace);
}

RestrictedDraws sample_restricted(Query& query, int64_t n, int64_t* positions, double* log_prob) {
  const Restriction& restriction = *query.request.restriction;
  if (restriction.lists(query.number)) return sample_allowed(query, n, {positions, log_prob});
  const Positions excluded = restriction.excluded_of(query.number);
  const Slots slots = {positions, log_prob};
  Remainder rest(query);
  if (rest.left() == 0) return {};
  if (restriction.k > 0) return sample_best(query, excluded, rest, n, slots);
  const Total total = rest.total();
  RestrictedDraws drawn;
  drawn.left = rest.left();
  drawn.error = magnify(query.error, share_left(query, total) * restriction.top_p);
  drawn.log_partition = query.log_partition(total);
  if (restriction.top_p < 1) {
    const Listed listed = nucleus(query, rest, restriction.top_p);
    drawn.left = listed.size();
    if (enough(restriction, n, drawn.left)) draw_listed(query, listed, n, positions, log_prob);
  } else if (restriction.replace) {
    draw_with_replacement(query, rest, n, slots);
  } else if (n <= drawn.left) {
    draw_in_sequence(query, rest, n, slots);
  }
  drawn.scored = rest.scored();
  return drawn;
}

void log_prob_restricted(Query& query, const int64_t* positions, int64_t m, double* log_prob) {
  const Restriction& restriction = *query.request.restriction;
  const auto list = [&](const Listed& listed) {
    if (restriction.replace) return listed_log_prob(listed, positions, m, log_prob);
    listed_steps_log_prob(query.kernels, listed, positions, m, log_prob);
  };
  if (restriction.lists(query.number)) return list(allowed_items(query).items);
  const Positions excluded = restriction.excluded_of(query.number);
  if (excluded.count == query.view.n) return;
  if (restriction.k > 0) {
    Listed listed = best_items(query, excluded, restriction.k).items;
    cut(listed, restriction.top_p);
    return list(listed);
  }
  Remainder rest(query);
  if (restriction.top_p < 1) return list(nucleus(query, rest, restriction.top_p));
  if (!restriction.replace) return steps_log_prob(query, rest, positions, m, log_prob);
  const Total total = weigh_clusters(query, rest.log_masses());
  locate_items(query, positions, m);
  for (PendingDraw& next : query.workspace.pending) next.log_share = log_share(rest.log_masses()[next.cluster], total);
  located_log_prob(query, positions, log_prob,
                   [&](int64_t cluster) { return rest.left(cluster) == 0 ? nullptr : rest.dots(cluster); });
}

double masses_restricted(const Query& query, double* log_masses) {
  if (query.request.excluded_of(query.number).count == 0) {
    std::copy(query.log_masses, query.log_masses + query.view.k, log_masses);
    return query.error;
  }
  const Remainder rest(query);
  std::copy(rest.log_masses(), rest.log_masses() + query.view.k, log_masses);
  return magnify(query.error, share_left(query, rest.total()));
}

double log_partition_restricted(const Query& query) {
  if (query.request.lists(query.number)) return allowed_items(query).log_partition;
  return query.log_partition(Remainder(query).total());
}

}  // namespace softindex
