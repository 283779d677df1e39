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

/// Draws of each bucket are their own.
uint64_t key_of(const Coded& coded, size_t bucket) { return coded.key + bucket * CodedWire::keys; }

/// delta <- what the wire stands for; false if one of the library's codecs made it of numbers that do not fit it, as
/// beyond 65504 in float16. What a user's own throws goes on.
bool arrives(const Codec& codec, const CodedWire& wire, const Tensor& delta) {
  try {
    wire.decode(codec, delta);
    return true;
  } catch (const c10::Error&) {
    if (!codec::known(codec)) throw;
    return false;
  }
}

}  // namespace

bool Fragment::codes_at_once(const Bucket& bucket) const {
  return codec_ && codec_->reduction() == Reduction::shards && codec::known(*codec_) &&
         bucket.state.anchor.scalar_type() == at::kFloat && bucket.params.device().is_cpu();
}

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
    if (!codes_at_once(bucket)) made->arrives = at::empty_like(bucket.state.anchor);
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
    kernels::Params& params = bucket.params.impl().pull();
    if (auto& of = coded.buckets[i]) {
      of->owner.residual = bucket.residuals.owner;
      join(sum, codes_at_once(bucket) ? code_at_once(bucket, *of, key_of(coded, i))
                                      : code(bucket, wires[i], *of, key_of(coded, i)));
    } else {
      join(sum, kernels::send(params, bucket.state.anchor, wires[i], weight));
    }
  }
  return sum;
}

kernels::Summary Fragment::code_at_once(Bucket& bucket, Coded::OfBucket& of, uint64_t key) const {
  const kernels::Owed owed{bucket.residuals.own, of.next, feedback_ ? feedback_->decay : 0};
  const kernels::Summary delta =
      kernels::send(bucket.params.impl().memory, bucket.state.anchor, of.wire.rows(key), owed);
  of.wire.have_encoded();
  return delta;
}

kernels::Summary Fragment::code(Bucket& bucket, const Tensor& sent, Coded::OfBucket& of, uint64_t key) const {
  kernels::Summary delta = kernels::send(bucket.params.impl().memory, bucket.state.anchor, sent, 1);
  if (feedback_) {
    kernels::step(sent, {}, bucket.residuals.own.to(at::kFloat), {.lr = -feedback_->decay});
    delta.non_finite = kernels::summarize(sent).non_finite;
  }
  if (delta.non_finite > 0) return delta;
  of.wire.encode(*codec_, sent, key);
  if (!arrives(*codec_, of.wire, of.arrives)) {
    delta.non_finite = 1;
  } else if (feedback_) {
    at::sub_out(of.next, sent, of.arrives);
  }
  return delta;
}

std::vector<bool> Fragment::decode(Wires& wires, const Coded& coded, bool rule_is_known) const {
  std::vector<bool> stay(buckets_.size(), false);
  for (size_t i = 0; i < coded.buckets.size(); ++i) {
    if (!coded.buckets[i] || !coded.buckets[i]->wire.fused()) continue;
    stay[i] = rule_is_known && codes_at_once(buckets_[i]);
    if (stay[i]) continue;
    if (!wires[i].defined()) wires[i] = at::empty_like(buckets_[i].state.anchor);
    coded.buckets[i]->wire.decode(*coded.codec, wires[i]);
  }
  return stay;
}

int average(const Wires& wires, Coded& coded, Exchange& exchange, const std::vector<double>& weights,
            std::exception_ptr& error) {
  const double total_weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  int failed = -1;
  for (size_t i = 0; i < wires.size() && failed < 0; ++i) {
    if (auto& of = coded.buckets[i]) {
      failed = of->wire.average(*coded.codec, exchange.from(at::kCPU), weights, of->owner, key_of(coded, i), wires[i],
                                error);
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
    if (counted) std::swap(residuals.own, of->next);
    if (!of->owner.next.defined()) continue;
    if (!residuals.owner.defined()) residuals.owner = at::empty_like(of->owner.next);
    std::swap(residuals.owner, of->owner.next);
    residuals.owner_begin = of->wire.shards().begin(coded.rank);
  }
}

}  // namespace outerloop::round
