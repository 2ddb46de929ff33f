// The two-level draw, and the log-probability of given items: two readings of the same cell masses.
#pragma once

#include "workspace.h"

namespace softindex {

// A cell scanned at one query: its weights and prefix sums are in the workspace until the next one is weighed.
struct ScannedCell {
  Mass mass;
  double log_total;  // log of mass.total
  int64_t begin, count;
  const float* dots;
};

// Weighs the items of a cell by their dot products; one of -infinity has no weight.
ScannedCell weigh_cell(const Kernels& kernels, const View& view, double temperature, int64_t cell, const float* dots,
                       Workspace& workspace);

// log of the probability of the item inside its cell.
double log_within(const View& view, double temperature, const ScannedCell& scanned, int64_t i);

// Weighs the cells by their log masses (k): fills workspace.cell_weights and cell_prefix.
Total weigh_cells(const Kernels& kernels, const View& view, const double* log_masses, Workspace& workspace);

// log of a cell's share of the law.
double log_share(double log_mass, const Total& total);

int64_t cell_of(const View& view, int64_t position);

// Draws the items of one query inside the cell it was scanned at.
void pick_items(const Kernels& kernels, const View& view, double temperature, const ScannedCell& scanned,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                const Workspace& workspace);

// Chooses the cells of n draws for one query: pending (n), with slots from first_slot on.
// Returns how many items the chosen cells hold together.
int64_t choose_cells(const Kernels& kernels, const View& view, const double* log_masses, uint64_t key,
                     uint64_t stream, int64_t n, int64_t first_slot, PendingDraw* pending, Workspace& workspace);

// Draws the items of pending draws that chose the same cell; slot s belongs to query s / n. Queries take turns in
// groups, so that a cell is read from memory once for all who chose it.
void draw_items(const Kernels& kernels, const View& view, double temperature, const float* queries, int64_t n,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                Workspace& workspace);

// Brings n chosen draws into the order of their cells; returns how many items these cells hold together.
int64_t settle_cells(const View& view, PendingDraw* pending, int64_t n);

// log_prob (m) of the items at positions (m), each in [0, n of the view).
void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace);

// Its two halves. workspace.pending (m): the cells of the items, in the order of cells; log_share is left to the caller.
void locate_items(const View& view, const int64_t* positions, int64_t m, Workspace& workspace);
// From the cells and their log shares in workspace.pending.
void located_log_probabilities(const Kernels& kernels, const View& view, double temperature, const float* query,
                               const int64_t* positions, int64_t m, double* log_prob, Workspace& workspace);

// In the order of cells, and of slots within a cell.
void order_by_cell(PendingDraw* begin, PendingDraw* end);

}  // namespace softindex
