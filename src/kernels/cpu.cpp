#include "kernels/cpu.hpp"

#include "kernels/blocks.hpp"
#include "kernels/loops.hpp"

namespace outerloop::kernels::cpu {

namespace {

/// body(S{}) with the element type of a flat vector.
template <class Body>
auto with_state_type(const Tensor& flat, const Body& body) {
  return flat.scalar_type() == at::kDouble ? body(double{}) : body(float{});
}

/// body(out, i, n) fills n elements of what belongs at dst + i; with `past_caches` by way of a tile.
template <class T, class Body>
void write_only(T* dst, int64_t n, bool past_caches, const Body& body) {
  if (!past_caches) {
    body(dst, int64_t{0}, n);
    return;
  }
  alignas(64) T tile[tile_size];
  for (int64_t i = 0; i < n; i += tile_size) {
    const int64_t m = std::min(tile_size, n - i);
    body(tile, i, m);
    stream(dst + i, tile, m);
  }
  stream_fence();
}

template <class S>
Coefficients<S> coefficients(const Step& step) {
  return {static_cast<S>(step.inverse_weight), static_cast<S>(step.lr), static_cast<S>(step.momentum),
          static_cast<S>(step.keep_local), step.nesterov};
}

/// `wire` begins at element `begin`, the other vectors at 0.
template <bool has_velocity, bool mixes, class S>
double apply_range_as(const Segments& params, S* anchor, S* velocity, const S* wire, int64_t begin, int64_t end,
                      const Coefficients<S>& c, bool past_caches) {
  double sum_squares = 0;
  for_each_run<S>(params, begin, end, [&](auto* data, int64_t flat, int64_t n) {
    write_only(data, n, past_caches && !mixes, [&](auto* out, int64_t i, int64_t m) {
      S* v = has_velocity ? velocity + flat + i : nullptr;
      sum_squares += apply_run<has_velocity, mixes>(anchor + flat + i, v, wire + (flat - begin) + i, out, m, c);
    });
  });
  return sum_squares;
}

template <class S>
double apply_range_of(const Segments& params, S* anchor, S* velocity, const S* wire, int64_t begin, int64_t end,
                      const Step& step, bool past_caches) {
  const Coefficients<S> c = coefficients<S>(step);
  const auto as = [&](auto has_velocity, auto mixes) {
    return apply_range_as<has_velocity(), mixes()>(params, anchor, velocity, wire, begin, end, c, past_caches);
  };
  const std::true_type yes;
  const std::false_type no;
  if (step.keep_local == 0) return velocity ? as(yes, no) : as(no, no);
  return velocity ? as(yes, yes) : as(no, yes);
}

}  // namespace

Summary send(const Segments& params, const Tensor& anchor, const Tensor& wire, double weight, int64_t first) {
  return with_state_type(anchor, [&](auto zero) {
    using S = decltype(zero);
    const S* from = anchor.const_data_ptr<S>();
    S* to = wire.mutable_data_ptr<S>();
    return sum_over_blocks<Summary>(anchor.numel(), [&](int64_t begin, int64_t end) {
      Summary sum;
      for_each_run<S>(params, begin, end, [&](const auto* data, int64_t flat, int64_t n) {
        sum += send_run(from + flat, data, to + flat, n, static_cast<S>(weight), first + flat);
      });
      return sum;
    });
  });
}

double apply(const Segments& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
             const Step& step) {
  return with_state_type(anchor, [&](auto zero) {
    using S = decltype(zero);
    S* a = anchor.mutable_data_ptr<S>();
    S* v = velocity.defined() ? velocity.mutable_data_ptr<S>() : nullptr;
    const S* w = wire.const_data_ptr<S>();
    const bool past_caches = anchor.numel() >= stream_from;
    return sum_over_blocks<double>(anchor.numel(), [&](int64_t begin, int64_t end) {
      return apply_range_of(params, a, v, w + begin, begin, end, step, past_caches);
    });
  });
}

double apply_range(const Segments& params, float* anchor, float* velocity, const float* mean_delta, int64_t begin,
                   int64_t end, const Step& step, bool past_caches) {
  return apply_range_of(params, anchor, velocity, mean_delta, begin, end, step, past_caches);
}

double step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                  const Step& step) {
  return with_state_type(anchor, [&](auto zero) {
    using S = decltype(zero);
    const S* a = anchor.const_data_ptr<S>();
    const S* v = velocity.defined() ? velocity.const_data_ptr<S>() : nullptr;
    S* w = wire.mutable_data_ptr<S>();
    S* next = v ? next_velocity.mutable_data_ptr<S>() : nullptr;
    const Coefficients<S> c = coefficients<S>(step);
    return sum_over_blocks<double>(anchor.numel(), [&](int64_t begin, int64_t end) {
      return v ? step_apart_run<true>(a + begin, v + begin, w + begin, next + begin, end - begin, c)
               : step_apart_run<false>(a + begin, v, w + begin, next, end - begin, c);
    });
  });
}

