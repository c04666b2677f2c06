// Statistics of rows, in plain C++: what librowstats.a offers. Every row is `columns` floats, one after another.
#pragma once

#include <cstdint>

namespace rowstats {

// The mean and the (population) variance of each row, by pairs, in `out`.
void moments(const float* rows, int64_t count, int64_t columns, float* out);

// The least and the greatest of each row, by pairs; a row with a NaN has NaN twice.
void extremes(const float* rows, int64_t count, int64_t columns, float* out);

// The lower median of each row: the greatest value that at most half of the row is below. `columns` is 1 or more.
void median(const float* rows, int64_t count, int64_t columns, float* out);

#ifdef WITH_CUDA
// moments, for rows on the GPU; the stream is a cudaStream_t. Returns a cudaError_t.
int moments_cuda(const float* rows, int64_t count, int64_t columns, float* out, void* stream);
#endif

}  // namespace rowstats
