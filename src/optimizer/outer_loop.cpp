#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include <outerloop/version.hpp>

#include "optimizer/impl.hpp"
#include "outer/exact.hpp"
#include "params/check.hpp"

namespace outerloop {

namespace {

void check_parameters(const Groups& groups, const std::vector<std::string>& names) {
  params::check(optimizer::parameters(groups), names);
  TORCH_CHECK(!optimizer::trainable(groups).empty(), "no parameters to train: the inner optimizer has ",
              optimizer::parameters(groups).size(), ", none of which requires grad");
}

void check_anchor_device(const SyncOptions& sync, const Groups& groups) {
  if (!sync.anchor_device || sync.anchor_device->is_cpu()) return;
  const at::Device wanted = *sync.anchor_device;
  for (const Tensor& param : optimizer::trainable(groups)) {
    const at::Device device = param.device();
    TORCH_CHECK(wanted == device || wanted == at::Device(device.type()), "anchor_device is ", wanted,
                " where a parameter is on ", device, "; it must be cpu, or the device of all parameters");
  }
}

/// 0 for options that have no lr.
double lr_of(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return 0;
  }
}

/// The groups of an acceptable inner optimizer. What is not acceptable is told to the other replicas too.
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
    const Groups& groups = inner->param_groups();
    const size_t count = optimizer::parameters(groups).size();
    TORCH_CHECK(count > 0, "no parameters: the inner optimizer has none");
    TORCH_CHECK(sync.names.empty() || sync.names.size() == count, "names has ", sync.names.size(), " entries for ",
                count, " parameters");
    for (const auto& group : groups) {
      const double lr = lr_of(group.options());
      TORCH_CHECK(std::isfinite(lr) && lr >= 0, "the inner optimizer's lr must be finite and >= 0, got ", lr);
    }
    check_parameters(groups, sync.names);
    check_anchor_device(sync, groups);
    optimizer::slices(groups, sync.names, streaming.fragments);
    return &groups;
  });
}

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
    : Optimizer(admit(inner, comm, rule, sync_every, streaming, sync), defaults_of(inner)) {
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

std::string OuterLoopOptimizer::Impl::describe(const Groups& groups) const {
  return c10::str("library outerloop ", version, "\nsync_every ", sync_every, "\nouter rule ", rule->describe(),
                  "\nfragments ", streaming.fragments.describe(), "\ndelay ", streaming.delay, "\nkeep_local ",
                  exact(streaming.keep_local), "\nstart ", name(sync.start), "\non_abort ",
                  sync.on_abort == OnAbort::rollback ? "rollback" : "keep_local", "\non_mismatch ",
                  sync.on_mismatch == OnMismatch::repair ? "repair" : "fail", "\n",
                  optimizer::parameters(groups).size(), " parameters\n", optimizer::describe(groups, sync.names),
                  optimizer::describe_devices(groups, sync.anchor_device));
}

/// Outer state of the trainable parameters; what there is already is taken over.
round::Fragments OuterLoopOptimizer::Impl::fragments_of(const Groups& groups) const {
  return {optimizer::trainable(groups), optimizer::slices(groups, sync.names, streaming.fragments), rule->slots(),
          sync.anchor_device, fragments ? &*fragments : nullptr};
}

void OuterLoopOptimizer::Impl::agree(const Groups& groups) {
  std::vector<Tensor> fresh;
  for (const Tensor& param : optimizer::parameters(groups)) {
    if (!met.contains(param.unsafeGetTensorImpl())) fresh.push_back(param);
  }
  round::Description next(describe(groups));
  round::agree(exchange, next, fresh, sync, inner_step, fragments ? fragments->rounds() : 0);
  fragments.emplace(fragments_of(groups));
  description = std::move(next);
  for (const Tensor& param : fresh) met.insert(param.unsafeGetTensorImpl());
}

/// Parameters were added, removed, frozen or thawed: the inner optimizer and the outer state follow. Collective.
void OuterLoopOptimizer::Impl::follow_parameters(const Groups& groups) {
  land_all();
  round::or_refuse(exchange.group(), [&] {
    check_parameters(groups, sync.names);
    optimizer::slices(groups, sync.names, streaming.fragments);
    if (!optimizer::same_tensors(groups, inner->param_groups())) optimizer::check_takes_parameters(*inner);
    return 0;
  });
  std::vector<Tensor> joining;
  for (const Tensor& param : optimizer::trainable(groups)) {
    const auto same = [&](const Tensor& held) { return held.is_same(param); };
    if (std::none_of(fragments->params().begin(), fragments->params().end(), same)) joining.push_back(param);
  }
  agree(groups);
  if (!optimizer::same_tensors(groups, inner->param_groups())) optimizer::hand_on_parameters(groups, *inner);
  // A thawed parameter may have been trained since: all take one anchor for it, and keep their own steps from there.
  fragments->share_anchors(exchange, joining);
}

// ---- steps ----

/// talk(); after a CommError with a new group, if the user makes one.
template <class Talk>
void OuterLoopOptimizer::Impl::recovering(const Talk& talk) {
  try {
    talk();
  } catch (const CommError&) {
    drop_flights();
    const auto group = sync.on_comm_error ? sync.on_comm_error() : nullptr;
    if (!group) throw;
    reconnect(group);
  }
}

void OuterLoopOptimizer::Impl::hand_on(const Groups& groups) {
  TORCH_CHECK(!in_callback,
              "weight and commit_if are asked in the middle of a round: they must not call the optimizer");
  while (!optimizer::same_sizes(groups, inner->param_groups())) recovering([&] { follow_parameters(groups); });
  optimizer::hand_on_options(groups, *inner);
}

Tensor OuterLoopOptimizer::step(LossClosure closure) {
  impl_->hand_on(param_groups_);
  Tensor loss = impl_->inner->step(std::move(closure));
  impl_->advance(param_groups_);
  return loss;
}

void OuterLoopOptimizer::skip_step() {
  impl_->hand_on(param_groups_);
  impl_->advance(param_groups_);
}

void OuterLoopOptimizer::sync() {
  const at::NoGradGuard no_grad;
  impl_->hand_on(param_groups_);
  impl_->recovering([&] {
    impl_->land_all();
    for (size_t f = 0; f < impl_->fragments->size(); ++f) {
      impl_->send(f, param_groups_);
      impl_->land();
    }
  });
}

void OuterLoopOptimizer::drain() {
  const at::NoGradGuard no_grad;
  impl_->recovering([&] { impl_->land_all(); });
}

void OuterLoopOptimizer::Impl::advance(const Groups& groups) {
  ++inner_step;
  const auto fragment = schedule.sent_after(inner_step);
  const bool due = !flights.empty() && flights.front().report.inner_step + streaming.delay <= inner_step;
  if (!fragment && !due) return;
  const at::NoGradGuard no_grad;
  recovering([&] {
    if (fragment) send(*fragment, groups);
    if (fragment && streaming.delay > 0) depart(flights.back());
    while (!flights.empty() && flights.front().report.inner_step + streaming.delay <= inner_step) land();
  });
}

// ---- rounds: sent, on their way, and landed in the order in which they were sent ----

void OuterLoopOptimizer::Impl::send(size_t fragment, const Groups& groups) {
  if (!fragments->holds(optimizer::trainable(groups))) follow_parameters(groups);
  in_callback = true;
  const auto over = c10::make_scope_exit([this] { in_callback = false; });
  flights.push_back(
      round::send((*fragments)[fragment], fragment, terms(), optimizer::without_grad(groups), exchange.size()));
}

void OuterLoopOptimizer::Impl::depart(round::Flight& flight) {
  std::vector<at::Device> devices{exchange.group()->device()};
  for (const Tensor& wire : flight.wires) devices.push_back(wire.device());
  flight.arrived =
      courier.carry(std::move(devices), [this, &flight] { round::travel(flight, exchange, sync.on_mismatch); });
}

void OuterLoopOptimizer::Impl::land() {
  round::Flight& flight = flights.front();
  round::Fragment& fragment = (*fragments)[flight.fragment];
  const SyncReport report = [&] {
    const auto over = c10::make_scope_exit([&] {
      fragment.give_back(std::move(flight.wires));
      flights.pop_front();
    });
    const auto begin = std::chrono::steady_clock::now();
    if (flight.arrived.valid()) {
      flight.arrived.get();
    } else {
      round::travel(flight, exchange, sync.on_mismatch);
    }
    flight.report.reduce_wait = std::chrono::steady_clock::now() - begin;
    flight.report.staleness = inner_step - flight.report.inner_step;
    if (flight.verdict.action == round::Verdict::Action::repair) wait_for_courier();
    return round::land(flight, fragment, exchange, terms());
  }();
  if (sync.on_sync) sync.on_sync(report);
}

void OuterLoopOptimizer::Impl::land_all() {
  while (!flights.empty()) land();
}

/// Until it has nothing to do.
void OuterLoopOptimizer::Impl::wait_for_courier() {
  if (!flights.empty() && flights.back().arrived.valid()) flights.back().arrived.wait();
}

/// After a failure: what is on its way fails as well, or has arrived here and not elsewhere.
void OuterLoopOptimizer::Impl::drop_flights() {
  wait_for_courier();
  for (round::Flight& flight : flights) (*fragments)[flight.fragment].give_back(std::move(flight.wires));
  flights.clear();
}

// ---- what can be asked ----

const Optimizer& OuterLoopOptimizer::inner() const { return *impl_->inner; }
int64_t OuterLoopOptimizer::rounds() const { return impl_->fragments->rounds(); }
bool OuterLoopOptimizer::idle() const { return impl_->flights.empty(); }
int64_t OuterLoopOptimizer::local_steps() const { return impl_->inner_step; }

std::vector<Tensor> OuterLoopOptimizer::anchors() const { return impl_->fragments->anchors(); }

}  // namespace outerloop
