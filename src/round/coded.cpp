#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

#include <numeric>

#include "codec/known.hpp"
#include "round/fragment.hpp"

/// Fragments whose deltas travel by a codec, and what error feedback keeps of them.

namespace outerloop::round {

namespace {

/// Draws of each bucket and stage are their own, and those of a million shards.
uint64_t key_of(const Coded& coded, size_t stage) { return coded.key + (uint64_t{stage} << 20); }

/// Whether a wire that a codec of the library's made of finite numbers can be read: float16 ends at 65504.
bool readable(const Codec& codec, const CodedWire& wire, const Tensor& into) {
  if (!codec::known(codec)) return true;
  try {
    wire.decode(codec, into);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

Coded Fragment::take_coded(const Exchange& exchange) {
  if (!codec_) return {};
  const int ranks = exchange.size(), rank = exchange.rank();
  while (!spare_coded_.empty()) {
    Coded coded = std::move(spare_coded_.back());
    spare_coded_.pop_back();
    if (coded.ranks == ranks && coded.rank == rank) return coded;  // of this group, not of an earlier one
  }
  Coded coded{.codec = codec_, .ranks = ranks, .rank = rank};
  for (const Bucket& bucket : buckets_) {
    auto& made = coded.buckets.emplace_back();
    if (bucket.state.anchor.scalar_type() != at::kFloat) continue;
    made.emplace(Coded::OfBucket{CodedWire(*codec_, bucket.params.numel(), ranks, rank), {}});
    if (!feedback_) continue;
    made->next = at::empty_like(bucket.residuals.own);
    made->owner.decay = feedback_->decay;
    const Shards& shards = made->wire.shards();
    if (shards.count > 1) made->owner.next = at::empty_like(shards.of(made->next, rank));
  }
  return coded;
}

void Fragment::give_back(Coded coded) {
  if (!coded.buckets.empty()) spare_coded_.push_back(std::move(coded));
}

kernels::Summary Fragment::send(const Wires& wires, Coded& coded, double weight) {
  RECORD_FUNCTION("outerloop::send", {});
  kernels::Summary sum;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    auto& of = coded.buckets[i];
    const uint64_t key = key_of(coded, 2 * i);
    if (of) of->owner.residual = bucket.residuals.owner;
    if (of && of->wire.fused() && bucket.params.device().is_cpu()) {
      join(sum, kernels::send(bucket.params.impl().pull(), bucket.state.anchor, of->wire.rows(key),
                              {bucket.residuals.own, of->next, feedback_ ? feedback_->decay : 0}));
      of->wire.have_encoded();
      continue;
    }
    const Tensor& sent = wires[i];
    kernels::Summary delta = kernels::send(bucket.params.impl().pull(), bucket.state.anchor, sent, of ? 1 : weight);
    if (of && feedback_) {
      kernels::step(sent, {}, bucket.residuals.own.to(at::kFloat), {.lr = -feedback_->decay});
      delta.non_finite = kernels::summarize(sent).non_finite;
    }
    if (of && delta.non_finite == 0) {
      const Tensor arrives = at::empty_like(sent);
      of->wire.encode(*codec_, sent, key);
      if (!readable(*codec_, of->wire, arrives)) {
        delta.non_finite = 1;
      } else if (feedback_) {
        of->wire.decode(*codec_, arrives);
        at::sub_out(of->next, sent, arrives);
      }
    }
    join(sum, delta);
  }
  return sum;
}

std::vector<bool> Fragment::decode(const Wires& wires, const Coded& coded, bool rule_is_known) const {
  std::vector<bool> stay(buckets_.size(), false);
  for (size_t i = 0; i < coded.buckets.size(); ++i) {
    if (!coded.buckets[i] || !coded.buckets[i]->wire.fused()) continue;
    stay[i] = rule_is_known && buckets_[i].params.device().is_cpu();
    if (!stay[i]) coded.buckets[i]->wire.decode(*coded.codec, wires[i]);
  }
  return stay;
}

int average(const Wires& wires, Coded& coded, Exchange& exchange, const std::vector<double>& weights,
            std::exception_ptr& error) {
  const double total_weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  int failed = -1;
  for (size_t i = 0; i < wires.size() && failed < 0; ++i) {
    if (auto& of = coded.buckets[i]) {
      failed = of->wire.average(*coded.codec, exchange.from(wires[i].device()), weights, of->owner,
                                key_of(coded, 2 * i + 1), wires[i], error);
    } else {
      reduce({wires[i]}, exchange);
      wires[i].mul_(1 / total_weight);
    }
  }
  return failed;
}

int64_t bytes_sent(const Wires& wires, const Coded& coded, int replicas) {
  int64_t sum = 0;
  for (size_t i = 0; i < wires.size(); ++i) {
    sum += coded.buckets[i] ? coded.buckets[i]->wire.bytes_sent() : bytes_sent({wires[i]}, replicas);
  }
  return sum;
}

void Fragment::keep_residuals(Coded& coded, bool counted) {
  if (!feedback_) return;
  for (size_t i = 0; i < coded.buckets.size(); ++i) {
    auto& of = coded.buckets[i];
    if (!of) continue;
    codec::Residuals& residuals = buckets_[i].residuals;
    residuals.ranks = coded.ranks;
    residuals.rank = coded.rank;
    if (counted) std::swap(residuals.own, of->next);
    if (!of->owner.next.defined()) continue;
    if (!residuals.owner.defined()) residuals.owner = at::empty_like(of->owner.next);
    std::swap(residuals.owner, of->owner.next);
    residuals.owner_begin = of->wire.shards().begin(coded.rank);
  }
}

}  // namespace outerloop::round