void delta(const Segments& params, const Tensor& anchor, const Tensor& delta) {
  with_state_type(anchor, [&](auto zero) {
    using S = decltype(zero);
    const S* from = anchor.const_data_ptr<S>();
    S* to = delta.mutable_data_ptr<S>();
    for_each_block(anchor.numel(), [&](int64_t, int64_t begin, int64_t end) {
      for_each_run<S>(params, begin, end,
                      [&](const auto* data, int64_t flat, int64_t n) { delta_run(from + flat, data, to + flat, n); });
    });
  });
}

void gather(const Segments& params, const Tensor& flat) {
  with_state_type(flat, [&](auto zero) {
    using S = decltype(zero);
    S* to = flat.mutable_data_ptr<S>();
    for_each_block(flat.numel(), [&](int64_t, int64_t begin, int64_t end) {
      for_each_run<S>(params, begin, end,
                      [&](const auto* data, int64_t first, int64_t n) { gather_run(data, to + first, n); });
    });
  });
}

void scatter(const Segments& params, const Tensor& flat, double keep_local) {
  with_state_type(flat, [&](auto zero) {
    using S = decltype(zero);
    const S* from = flat.const_data_ptr<S>();
    const bool past_caches = keep_local == 0 && flat.numel() >= stream_from;
    for_each_block(flat.numel(), [&](int64_t, int64_t begin, int64_t end) {
      for_each_run<S>(params, begin, end, [&](auto* data, int64_t first, int64_t n) {
        write_only(data, n, past_caches, [&](auto* out, int64_t i, int64_t m) {
          scatter_run(from + first + i, out, m, static_cast<S>(keep_local));
        });
      });
    });
  });
}

void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta, const Step& step) {
  with_state_type(anchor, [&](auto zero) {
    using S = decltype(zero);
    S* a = anchor.mutable_data_ptr<S>();
    S* v = velocity.defined() ? velocity.mutable_data_ptr<S>() : nullptr;
    const S* d = mean_delta.const_data_ptr<S>();
    const Coefficients<S> c = coefficients<S>(step);
    for_each_block(anchor.numel(), [&](int64_t, int64_t begin, int64_t end) {
      if (v) {
        step_run<true>(a + begin, v + begin, d + begin, end - begin, c);
      } else {
        step_run<false>(a + begin, v, d + begin, end - begin, c);
      }
    });
  });
}

Summary summarize(const Tensor& flat) {
  return with_state_type(flat, [&](auto zero) {
    using S = decltype(zero);
    const S* values = flat.const_data_ptr<S>();
    return sum_over_blocks<Summary>(
        flat.numel(), [&](int64_t begin, int64_t end) { return summarize_run(values + begin, end - begin, begin); });
  });
}

}  // namespace outerloop::kernels::cpu
