#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include <outerloop/version.hpp>

#include "optimizer/admit.hpp"
#include "optimizer/impl.hpp"
#include "outer/exact.hpp"

namespace outerloop {

namespace {

std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(const std::unique_ptr<Optimizer>& inner) {
  return inner ? inner->defaults().clone() : nullptr;
}

const char* name(Start start) {
  return start == Start::broadcast ? "broadcast" : start == Start::verify ? "verify" : "trust";
}

}  // namespace

// ---- construction: replicas agree on what they are about to do ----

OuterLoopOptimizer::OuterLoopOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<Communicator> comm,
                                       std::shared_ptr<const OuterRule> rule, int64_t sync_every, Streaming streaming,
                                       SyncOptions sync)
    : Optimizer(optimizer::admit(inner, comm, rule, sync_every, streaming, sync), defaults_of(inner)) {
  // The base class merges options with defaults and loses values that equal libtorch's own; take them as they are.
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(inner->param_groups()[i].options().clone());
  }
  optimizer::Schedule schedule(sync_every, streaming.fragments.count(), streaming.delay);
  impl_.reset(new Impl{std::move(inner), std::move(rule), sync_every, std::move(streaming), std::move(sync),
                       round::Exchange(std::move(comm)), std::move(schedule)});
  impl_->agree(param_groups_);
}

OuterLoopOptimizer::OuterLoopOptimizer(OuterLoopOptimizer&&) noexcept = default;
OuterLoopOptimizer& OuterLoopOptimizer::operator=(OuterLoopOptimizer&&) noexcept = default;
OuterLoopOptimizer::~OuterLoopOptimizer() = default;

std::string OuterLoopOptimizer::Impl::describe(const Groups& groups, const round::Exchange& with) const {
  return c10::str("library outerloop ", version, "\nsync_every ", sync_every, "\nouter rule ", rule->describe(),
                  "\nfragments ", streaming.fragments.describe(), "\ndelay ", streaming.delay, "\nkeep_local ",
                  exact(streaming.keep_local), streaming.eager ? ", eager" : "", "\nstart ", name(sync.start),
                  "\non_abort ", sync.on_abort == OnAbort::rollback ? "rollback" : "keep_local", "\non_mismatch ",
                  sync.on_mismatch == OnMismatch::repair ? "repair" : "fail", "\nlanes ", with.group()->lanes().size(),
                  "\ncodec ", sync.codec->describe(), "\nerror feedback ", optimizer::describe(sync.error_feedback),
                  "\n", optimizer::parameters(groups).size(), " parameters\n", optimizer::describe(groups, sync.names),
                  optimizer::describe_devices(groups, sync.anchor_device));
}

/// Outer state of the trainable parameters; what there is already is taken over.
round::Fragments OuterLoopOptimizer::Impl::fragments_of(const Groups& groups) const {
  return {optimizer::trainable(groups),
          optimizer::slices(groups, sync.names, streaming.fragments),
          rule->slots(),
          sync,
          exchange,
          fragments ? &*fragments : nullptr};
}

/// The same, if it does not hold them already.
std::optional<round::Fragments> OuterLoopOptimizer::Impl::grown_for(const Groups& groups) const {
  if (fragments->holds(optimizer::trainable(groups))) return std::nullopt;
  return fragments_of(groups);
}

/// The replicas have agreed on these groups.
void OuterLoopOptimizer::Impl::take_up(const Groups& groups, round::Fragments state) {
  fragments.emplace(std::move(state));
  description = round::Description(describe(groups, exchange));
  for (const Tensor& param : optimizer::parameters(groups)) met.insert(param.unsafeGetTensorImpl());
  if (!optimizer::same_tensors(groups, inner->param_groups())) optimizer::hand_on_parameters(groups, *inner);
}

void OuterLoopOptimizer::Impl::agree(const Groups& groups) {
  std::vector<Tensor> fresh;
  for (const Tensor& param : optimizer::parameters(groups)) {
    if (!met.contains(param.unsafeGetTensorImpl())) fresh.push_back(param);
  }
  const int64_t rounds = fragments ? fragments->rounds() : 0;
  round::agree(exchange, round::Description(describe(groups, exchange)), fresh, sync, inner_step, rounds);
  take_up(groups, fragments_of(groups));
}

