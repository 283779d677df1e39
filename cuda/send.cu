#include <outerloop/math.hpp>

#include "cuda/sum.cuh"
#include "cuda/types.cuh"
#include "cuda/walk.cuh"

// params, anchor -> wire, and what the header tells of it. float32: reads 8 bytes per element, writes 4.

namespace outerloop::cuda {

namespace {

template <class S>
struct Sender {
  const S* anchor;
  S* wire;
  S weight;
  Summary sum{};

  template <int n, bool whole, class T>
  __device__ __forceinline__ void run(const T* params, int64_t flat) {
    const Pack<S, n> from = load<n>(anchor + flat);
    const Pack<T, n> local = load_params<n, whole>(params);
    Pack<S, n> sent;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const S delta = math::delta(from.values[i], local.values[i]);
      sent.values[i] = weight * delta;
      sum.sum_squares = math::multiply_add(static_cast<double>(delta), static_cast<double>(delta), sum.sum_squares);
      sum.non_finite += !math::is_finite(sent.values[i]);
      sum.fingerprint += math::fingerprint_term(math::place_at(static_cast<uint64_t>(flat + i)), from.values[i]);
    }
    store<n>(wire + flat, sent);
  }
};

template <class S, class T>
OUTERLOOP_KERNEL send_kernel(Chunks chunks, const S* anchor, S* wire, S weight, Sum sum) {
  Sender<S> sender{anchor, wire, weight};
  walk<S, const T>(chunks, sender);
  add_up(sender.sum, sum);
}

}  // namespace

void send(const Send& args, cudaStream_t stream) {
  with_types(args.params.type, [&](auto state, auto param) {
    using S = decltype(state);
    launch(send_kernel<S, decltype(param)>, chunks_of(args.params, args.anchor, args.wire), stream,
           static_cast<const S*>(args.anchor), static_cast<S*>(args.wire), static_cast<S>(args.weight), args.sum);
  });
}

}  // namespace outerloop::cuda
