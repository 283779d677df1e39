#include "optimizer/admit.hpp"

#include <c10/util/Exception.h>

#include <outerloop/stability.hpp>

#include <cmath>

#include "codec/known.hpp"
#include "outer/exact.hpp"
#include "outer/recurrence.hpp"
#include "params/check.hpp"
#include "round/exchange.hpp"

namespace outerloop::optimizer {

namespace {

void check_anchor_device(const SyncOptions& sync, const Groups& groups) {
  if (!sync.anchor_device || sync.anchor_device->is_cpu()) return;
  const at::Device wanted = *sync.anchor_device;
  for (const Tensor& param : trainable(groups)) {
    const at::Device device = param.device();
    TORCH_CHECK(wanted == device || wanted == at::Device(device.type()), "anchor_device is ", wanted,
                " where a parameter is on ", device, "; it must be cpu, or the device of all parameters");
  }
}

void check_codec(const SyncOptions& sync, const Streaming& streaming, int64_t sync_every, const Groups& groups) {
  TORCH_CHECK(sync.codec, "codec is null: use codecs::fp32() for deltas that travel whole");
  const bool plain = codec::is_plain(*sync.codec);
  TORCH_CHECK(plain || !streaming.eager, "eager replicas take deltas that travel whole, not by codec ",
              sync.codec->describe());
  for (const Tensor& param : trainable(groups)) {
    TORCH_CHECK(plain || param.is_cpu() || (sync.anchor_device && sync.anchor_device->is_cpu()), "codec ",
                sync.codec->describe(), " runs on the CPU, and a parameter is on ", param.device(),
                "; set anchor_device to cpu");
  }
  if (!sync.error_feedback) return;
  const ErrorFeedback& feedback = *sync.error_feedback;
  TORCH_CHECK(!plain, "error_feedback: fp32 deltas lose nothing; set another codec");
  TORCH_CHECK(feedback.decay > 0 && feedback.decay <= 1, "error_feedback: decay must be in (0, 1], got ",
              feedback.decay);
  TORCH_CHECK(feedback.residual == at::kFloat || feedback.residual == at::kBFloat16,
              "error_feedback: residual must be float32 or bfloat16, got ", feedback.residual);
  TORCH_CHECK(streaming.delay < sync_every, "error_feedback wants a delay below sync_every ", sync_every,
              ", so that a round knows what the one before it lost; got ", streaming.delay);
}

/// 0 for options that have no lr.
double lr_of(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return 0;
  }
}

/// Three digits, none of which is too large.
double rounded_down(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::floor(value / unit) * unit;
}

/// Nothing is known of rules of users' own.
void check_stability(const OuterRule& rule, int64_t sync_every, const Streaming& streaming, const SyncOptions& sync,
                     int replicas) {
  const auto known = recurrence(rule);
  if (!known) return;
  const int64_t late = streaming.delay / sync_every;
  const double limit = largest_stable_lr({known->momentum, known->nesterov, late, streaming.eager, replicas});
  if (known->lr <= limit * (1 + 1e-9)) return;
  const std::string warning =
      c10::str("outer_lr ", known->lr, " is above ", limit, ", the limit for outer_momentum ", known->momentum,
               known->nesterov ? "" : " of heavy ball", late > 0 ? c10::str(", rounds that come ", late, " late") : "",
               streaming.eager ? c10::str(" and ", replicas, " eager replicas") : "",
               ": anchors can grow without bound; the largest safe outer_lr is ", rounded_down(limit));
  TORCH_CHECK(!sync.strict, warning);
  if (sync.on_warning) sync.on_warning(warning);
}

}  // namespace

std::string describe(const std::optional<ErrorFeedback>& feedback) {
  if (!feedback) return "none";
  return c10::str("decay ", exact(feedback->decay), ", ", feedback->residual);
}

void check_parameters(const Groups& groups, const std::vector<std::string>& names, const FragmentPlan& plan) {
  params::check(parameters(groups), names);
  TORCH_CHECK(!trainable(groups).empty(), "no parameters to train: the inner optimizer has ", parameters(groups).size(),
              ", none of which requires grad");
  slices(groups, names, plan);
}

const Groups& admit(const std::unique_ptr<Optimizer>& inner, const std::shared_ptr<Communicator>& comm,
                    const std::shared_ptr<const OuterRule>& rule, int64_t sync_every, const Streaming& streaming,
                    const SyncOptions& sync) {
  return *round::or_refuse(comm, [&] {
    TORCH_CHECK(inner, "inner is null: give an optimizer");
    TORCH_CHECK(comm, "comm is null: use connect_from_env(), or connect_alone() for a group of one");
    TORCH_CHECK(rule, "rule is null: give an OuterRule");
    round::check_device(*comm);
    TORCH_CHECK(sync_every >= 1, "sync_every must be >= 1, got ", sync_every);
    TORCH_CHECK(sync_every >= streaming.fragments.count(), "sync_every is ", sync_every, ", but there are ",
                streaming.fragments.count(), " fragments; each needs an inner step of its own");
    TORCH_CHECK(streaming.delay >= 0, "delay must be >= 0, got ", streaming.delay);
    TORCH_CHECK(streaming.keep_local >= 0 && streaming.keep_local <= 1, "keep_local must be in [0, 1], got ",
                streaming.keep_local);
    TORCH_CHECK(!streaming.eager || (streaming.delay > 0 && streaming.delay % sync_every == 0),
                "eager needs a delay of whole windows, a multiple of sync_every ", sync_every, ", got ",
                streaming.delay);
    const Groups& groups = inner->param_groups();
    const size_t count = parameters(groups).size();
    TORCH_CHECK(count > 0, "no parameters: the inner optimizer has none");
    TORCH_CHECK(sync.names.empty() || sync.names.size() == count, "names has ", sync.names.size(), " entries for ",
                count, " parameters");
    for (const auto& group : groups) {
      const double lr = lr_of(group.options());
      TORCH_CHECK(std::isfinite(lr) && lr >= 0, "the inner optimizer's lr must be finite and >= 0, got ", lr);
    }
    check_parameters(groups, sync.names, streaming.fragments);
    check_anchor_device(sync, groups);
    check_codec(sync, streaming, sync_every, groups);
    check_stability(*rule, sync_every, streaming, sync, comm->size());
    return &groups;
  });
}

}  // namespace outerloop::optimizer
