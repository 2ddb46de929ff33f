// The log mass of every cell under a law, for a group of one to four queries.
#pragma once

#include "workspace.h"

namespace softindex {

// Copies queries into the workspace, padded with zeros. width = padded(d).
void stage_queries(const View& view, const float* queries, int64_t count, Workspace& workspace);

// Fills workspace.log_masses (count, k) for the staged queries.
void cell_masses(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace);

// Scans cells first .. last exactly; log_masses (count, k) gets the entries of these cells.
void scan_cells(const Kernels& kernels, const View& view, double temperature, int64_t count, int64_t first,
                int64_t last, double* log_masses, Workspace& workspace);

double log_mass(const Mass& mass, double temperature);

}  // namespace softindex
