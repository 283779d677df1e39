#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "optimizer/impl.hpp"

/// Going on after a failure, with a new group, or after a stop, from a checkpoint.

namespace outerloop {

// ---- a new group after a failure ----

void OuterLoopOptimizer::reconnect(std::shared_ptr<Communicator> comm) { impl_->reconnect(std::move(comm)); }

void OuterLoopOptimizer::Impl::reconnect(std::shared_ptr<Communicator> comm) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(comm, "reconnect: comm is null");
  round::check_device(*comm);
  round::Exchange next(std::move(comm));
  round::Header mine = round::header(round::Talk::reconnect, *fragment, terms());
  mine.fingerprint = fragment->fingerprint();
  const round::Meeting meeting = next.meet(mine, description.text);
  if (std::string reason = round::out_of_step(meeting.headers); !reason.empty()) throw ConsistencyError(reason);
  if (!meeting.texts.empty()) throw ConsistencyError("replicas cannot train together: " + round::explain(meeting));
  const int root = round::most_advanced(meeting.headers);
  const round::Header& leader = meeting.headers[root];
  fragment->broadcast_state(next, root);
  if (mine.round != leader.round || mine.fingerprint != leader.fingerprint) fragment->rollback();
  fragment->set_rounds(leader.round);
  inner_step = leader.inner_step;
  exchange = std::move(next);
}

// ---- checkpoints ----

checkpoint::Snapshot OuterLoopOptimizer::Impl::snapshot(const Groups& groups, const round::Fragment& of) const {
  checkpoint::Snapshot snapshot{
      c10::demangle(typeid(*inner).name()), rule->describe(), optimizer::describe(groups, sync.names), inner_step, {}};
  for (const round::Bucket& bucket : of.buckets()) snapshot.states.push_back(bucket.state);
  return snapshot;
}

void OuterLoopOptimizer::save(torch::serialize::OutputArchive& archive) const {
  TORCH_CHECK(impl_->fragment->holds(optimizer::trainable(param_groups_)),
              "parameters were added, removed, frozen or thawed since the last round; save after the next one");
  if (!optimizer::same_tensors(param_groups_, impl_->inner->param_groups())) {
    optimizer::hand_on_parameters(param_groups_, *impl_->inner);
  }
  optimizer::hand_on_options(param_groups_, *impl_->inner);
  checkpoint::write(archive, impl_->snapshot(param_groups_, *impl_->fragment), *impl_->inner);
}

void OuterLoopOptimizer::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  const checkpoint::Snapshot saved = checkpoint::read(archive);
  Impl& impl = *impl_;
  // Groups may have been added since the last step, to match the checkpoint: the outer state grows to hold them.
  std::optional<round::Fragment> grown;
  if (!impl.fragment->holds(optimizer::trainable(param_groups_))) grown = impl.fragment_of(param_groups_);
  checkpoint::check_fits(saved, impl.snapshot(param_groups_, grown ? *grown : *impl.fragment));
  if (!optimizer::same_tensors(param_groups_, impl.inner->param_groups())) {
    optimizer::hand_on_parameters(param_groups_, *impl.inner);
  }
  checkpoint::read_inner(archive, *impl.inner);
  if (grown) {
    impl.fragment = std::move(grown);
    impl.description = round::Description(impl.describe(param_groups_));
    for (const Tensor& param : optimizer::parameters(param_groups_)) impl.met.insert(param.unsafeGetTensorImpl());
  }
  optimizer::hand_on_options(impl.inner->param_groups(), *this);
  impl.inner_step = saved.inner_step;
  std::vector<round::Bucket>& buckets = impl.fragment->buckets();
  for (size_t i = 0; i < buckets.size(); ++i) {
    OuterState& state = buckets[i].state;
    state.round = saved.states[i].round;
    state.anchor.copy_(saved.states[i].anchor);
    for (size_t j = 0; j < state.slots.size(); ++j) state.slots[j].copy_(saved.states[i].slots[j]);
  }
}

}  // namespace outerloop
