#pragma once

#include "options.hpp"

/// Linear warm-up, which keeps the replicas together while they would drift fastest; then a cosine or a line down to
/// 2 % of the peak. `step` counts from 1.
double lr_at(int64_t step, const Options& options);
