// The two-level draw, and the log-probability of given items: two readings of the same cell masses.
#pragma once

#include "workspace.h"

namespace softindex {

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
