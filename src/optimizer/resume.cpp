#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "optimizer/admit.hpp"
#include "optimizer/impl.hpp"

/// Going on after a failure, with a new group, or after a stop, from a checkpoint.

namespace outerloop {

// ---- a new group after a failure ----

void OuterLoopOptimizer::reconnect(std::shared_ptr<Communicator> comm) {
  impl_->check_no_callback();
  impl_->reconnect(std::move(comm), param_groups_);
}

void OuterLoopOptimizer::Impl::reconnect(std::shared_ptr<Communicator> comm, const Groups& groups) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(comm, "reconnect: comm is null");
  round::check_device(*comm);
  drop_flights();
  round::Exchange next(std::move(comm));
  // Parameters that were about to join when the group failed may have done so on other replicas: they join here.
  std::optional<round::Fragments> grown = grown_for(groups);
  round::Fragments& all = grown ? *grown : *fragments;
  round::Description now(describe(groups, next));
  round::Header mine = round::header(round::Talk::reconnect, terms(), all.rounds(), 0);
  mine.description = now.digest;
  mine.fingerprint = all.fingerprint();
  const round::Meeting meeting = next.meet(mine, now.text);
  if (std::string reason = round::out_of_step(meeting.headers); !reason.empty()) throw ConsistencyError(reason);
  if (!meeting.texts.empty()) throw ConsistencyError("replicas cannot train together: " + round::explain(meeting));
  const int root = round::most_advanced(meeting.headers);
  const round::Header& leader = meeting.headers[root];
  all.broadcast_state(next, root);
  if (mine.round != leader.round || mine.fingerprint != leader.fingerprint) {
    for (round::Fragment& fragment : all.each()) fragment.rollback();
  }
  for (round::Fragment& fragment : all.each()) {
    for (round::Bucket& bucket : fragment.buckets()) bucket.residuals.follow(next.size(), next.rank());
  }
  exchange = std::move(next);
  description = std::move(now);
  if (grown) take_up(groups, std::move(*grown));
  inner_step = leader.inner_step;
}

// ---- checkpoints ----

checkpoint::Snapshot OuterLoopOptimizer::Impl::snapshot(const Groups& groups, const round::Fragments& of) const {
  checkpoint::Snapshot snapshot{c10::demangle(typeid(*inner).name()),
                                rule->describe(),
                                streaming.fragments.describe(),
                                optimizer::describe(groups, sync.names),
                                optimizer::describe(sync.error_feedback),
                                inner_step,
                                {},
                                {}};
  for (const round::Fragment& fragment : of.each()) {
    for (const round::Bucket& bucket : fragment.buckets()) {
      snapshot.states.push_back(bucket.state);
      snapshot.residuals.push_back(bucket.residuals);
    }
  }
  return snapshot;
}

void OuterLoopOptimizer::save(torch::serialize::OutputArchive& archive) const {
  TORCH_CHECK(idle(), "save: ", impl_->flights.size(), " rounds are under way; call drain() before, on all replicas");
  TORCH_CHECK(impl_->fragments->holds(optimizer::trainable(param_groups_)),
              "parameters were added, removed, frozen or thawed since the last round; save after the next one");
  if (!optimizer::same_tensors(param_groups_, impl_->inner->param_groups())) {
    optimizer::hand_on_parameters(param_groups_, *impl_->inner);
  }
  optimizer::hand_on_options(param_groups_, *impl_->inner);
  checkpoint::write(archive, impl_->snapshot(param_groups_, *impl_->fragments), *impl_->inner);
}

void OuterLoopOptimizer::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  impl.check_no_callback();
  TORCH_CHECK(idle(), "load: ", impl.flights.size(), " rounds are under way; call drain() before, on all replicas");
  const checkpoint::Snapshot saved = checkpoint::read(archive);
  // Groups may have been added since the last step, to match the checkpoint: the outer state grows to hold them.
  std::optional<round::Fragments> grown = impl.grown_for(param_groups_);
  checkpoint::check_fits(saved, impl.snapshot(param_groups_, grown ? *grown : *impl.fragments));
  if (!optimizer::same_tensors(param_groups_, impl.inner->param_groups())) {
    optimizer::hand_on_parameters(param_groups_, *impl.inner);
  }
  checkpoint::read_inner(archive, *impl.inner);
  if (grown) impl.take_up(param_groups_, std::move(*grown));
  optimizer::hand_on_options(impl.inner->param_groups(), *this);
  impl.inner_step = saved.inner_step;
  auto from = saved.states.begin();
  auto owed = saved.residuals.begin();
  for (round::Fragment& fragment : impl.fragments->each()) {
    for (round::Bucket& bucket : fragment.buckets()) {
      fragment.set_rounds(from->round);
      bucket.state.anchor.copy_(from->anchor);
      for (size_t j = 0; j < bucket.state.slots.size(); ++j) bucket.state.slots[j].copy_(from->slots[j]);
      ++from;
      bucket.residuals = *owed++;
      bucket.residuals.follow(impl.exchange.size(), impl.exchange.rank());
    }
  }
}

}  // namespace outerloop
