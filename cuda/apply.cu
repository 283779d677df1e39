#include "cuda/outer_step.cuh"
#include "cuda/sum.cuh"
#include "cuda/types.cuh"
#include "cuda/walk.cuh"

// wire -> mean delta -> velocity, anchor -> params. float32: reads 12 bytes per element, writes 12.
// Apart: wire -> mean delta -> next_velocity, wire. float32: reads 12 bytes per element, writes 8.

namespace outerloop::cuda {

namespace {

/// inverse_weight * wire; the squares go onto sum_squares.
template <int n, class S>
__device__ __forceinline__ Pack<S, n> mean_delta_of(const S* wire, S inverse_weight, double& sum_squares) {
  Pack<S, n> mean_delta = load<n>(wire);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const S d = inverse_weight * mean_delta.values[i];
    mean_delta.values[i] = d;
    sum_squares = math::multiply_add(static_cast<double>(d), static_cast<double>(d), sum_squares);
  }
  return mean_delta;
}

template <class S, bool has_velocity, bool mixes>
struct Applier {
  S* anchor;
  S* velocity;
  const S* wire;
  Coefficients<S> c;
  double sum_squares = 0;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(T* params, int64_t flat) {
    const Pack<S, n> mean_delta = mean_delta_of<n>(wire + flat, c.inverse_weight, sum_squares);
    const Pack<S, n> a = outer_step<has_velocity>(anchor, velocity, anchor, velocity, flat, mean_delta, c);
    Pack<T, n> local;
    if constexpr (mixes) local = load_params<n, whole>(params);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      local.values[i] = mixes ? math::mix(a.values[i], local.values[i], c.keep_local) : math::narrow<T>(a.values[i]);
    }
    store_params<n, whole>(params, local);
  }
};

template <class S, class T, bool has_velocity, bool mixes>
OUTERLOOP_KERNEL apply_kernel(Chunks chunks, S* anchor, S* velocity, const S* wire, Coefficients<S> c, Sum sum) {
  Applier<S, has_velocity, mixes> applier{anchor, velocity, wire, c};
  walk<S, T>(chunks, applier);
  add_up({applier.sum_squares, 0, 0}, sum);
}

template <class S, class T>
auto kernel_for(bool has_velocity, bool mixes) {
  if (has_velocity) return mixes ? apply_kernel<S, T, true, true> : apply_kernel<S, T, true, false>;
  return mixes ? apply_kernel<S, T, false, true> : apply_kernel<S, T, false, false>;
}

template <class S, bool has_velocity>
struct ApartStepper {
  const S* anchor;
  const S* velocity;
  S* wire;
  S* next_velocity;
  Coefficients<S> c;
  double sum_squares = 0;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(T*, int64_t flat) {
    const Pack<S, n> mean_delta = mean_delta_of<n>(wire + flat, c.inverse_weight, sum_squares);
    outer_step<has_velocity>(anchor, velocity, wire, next_velocity, flat, mean_delta, c);
  }
};

template <class S, bool has_velocity>
OUTERLOOP_KERNEL step_apart_kernel(Chunks chunks, const S* anchor, const S* velocity, S* wire, S* next_velocity,
                                   Coefficients<S> c, Sum sum) {
  ApartStepper<S, has_velocity> stepper{anchor, velocity, wire, next_velocity, c};
  walk<S, const S>(chunks, stepper);
  if (sum.workspace) add_up({stepper.sum_squares, 0, 0}, sum);
}

}  // namespace

void apply(const Apply& args, cudaStream_t stream) {
  with_types(args.params.type, [&](auto state, auto param) {
    using S = decltype(state);
    const Coefficients<S> c{static_cast<S>(args.inverse_weight), static_cast<S>(args.lr), static_cast<S>(args.momentum),
                            static_cast<S>(args.keep_local), args.nesterov};
    launch(kernel_for<S, decltype(param)>(args.velocity != nullptr, args.keep_local != 0),
           chunks_of(args.params, args.anchor, args.velocity, args.wire), stream, static_cast<S*>(args.anchor),
           static_cast<S*>(args.velocity), static_cast<const S*>(args.wire), c, args.sum);
  });
}

void step_apart(const StepApart& args, cudaStream_t stream) {
  with_state_type(args.type, [&](auto state) {
    using S = decltype(state);
    const Coefficients<S> c{static_cast<S>(args.inverse_weight), static_cast<S>(args.lr), static_cast<S>(args.momentum),
                            0, args.nesterov};
    launch(args.velocity ? step_apart_kernel<S, true> : step_apart_kernel<S, false>,
           chunks_of(args.numel, args.anchor, args.velocity, args.wire, args.next_velocity), stream,
           static_cast<const S*>(args.anchor), static_cast<const S*>(args.velocity), static_cast<S*>(args.wire),
           static_cast<S*>(args.next_velocity), c, args.sum);
  });
}

}  // namespace outerloop::cuda
