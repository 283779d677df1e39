#include "round/fragment.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "codec/known.hpp"
#include "round/own_rule.hpp"

namespace outerloop::round {

kernels::Step fused_step(const Recurrence& rule, double inverse_weight, double keep_local) {
  return {inverse_weight, rule.lr, rule.momentum, rule.nesterov, keep_local};
}

std::vector<FlatParams> split(const std::vector<ParamSlice>& slices) {
  std::vector<at::Device> devices;
  for (const auto& [param, label, first, numel] : slices) {
    if (std::find(devices.begin(), devices.end(), param.device()) == devices.end()) devices.push_back(param.device());
  }
  std::vector<FlatParams> parts;
  for (const at::Device device : devices) {
    for (const bool twice : {false, true}) {
      std::vector<ParamSlice> part;
      std::copy_if(slices.begin(), slices.end(), std::back_inserter(part), [&](const ParamSlice& slice) {
        return slice.param.device() == device && (slice.param.scalar_type() == at::kDouble) == twice;
      });
      if (!part.empty()) parts.push_back(FlatParams::Impl::of(std::move(part)));
    }
  }
  return parts;
}

at::Device state_device(const FlatParams& params, const std::optional<at::Device>& anchor_device) {
  return anchor_device && anchor_device->is_cpu() ? at::Device(at::kCPU) : params.device();
}

Fragment::Fragment(std::vector<ParamSlice> slices, int slots, const SyncOptions& sync, const Exchange& exchange)
    : codec_(codec::is_plain(*sync.codec) ? nullptr : sync.codec), feedback_(sync.error_feedback) {
  for (FlatParams& part : split(slices)) {
    Bucket& bucket = buckets_.emplace_back(Bucket{std::move(part), {}});
    bucket.state.anchor = bucket.params.impl().gather(state_device(bucket.params, sync.anchor_device));
    for (int i = 0; i < slots; ++i) bucket.state.slots.push_back(at::zeros_like(bucket.state.anchor));
    if (feedback_ && bucket.state.anchor.scalar_type() == at::kFloat) {
      bucket.residuals = {.own = at::zeros_like(bucket.state.anchor, feedback_->residual),
                          .ranks = exchange.size(),
                          .rank = exchange.rank()};
    }
  }
  reserve_wires();
}

Wires Fragment::take_wires() {
  Wires wires;
  if (!spare_.empty()) {
    wires = std::move(spare_.back());
    spare_.pop_back();
    return wires;
  }
  for (const Bucket& bucket : buckets_) {
    if (codes_at_once(bucket)) {
      wires.emplace_back();
      continue;
    }
    const bool crosses = bucket.state.anchor.is_cpu() && !bucket.params.device().is_cpu();
    wires.push_back(at::empty({bucket.params.numel()}, bucket.state.anchor.options().pinned_memory(crosses)));
  }
  return wires;
}

void Fragment::give_back(Wires wires) {
  if (!wires.empty()) spare_.push_back(std::move(wires));
}

kernels::Summary Fragment::send(const Wires& wires, double weight) {
  RECORD_FUNCTION("outerloop::send", {});
  kernels::Summary sum;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    join(sum, kernels::send(bucket.params.impl().pull(), bucket.state.anchor, wires[i], weight));
  }
  return sum;
}

void Fragment::apply(Wires& wires, const Coded& coded, const OuterRule& rule, double inverse_weight, double keep_local,
                     double* sum_squares) {
  RECORD_FUNCTION("outerloop::apply", {});
  if (sum_squares) *sum_squares = 0;
  const auto fused = recurrence(rule);
  const std::vector<bool> stay = decode(wires, coded, fused.has_value());
  std::vector<OuterState> states = fused ? std::vector<OuterState>{} : stepped(buckets_, wires, rule, inverse_weight);
  pull();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    kernels::Params& params = bucket.params.impl().memory;
    double part = 0;
    double* const squares = sum_squares ? &part : nullptr;
    if (fused) {
      const Tensor velocity = bucket.state.slots.empty() ? Tensor() : bucket.state.slots[0];
      const kernels::Step step = fused_step(*fused, inverse_weight, keep_local);
      if (stay[i]) {
        part = kernels::apply(params, bucket.state.anchor, velocity, coded.buckets[i]->wire.rows(0), step);
      } else {
        kernels::apply(params, bucket.state.anchor, velocity, wires[i], step, squares);
      }
    } else {
      bucket.state.anchor = states[i].anchor;
      bucket.state.slots = states[i].slots;
      kernels::scatter(params, bucket.state.anchor, keep_local);
      if (squares) *squares = kernels::summarize(wires[i]).sum_squares;
    }
    if (sum_squares) *sum_squares += part;
    bucket.params.impl().push();
  }
}

void Fragment::rollback() {
  pull();
  scatter(0);
}

/// What can throw of all buckets, before anything is written.
void Fragment::pull() {
  for (Bucket& bucket : buckets_) bucket.params.impl().pull();
}

/// Once pulled.
void Fragment::scatter(double keep_local) {
  for (Bucket& bucket : buckets_) {
    kernels::scatter(bucket.params.impl().memory, bucket.state.anchor, keep_local);
    bucket.params.impl().push();
  }
}

std::vector<OuterState> Fragment::state_of(Exchange& exchange, int root) const {
  std::vector<OuterState> states;
  for (const Bucket& bucket : buckets_) {
    const OuterState& state = states.emplace_back(copy_of(bucket.state));
    Communicator& comm = exchange.from(state.anchor.device());
    comm.broadcast(state.anchor, root).wait();
    for (const Tensor& slot : state.slots) comm.broadcast(slot, root).wait();
  }
  return states;
}

void Fragment::take(std::vector<OuterState> states) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i].state = std::move(states[i]);
}

uint64_t Fragment::fingerprint() const {
  uint64_t print = 0;
  for (const Bucket& bucket : buckets_) print = followed(print, kernels::summarize(bucket.state.anchor).fingerprint);
  return print;
}

void Fragment::set_rounds(int64_t rounds) {
  rounds_ = rounds;
  for (Bucket& bucket : buckets_) bucket.state.round = rounds;
}

int64_t Fragment::numel() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.params.numel();
  return sum;
}

}  // namespace outerloop::round
