#include <type_traits>

#include "cuda/outer_step.cuh"
#include "cuda/sum.cuh"
#include "cuda/types.cuh"
#include "cuda/walk.cuh"

// The stages one by one: what send and apply do together, for recipes of users' own and as the fused kernels' measure.

namespace outerloop::cuda {

namespace {

// ---- params <-> flat ----

template <class S>
struct Delta {
  const S* anchor;
  S* delta;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(const T* params, int64_t flat) {
    Pack<S, n> values = load<n>(anchor + flat);
    const Pack<T, n> local = load_params<n, whole>(params);
#pragma unroll
    for (int i = 0; i < n; ++i) values.values[i] = math::delta(values.values[i], local.values[i]);
    store<n>(delta + flat, values);
  }
};

template <class S, class T>
OUTERLOOP_KERNEL delta_kernel(Chunks chunks, const S* anchor, S* delta) {
  Delta<S> visit{anchor, delta};
  walk<S, const T>(chunks, visit);
}

template <class S>
struct Gather {
  S* to;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(const T* params, int64_t flat) {
    const Pack<T, n> local = load_params<n, whole>(params);
    Pack<S, n> values;
#pragma unroll
    for (int i = 0; i < n; ++i) values.values[i] = math::widen(local.values[i]);
    store<n>(to + flat, values);
  }
};

template <class S, class T>
OUTERLOOP_KERNEL gather_kernel(Chunks chunks, S* to) {
  Gather<S> visit{to};
  walk<S, const T>(chunks, visit);
}

template <class S, bool mixes>
struct Scatter {
  const S* from;
  S keep_local;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(T* params, int64_t flat) {
    const Pack<S, n> values = load<n>(from + flat);
    Pack<T, n> local;
    if constexpr (mixes) local = load_params<n, whole>(params);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      local.values[i] =
          mixes ? math::mix(values.values[i], local.values[i], keep_local) : math::narrow<T>(values.values[i]);
    }
    store_params<n, whole>(params, local);
  }
};

template <class S, class T, bool mixes>
OUTERLOOP_KERNEL scatter_kernel(Chunks chunks, const S* from, S keep_local) {
  Scatter<S, mixes> visit{from, keep_local};
  walk<S, T>(chunks, visit);
}

// ---- flat alone ----

template <class S, bool has_velocity>
struct Stepper {
  S* anchor;
  S* velocity;
  const S* mean_delta;
  Coefficients<S> c;

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(T*, int64_t flat) {
    outer_step<has_velocity>(anchor, velocity, anchor, velocity, flat, load<n>(mean_delta + flat), c);
  }
};

template <class S, bool has_velocity>
OUTERLOOP_KERNEL step_kernel(Chunks chunks, S* anchor, S* velocity, const S* mean_delta, Coefficients<S> c) {
  Stepper<S, has_velocity> visit{anchor, velocity, mean_delta, c};
  walk<S, S>(chunks, visit);
}

template <class S>
struct Summarizer {
  const S* values;
  Summary sum{};

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(const T*, int64_t flat) {
    const Pack<S, n> pack = load<n>(values + flat);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const S x = pack.values[i];
      sum.sum_squares = math::multiply_add(static_cast<double>(x), static_cast<double>(x), sum.sum_squares);
      sum.non_finite += !math::is_finite(x);
      sum.fingerprint += math::fingerprint_term(math::place_at(static_cast<uint64_t>(flat + i)), x);
    }
  }
};

template <class S>
OUTERLOOP_KERNEL summarize_kernel(Chunks chunks, const S* values, Sum sum) {
  Summarizer<S> visit{values};
  walk<S, const S>(chunks, visit);
  add_up(visit.sum, sum);
}

}  // namespace

void delta(const Table& params, const void* anchor, void* delta, cudaStream_t stream) {
  with_types(params.type, [&](auto state, auto param) {
    using S = decltype(state);
    launch(delta_kernel<S, decltype(param)>, chunks_of(params, anchor, delta), stream, static_cast<const S*>(anchor),
           static_cast<S*>(delta));
  });
}

void gather(const Table& params, void* flat, cudaStream_t stream) {
  with_types(params.type, [&](auto state, auto param) {
    using S = decltype(state);
    launch(gather_kernel<S, decltype(param)>, chunks_of(params, flat), stream, static_cast<S*>(flat));
  });
}

void scatter(const Table& params, const void* flat, double keep_local, cudaStream_t stream) {
  with_types(params.type, [&](auto state, auto param) {
    using S = decltype(state);
    using T = decltype(param);
    launch(keep_local == 0 ? scatter_kernel<S, T, false> : scatter_kernel<S, T, true>, chunks_of(params, flat), stream,
           static_cast<const S*>(flat), static_cast<S>(keep_local));
  });
}

void step(const Step& args, cudaStream_t stream) {
  with_state_type(args.type, [&](auto state) {
    using S = decltype(state);
    const Coefficients<S> c{1, static_cast<S>(args.lr), static_cast<S>(args.momentum), 0, args.nesterov};
    launch(args.velocity ? step_kernel<S, true> : step_kernel<S, false>,
           chunks_of(args.numel, args.anchor, args.velocity, args.mean_delta), stream, static_cast<S*>(args.anchor),
           static_cast<S*>(args.velocity), static_cast<const S*>(args.mean_delta), c);
  });
}

void summarize(Type type, int64_t numel, const void* flat, Sum sum, cudaStream_t stream) {
  with_state_type(type, [&](auto state) {
    using S = decltype(state);
    launch(summarize_kernel<S>, chunks_of(numel, flat), stream, static_cast<const S*>(flat), sum);
  });
}

}  // namespace outerloop::cuda