/// Parameters were added, removed, frozen or thawed: the inner optimizer and the outer state follow. Collective.
void OuterLoopOptimizer::Impl::follow_parameters(const Groups& groups) {
  land_all();
  round::or_refuse(exchange.group(), [&] {
    optimizer::check_parameters(groups, sync.names, streaming.fragments);
    if (!optimizer::same_tensors(groups, inner->param_groups())) optimizer::check_takes_parameters(*inner);
    return 0;
  });
  std::vector<Tensor> joining;
  for (const Tensor& param : optimizer::trainable(groups)) {
    const auto same = [&](const Tensor& held) { return held.is_same(param); };
    if (std::none_of(fragments->params().begin(), fragments->params().end(), same)) joining.push_back(param);
  }
  agree(groups);
  // A thawed parameter may have been trained since: all take one anchor for it, and keep their own steps from there.
  fragments->share_anchors(exchange, joining);
}

// ---- steps ----

/// talk(); after a CommError with a new group, if the user makes one.
template <class Talk>
void OuterLoopOptimizer::Impl::recovering(const Groups& groups, const Talk& talk) {
  try {
    talk();
  } catch (const CommError&) {
    drop_flights();
    const auto group = sync.on_comm_error ? sync.on_comm_error() : nullptr;
    if (!group) throw;
    reconnect(group, groups);
  }
}

void OuterLoopOptimizer::Impl::check_no_callback() const {
  TORCH_CHECK(!in_callback,
              "weight and commit_if are asked in the middle of a round: they must not call the optimizer");
}

void OuterLoopOptimizer::Impl::hand_on(const Groups& groups) {
  check_no_callback();
  while (!optimizer::same_sizes(groups, inner->param_groups())) recovering(groups, [&] { follow_parameters(groups); });
  optimizer::hand_on_options(groups, *inner);
}

Tensor OuterLoopOptimizer::step(LossClosure closure) {
  impl_->hand_on(param_groups_);
  Tensor loss = impl_->inner->step(std::move(closure));
  impl_->advance(param_groups_);
  impl_->rethrow();
  return loss;
}

void OuterLoopOptimizer::skip_step() {
  impl_->hand_on(param_groups_);
  impl_->advance(param_groups_);
  impl_->rethrow();
}

void OuterLoopOptimizer::sync() {
  const at::NoGradGuard no_grad;
  impl_->hand_on(param_groups_);
  impl_->recovering(param_groups_, [&] {
    impl_->land_all();
    for (size_t f = 0; f < impl_->fragments->size(); ++f) {
      impl_->send(f, param_groups_, true);
      impl_->land();
    }
  });
  impl_->rethrow();
}

void OuterLoopOptimizer::drain() {
  const at::NoGradGuard no_grad;
  impl_->check_no_callback();
  impl_->recovering(param_groups_, [&] { impl_->land_all(); });
  impl_->rethrow();
}

void OuterLoopOptimizer::Impl::advance(const Groups& groups) {
  ++inner_step;
  const auto fragment = schedule.sent_after(inner_step);
  if (!fragment && !due()) return;
  const at::NoGradGuard no_grad;
  recovering(groups, [&] {
    if (fragment) send(*fragment, groups, streaming.delay == 0);
    const bool eager = fragment && streaming.eager;
    if (eager) round::keep_share(flights.back(), (*fragments)[*fragment]);
    if (fragment && streaming.delay > 0) depart(flights.back());
    const round::Share* const newest = eager ? &flights.back().share : nullptr;
    if (eager && !due()) round::apply_share(*newest, (*fragments)[*fragment], terms());
    while (due()) land(newest);
  });
}

// ---- what can be asked ----

const Optimizer& OuterLoopOptimizer::inner() const { return *impl_->inner; }
int64_t OuterLoopOptimizer::rounds() const { return impl_->fragments->rounds(); }
bool OuterLoopOptimizer::idle() const { return impl_->flights.empty(); }
int64_t OuterLoopOptimizer::local_steps() const { return impl_->inner_step; }

std::vector<Tensor> OuterLoopOptimizer::anchors() const { return impl_->fragments->anchors(); }

}  // namespace outerloop
