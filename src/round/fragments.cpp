#include "round/fragments.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>

namespace outerloop::round {

namespace {

/// A stretch of a parameter, and where it is in the state of a bucket.
struct Place {
  const Bucket* bucket;
  int64_t first, numel, offset;
};
using Places = std::unordered_multimap<const void*, Place>;

Places places(const std::vector<Fragment>& fragments) {
  Places found;
  for (const Fragment& fragment : fragments) {
    for (const Bucket& bucket : fragment.buckets()) {
      int64_t offset = 0;
      for (const ParamSlice& slice : bucket.params.impl().slices) {
        found.emplace(slice.param.unsafeGetTensorImpl(), Place{&bucket, slice.first, slice.numel, offset});
        offset += slice.numel;
      }
    }
  }
  return found;
}

/// visit(place) for all stretches of a parameter.
template <class Visit>
void for_each_place(const Places& places, const Tensor& param, const Visit& visit) {
  const auto [begin, end] = places.equal_range(param.unsafeGetTensorImpl());
  for (auto at = begin; at != end; ++at) visit(at->second);
}

/// to <- from, in the elements of the parameter that both hold.
void take_over(const Place& to, const Place& from) {
  const int64_t first = std::max(to.first, from.first);
  const int64_t count = std::min(to.first + to.numel, from.first + from.numel) - first;
  if (count <= 0) return;
  const auto copy = [&](const Tensor& into, const Tensor& old) {
    into.narrow(0, to.offset + first - to.first, count).copy_(old.narrow(0, from.offset + first - from.first, count));
  };
  const OuterState &state = to.bucket->state, &old = from.bucket->state;
  copy(state.anchor, old.anchor);
  for (size_t i = 0; i < state.slots.size(); ++i) copy(state.slots[i], old.slots[i]);
  const codec::Residuals &owed = to.bucket->residuals, &was_owed = from.bucket->residuals;
  if (owed.own.defined() && was_owed.own.defined()) copy(owed.own, was_owed.folded());
}

}  // namespace

Fragments::Fragments(std::vector<Tensor> params, const std::vector<std::vector<ParamSlice>>& slices, int slots,
                     const SyncOptions& sync, const Exchange& exchange, const Fragments* before)
    : params_(std::move(params)) {
  for (const auto& of_one : slices) each_.emplace_back(of_one, slots, sync, exchange);
  if (!before) return;
  const Places now = places(each_), old = places(before->each_);
  for (const auto& [param, to] : now) {
    const auto [begin, end] = old.equal_range(param);
    for (auto from = begin; from != end; ++from) take_over(to, from->second);
  }
  for (size_t f = 0; f < each_.size(); ++f) each_[f].set_rounds(before->each_[f].rounds());
}

bool Fragments::holds(const std::vector<Tensor>& params) const {
  return std::equal(params.begin(), params.end(), params_.begin(), params_.end(),
                    [](const Tensor& a, const Tensor& b) { return a.is_same(b); });
}

int64_t Fragments::rounds() const {
  int64_t sum = 0;
  for (const Fragment& fragment : each_) sum += fragment.rounds();
  return sum;
}

uint64_t Fragments::fingerprint() const {
  uint64_t print = 0;
  for (const Fragment& fragment : each_) print = followed(print, fragment.fingerprint());
  return print;
}

std::vector<Tensor> Fragments::anchors() const {
  const Places found = places(each_);
  std::vector<Tensor> copies;
  for (const Tensor& param : params_) {
    Tensor flat;
    for_each_place(found, param, [&](const Place& place) {
      const Tensor part = place.bucket->state.anchor.narrow(0, place.offset, place.numel);
      if (!flat.defined()) flat = at::empty({param.numel()}, part.options());
      flat.narrow(0, place.first, place.numel).copy_(part);
    });
    const bool twice = param.scalar_type() == at::kDouble;
    if (!flat.defined()) flat = at::empty({0}, param.options().dtype(twice ? at::kDouble : at::kFloat));
    copies.push_back(flat.view(param.sizes()));
  }
  return copies;
}

void Fragments::broadcast_state(Exchange& exchange, int root) {
  if (exchange.size() == 1) return;
  const Tensor counts = at::empty({static_cast<int64_t>(size())}, at::TensorOptions().dtype(at::kLong));
  int64_t* const rounds = counts.mutable_data_ptr<int64_t>();
  for (size_t f = 0; f < size(); ++f) rounds[f] = each_[f].rounds();
  exchange.from(at::kCPU).broadcast(counts, root).wait();
  // Taken when all is there: a failure half way must not leave new state beside old.
  std::vector<std::vector<OuterState>> states;
  for (const Fragment& fragment : each_) states.push_back(fragment.state_of(exchange, root));
  for (size_t f = 0; f < size(); ++f) {
    each_[f].take(std::move(states[f]));
    each_[f].set_rounds(rounds[f]);
  }
}

void Fragments::share_anchors(Exchange& exchange, const std::vector<Tensor>& of) {
  if (exchange.size() == 1) return;
  const Places found = places(each_);
  for (const Tensor& param : of) {
    std::vector<Place> stretches;
    for_each_place(found, param, [&](const Place& place) { stretches.push_back(place); });
    std::sort(stretches.begin(), stretches.end(), [](const Place& a, const Place& b) { return a.first < b.first; });
    for (const Place& place : stretches) {
      const Tensor anchor = place.bucket->state.anchor.narrow(0, place.offset, place.numel);
      exchange.from(anchor.device()).broadcast(anchor, 0).wait();
    }
  }
}

}  // namespace outerloop::round
