// A law: how the mass of a cluster is computed, and with it the probability distribution that is drawn from.
#pragma once

namespace softindex {

enum class Kind {
  estimated,   // from the moments of the cluster
  certified,   // from proven bounds where these decide, else by scanning the cluster
  exhaustive,  // by scanning every cluster
  tree,        // from the choices between two children on the way down a tree
};

// The terms of an estimate: log mass = q.mean / t + log size + q' S q / (2 t^2).
struct Law {
  Kind kind = Kind::estimated;
  bool size = false;        // use the size of each cluster; otherwise all that hold items count the same
  bool dispersion = false;  // add the last term
};

}  // namespace softindex
