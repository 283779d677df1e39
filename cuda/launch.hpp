#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

/// The kernels of a round, for callers with raw pointers and a stream; free of torch. All work is put on the stream of
/// the current device and nothing waits. Errors of a launch throw std::runtime_error. `state` vectors (anchor,
/// velocity, wire, flat) are float32, or float64 for float64 parameters.

namespace outerloop::cuda {

enum class Type { float32, bfloat16, float16, float64 };

/// One parameter in a flat vector: `numel` dense elements at `data`, the first of them at `offset`.
struct Run {
  void* data;
  int64_t offset;
  int64_t numel;
};

/// A stretch of one parameter that one block of threads takes at a time; a launch reads a table of them from the
/// device's memory, so it covers any number of tensors.
using Chunk = Run;
inline constexpr int64_t chunk_size = 8192;

/// Runs of one type, each cut at multiples of chunk_size from its beginning; empty ones give no chunk.
std::vector<Chunk> cut(const std::vector<Run>& runs, Type type);

/// The chunks of parameters of one type, in device memory.
struct Table {
  const Chunk* chunks;
  int64_t count;
  Type type;
};

struct Summary {
  double sum_squares;    ///< send: of anchor - local; apply, step_apart: of mean_delta; summarize: of the vector
  int64_t non_finite;    ///< elements of the wire, or of the vector
  uint64_t fingerprint;  ///< of the anchor, or of the vector
};

/// What a launch that sums needs of device memory: workspace_bytes() at 16 bytes' alignment, zeroed before the first
/// use, used by one stream at a time. Sums are made in a fixed order, without atomic additions of floats.
struct Workspace;
size_t workspace_bytes();
/// Where the sum is, in the same memory.
const Summary* total(const Workspace* workspace);

/// A sum that may go on where an earlier launch on the same stream left it.
struct Sum {
  Workspace* workspace;
  bool goes_on;
};

/// wire <- weight * (anchor - params).  12 bytes per float32 element.
struct Send {
  Table params;
  const void* anchor;
  void* wire;
  double weight;
  Sum sum;
};
void send(const Send& args, cudaStream_t stream);

/// mean_delta = inverse_weight * wire; velocity, anchor <- outer step; params <- anchor (mixed by keep_local).  24
/// bytes per float32 element, 16 without velocity (null), 4 more with keep_local.
struct Apply {
  Table params;
  void* anchor;
  void* velocity;
  const void* wire;
  double inverse_weight, lr, momentum;
  bool nesterov;
  double keep_local;
  Sum sum;
};
void apply(const Apply& args, cudaStream_t stream);

/// mean_delta = inverse_weight * wire; next_velocity, wire <- velocity, anchor after the outer step, which themselves
/// stay as they are. On flat vectors of `numel` elements, as in Step below.  20 bytes per float32 element, 12 without
/// velocity.
struct StepApart {
  Type type;
  int64_t numel;
  const void* anchor;
  const void* velocity;  ///< null without momentum
  void* wire;
  void* next_velocity;  ///< null without momentum
  double inverse_weight, lr, momentum;
  bool nesterov;
  Sum sum;  ///< without a workspace: none is made
};
void step_apart(const StepApart& args, cudaStream_t stream);

/// The same, stage by stage. On flat vectors of `numel` elements `type` is that of the state: float32 or float64.
void delta(const Table& params, const void* anchor, void* delta, cudaStream_t stream);        ///< anchor - params
void gather(const Table& params, void* flat, cudaStream_t stream);                            ///< flat <- params
void scatter(const Table& params, const void* flat, double keep_local, cudaStream_t stream);  ///< params <- flat
struct Step {
  Type type;
  int64_t numel;
  void* anchor;
  void* velocity;  ///< null without momentum
  const void* mean_delta;
  double lr, momentum;
  bool nesterov;
};
void step(const Step& args, cudaStream_t stream);
void summarize(Type type, int64_t numel, const void* flat, Sum sum, cudaStream_t stream);

}  // namespace outerloop::cuda
