#include "round/fragment.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <unordered_map>

namespace outerloop::round {

namespace {

/// The rules the fused kernel knows, as its coefficients.
std::optional<kernels::Step> fused(const OuterRule& rule) {
  if (dynamic_cast<const Average*>(&rule)) return kernels::Step{};
  if (const auto* nesterov = dynamic_cast<const Nesterov*>(&rule)) {
    return kernels::Step{.lr = nesterov->lr, .momentum = nesterov->momentum, .nesterov = nesterov->nesterov};
  }
  return std::nullopt;
}

/// The fingerprint of several vectors.
uint64_t joined(uint64_t before, uint64_t next) { return 31 * before + next; }

OuterState copy_of(const OuterState& state) {
  OuterState copy{state.anchor.clone(), {}, state.round};
  for (const Tensor& slot : state.slots) copy.slots.push_back(slot.clone());
  return copy;
}

/// A rule of a user's must leave vectors as it found them, but for their values.
void check_same_vectors(const OuterRule& rule, const OuterState& after, const OuterState& before) {
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.defined() && a.device() == b.device() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.is_contiguous();
  };
  TORCH_CHECK(same(after.anchor, before.anchor) &&
                  std::equal(after.slots.begin(), after.slots.end(), before.slots.begin(), before.slots.end(), same),
              rule.describe(),
              "::step changed the number, type or shape of the state's vectors; it may change values only");
}

/// The states after the outer step. The old ones stay as they are, so that a step that throws changes nothing.
std::vector<OuterState> stepped(std::vector<Bucket>& buckets, const OuterRule& rule, double total_weight) {
  std::vector<OuterState> states;
  for (Bucket& bucket : buckets) {
    OuterState& state = states.emplace_back(copy_of(bucket.state));
    bucket.wire.mul_(1 / total_weight);
    rule.step(state, bucket.wire);
    check_same_vectors(rule, state, bucket.state);
  }
  return states;
}

/// Where a tensor's elements start in its bucket.
using Places = std::unordered_map<const void*, std::pair<const Bucket*, int64_t>>;

Places places(const Fragment& fragment) {
  Places found;
  for (const Bucket& bucket : fragment.buckets()) {
    int64_t offset = 0;
    for (const Tensor& param : bucket.params.tensors()) {
      found[param.unsafeGetTensorImpl()] = {&bucket, offset};
      offset += param.numel();
    }
  }
  return found;
}

void take_over(Bucket& bucket, const Places& before) {
  int64_t offset = 0;
  for (const Tensor& param : bucket.params.tensors()) {
    const auto found = before.find(param.unsafeGetTensorImpl());
    if (found != before.end()) {
      const auto& [from, at] = found->second;
      const auto copy = [&, at = at](const Tensor& to, const Tensor& old) {
        to.narrow(0, offset, param.numel()).copy_(old.narrow(0, at, param.numel()));
      };
      copy(bucket.state.anchor, from->state.anchor);
      for (size_t i = 0; i < bucket.state.slots.size(); ++i) copy(bucket.state.slots[i], from->state.slots[i]);
    }
    offset += param.numel();
  }
}

}  // namespace

std::vector<FlatParams> split(const std::vector<Tensor>& params) {
  std::vector<at::Device> devices;
  for (const Tensor& param : params) {
    if (std::find(devices.begin(), devices.end(), param.device()) == devices.end()) devices.push_back(param.device());
  }
  std::vector<FlatParams> parts;
  for (const at::Device device : devices) {
    for (const bool twice : {false, true}) {
      std::vector<Tensor> part;
      std::copy_if(params.begin(), params.end(), std::back_inserter(part), [&](const Tensor& param) {
        return param.device() == device && (param.scalar_type() == at::kDouble) == twice;
      });
      if (!part.empty()) parts.emplace_back(std::move(part));
    }
  }
  return parts;
}

at::Device state_device(const FlatParams& params, const std::optional<at::Device>& anchor_device) {
  return anchor_device && anchor_device->is_cpu() ? at::Device(at::kCPU) : params.device();
}

Fragment::Fragment(const std::vector<Tensor>& params, const std::vector<std::string>& labels, int slots,
                   std::optional<at::Device> anchor_device, const Fragment* before)
    : params_(params) {
  std::unordered_map<const void*, std::string> label_of;
  for (size_t i = 0; i < params.size(); ++i) label_of[params[i].unsafeGetTensorImpl()] = labels[i];
  const Places old = before ? places(*before) : Places{};
  for (FlatParams& part : split(params)) {
    Bucket& bucket = buckets_.emplace_back(Bucket{std::move(part), {}, {}});
    FlatParams::Impl& impl = bucket.params.impl();
    bucket.state.anchor = impl.gather(state_device(bucket.params, anchor_device));
    for (int i = 0; i < slots; ++i) bucket.state.slots.push_back(at::zeros_like(bucket.state.anchor));
    const bool crosses = bucket.state.anchor.is_cpu() && !impl.device().is_cpu();
    bucket.wire = at::empty({impl.numel}, bucket.state.anchor.options().pinned_memory(crosses));
    take_over(bucket, old);
    for (size_t i = 0; i < impl.tensors.size(); ++i) impl.labels[i] = label_of[impl.tensors[i].unsafeGetTensorImpl()];
  }
  if (before) set_rounds(before->rounds());
}

kernels::Summary Fragment::send(double weight) {
  RECORD_FUNCTION("outerloop::send", {});
  kernels::Summary sum;
  for (Bucket& bucket : buckets_) {
    const auto part = kernels::send(bucket.params.impl().pull(), bucket.state.anchor, bucket.wire, weight);
    sum.sum_squares += part.sum_squares;
    sum.non_finite += part.non_finite;
    sum.fingerprint = joined(sum.fingerprint, part.fingerprint);
  }
  return sum;
}

void Fragment::reduce(Exchange& exchange) {
  RECORD_FUNCTION("outerloop::reduce", {});
  if (exchange.size() == 1) return;
  std::vector<Pending> sums;
  for (Bucket& bucket : buckets_) sums.push_back(exchange.from(bucket.wire.device()).all_reduce_sum(bucket.wire));
  for (Pending& sum : sums) sum.wait();
}

void Fragment::apply(const OuterRule& rule, double total_weight, double keep_local, double* sum_squares) {
  RECORD_FUNCTION("outerloop::apply", {});
  if (sum_squares) *sum_squares = 0;
  auto step = fused(rule);
  std::vector<OuterState> states = step ? std::vector<OuterState>{} : stepped(buckets_, rule, total_weight);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    kernels::Params& params = bucket.params.impl().pull();
    double part = 0;
    double* const squares = sum_squares ? &part : nullptr;
    if (step) {
      step->inverse_weight = 1 / total_weight;
      step->keep_local = keep_local;
      const Tensor velocity = bucket.state.slots.empty() ? Tensor() : bucket.state.slots[0];
      kernels::apply(params, bucket.state.anchor, velocity, bucket.wire, *step, squares);
    } else {
      bucket.state.anchor = states[i].anchor;
      bucket.state.slots = states[i].slots;
      kernels::scatter(params, bucket.state.anchor, keep_local);
      if (squares) *squares = kernels::summarize(bucket.wire).sum_squares;
    }
    if (sum_squares) *sum_squares += part;
    bucket.params.impl().push();
    ++bucket.state.round;
  }
}

void Fragment::rollback() {
  for (Bucket& bucket : buckets_) bucket.params.scatter(bucket.state.anchor);
}

void Fragment::broadcast_state(Exchange& exchange, int root) {
  if (exchange.size() == 1) return;
  // Into copies: a failure half way must not leave a new anchor beside an old velocity.
  std::vector<OuterState> states;
  for (const Bucket& bucket : buckets_) {
    const OuterState& state = states.emplace_back(copy_of(bucket.state));
    Communicator& comm = exchange.from(state.anchor.device());
    comm.broadcast(state.anchor, root).wait();
    for (const Tensor& slot : state.slots) comm.broadcast(slot, root).wait();
  }
  for (size_t i = 0; i < states.size(); ++i) buckets_[i].state = std::move(states[i]);
}

void Fragment::share_anchors(Exchange& exchange, const std::vector<Tensor>& of) {
  if (exchange.size() == 1) return;
  const Places found = places(*this);
  for (const Tensor& param : of) {
    const auto& [bucket, offset] = found.at(param.unsafeGetTensorImpl());
    const Tensor anchor = bucket->state.anchor.narrow(0, offset, param.numel());
    exchange.from(anchor.device()).broadcast(anchor, 0).wait();
  }
}

bool Fragment::holds(const std::vector<Tensor>& params) const {
  return std::equal(params.begin(), params.end(), params_.begin(), params_.end(),
                    [](const Tensor& a, const Tensor& b) { return a.is_same(b); });
}

uint64_t Fragment::fingerprint() const {
  uint64_t print = 0;
  for (const Bucket& bucket : buckets_) print = joined(print, kernels::summarize(bucket.state.anchor).fingerprint);
  return print;
}

void Fragment::set_rounds(int64_t rounds) {
  for (Bucket& bucket : buckets_) bucket.state.round = rounds;
}

int64_t Fragment::numel() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.params.numel();
  return sum;
}

int64_t Fragment::wire_bytes() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += static_cast<int64_t>(bucket.wire.nbytes());
  return sum;
}

std::vector<Tensor> Fragment::anchors() const {
  const Places found = places(*this);
  std::vector<Tensor> copies;
  for (const Tensor& param : params_) {
    const auto& [bucket, offset] = found.at(param.unsafeGetTensorImpl());
    copies.push_back(bucket->state.anchor.narrow(0, offset, param.numel()).view(param.sizes()).clone());
  }
  return copies;
}

}  // namespace outerloop::round
