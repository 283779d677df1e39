#include "checkpoint/archive.hpp"

#include <c10/util/StringUtil.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <sstream>

namespace outerloop::checkpoint {

namespace {

constexpr const char* format = "outerloop-archive/3";

template <class Value>
Value get(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value)) throw CheckpointError("the checkpoint has no '" + key + "'");
  return value.to<Value>();
}

/// How many there are of something, of which a checkpoint holds no more than that.
size_t count(torch::serialize::InputArchive& archive, const std::string& key) {
  const auto value = get<int64_t>(archive, key);
  if (value < 0 || value > 1 << 20) throw CheckpointError(c10::str("the checkpoint is damaged: ", key, " is ", value));
  return static_cast<size_t>(value);
}

/// Of one bucket. Flat vectors may be missing: without error feedback both are, the owner's before the first round too.
void write(torch::serialize::OutputArchive& archive, const std::string& bucket, const codec::Residuals& residuals) {
  archive.write(bucket + "_residual_of", c10::IValue(std::vector<int64_t>{residuals.ranks, residuals.rank}));
  archive.write(bucket + "_residual_begin", c10::IValue(residuals.owner_begin));
  const auto one = [&](const std::string& key, const Tensor& flat) {
    archive.write(key + "_kept", c10::IValue(flat.defined()));
    if (flat.defined()) archive.write(key, flat.cpu());
  };
  one(bucket + "_residual", residuals.own);
  one(bucket + "_residual_owner", residuals.owner);
}

codec::Residuals read_residuals(torch::serialize::InputArchive& archive, const std::string& bucket) {
  const auto of = get<std::vector<int64_t>>(archive, bucket + "_residual_of");
  if (of.size() != 2 || of[0] < 1 || of[1] < 0 || of[1] >= of[0]) {
    throw CheckpointError(c10::str("the checkpoint is damaged: ", bucket, "_residual_of is ", of));
  }
  const auto one = [&](const std::string& key) {
    Tensor flat;
    if (get<bool>(archive, key + "_kept")) archive.read(key, flat);
    return flat;
  };
  return {one(bucket + "_residual"), one(bucket + "_residual_owner"), get<int64_t>(archive, bucket + "_residual_begin"),
          static_cast<int>(of[0]), static_cast<int>(of[1])};
}

void check_same(const std::string& what, const std::string& saved, const std::string& present) {
  if (saved != present) {
    throw CheckpointError(c10::str("the checkpoint has ", what, " ", saved, " where the optimizer has ", present));
  }
}

void check_same_lines(const std::string& saved, const std::string& present) {
  std::istringstream saved_lines(saved), present_lines(present);
  for (std::string a, b; saved_lines || present_lines;) {
    if (!std::getline(saved_lines, a)) a = "no more";
    if (!std::getline(present_lines, b)) b = "no more";
    if (!saved_lines && !present_lines) return;
    if (a != b) throw CheckpointError(c10::str("the checkpoint has ", a, " where the optimizer has ", b));
  }
}

void check_same_vector(const std::string& what, const Tensor& saved, const Tensor& present) {
  check_same(what, c10::str(saved.scalar_type(), saved.sizes()), c10::str(present.scalar_type(), present.sizes()));
}

void check_fits(const codec::Residuals& saved, const codec::Residuals& present) {
  check_same("residuals:", saved.own.defined() ? "kept" : "none", present.own.defined() ? "kept" : "none");
  if (!saved.own.defined()) return;
  check_same_vector("a residual", saved.own, present.own);
  if (!saved.owner.defined()) return;
  const bool inside = saved.owner.dim() == 1 && saved.owner_begin >= 0 &&
                      saved.owner_begin <= saved.own.numel() - saved.owner.numel() &&
                      saved.owner.scalar_type() == saved.own.scalar_type();
  if (!inside) {
    throw CheckpointError(c10::str("the checkpoint is damaged: an owner's residual of ", saved.owner.sizes(), " from ",
                                   saved.owner_begin, " in ", saved.own.numel()));
  }
}

}  // namespace

void write(torch::serialize::OutputArchive& archive, const Snapshot& snapshot, const torch::optim::Optimizer& inner) {
  archive.write("format", c10::IValue(std::string(format)));
  archive.write("inner_type", c10::IValue(snapshot.inner_type));
  archive.write("rule", c10::IValue(snapshot.rule));
  archive.write("fragments", c10::IValue(snapshot.fragments));
  archive.write("parameters", c10::IValue(snapshot.parameters));
  archive.write("feedback", c10::IValue(snapshot.feedback));
  archive.write("inner_step", c10::IValue(snapshot.inner_step));
  archive.write("buckets", c10::IValue(static_cast<int64_t>(snapshot.states.size())));
  for (size_t i = 0; i < snapshot.states.size(); ++i) {
    const OuterState& state = snapshot.states[i];
    const std::string bucket = c10::str("bucket", i);
    // From the CPU: what was saved on a GPU would be loaded on that very one, if there is such, before it is copied.
    archive.write(bucket + "_round", c10::IValue(state.round));
    archive.write(bucket + "_anchor", state.anchor.cpu());
    archive.write(bucket + "_slots", c10::IValue(static_cast<int64_t>(state.slots.size())));
    for (size_t j = 0; j < state.slots.size(); ++j) archive.write(c10::str(bucket, "_slot", j), state.slots[j].cpu());
    write(archive, bucket, snapshot.residuals[i]);
  }
  torch::serialize::OutputArchive nested(archive.compilation_unit());
  inner.save(nested);
  archive.write("inner", nested);
}

Snapshot read(torch::serialize::InputArchive& archive) {
  c10::IValue found;
  if (!archive.try_read("format", found) || !found.isString()) {
    throw CheckpointError(
        "this is not a checkpoint of an outerloop optimizer; a bare inner optimizer's loads into that");
  }
  check_same("format", found.toStringRef(), format);
  try {
    Snapshot snapshot{get<std::string>(archive, "inner_type"),
                      get<std::string>(archive, "rule"),
                      get<std::string>(archive, "fragments"),
                      get<std::string>(archive, "parameters"),
                      get<std::string>(archive, "feedback"),
                      get<int64_t>(archive, "inner_step"),
                      {},
                      {}};
    snapshot.states.resize(count(archive, "buckets"));
    for (size_t i = 0; i < snapshot.states.size(); ++i) {
      OuterState& state = snapshot.states[i];
      const std::string bucket = c10::str("bucket", i);
      state.round = get<int64_t>(archive, bucket + "_round");
      archive.read(bucket + "_anchor", state.anchor);
      state.slots.resize(count(archive, bucket + "_slots"));
      for (size_t j = 0; j < state.slots.size(); ++j) archive.read(c10::str(bucket, "_slot", j), state.slots[j]);
      snapshot.residuals.push_back(read_residuals(archive, bucket));
    }
    return snapshot;
  } catch (const CheckpointError&) {
    throw;
  } catch (const c10::Error& error) {
    throw CheckpointError(c10::str("the checkpoint is damaged: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw CheckpointError(c10::str("the checkpoint is damaged: ", error.what()));
  }
}

void check_fits(const Snapshot& saved, const Snapshot& present) {
  check_same("inner optimizer", saved.inner_type, present.inner_type);
  check_same("outer rule", saved.rule, present.rule);
  check_same("fragments", saved.fragments, present.fragments);
  check_same_lines(saved.parameters, present.parameters);
  check_same("error feedback:", saved.feedback, present.feedback);
  check_same("buckets:", c10::str(saved.states.size()), c10::str(present.states.size()));
  for (size_t i = 0; i < saved.states.size(); ++i) {
    const OuterState &a = saved.states[i], &b = present.states[i];
    check_same_vector("an anchor", a.anchor, b.anchor);
    check_same("an outer rule with slots:", c10::str(a.slots.size()), c10::str(b.slots.size()));
    for (size_t j = 0; j < a.slots.size(); ++j) check_same_vector("a slot", a.slots[j], b.slots[j]);
    check_fits(saved.residuals[i], present.residuals[i]);
  }
}

void read_inner(torch::serialize::InputArchive& archive, torch::optim::Optimizer& inner) {
  // libtorch keeps state that the archive lacks and stops half way at an error; so the old state is put aside first.
  auto state = std::move(inner.state());
  inner.state().clear();
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (const auto& group : inner.param_groups()) options.push_back(group.options().clone());
  try {
    torch::serialize::InputArchive nested;
    if (!archive.try_read("inner", nested)) throw CheckpointError("the checkpoint has no inner optimizer");
    inner.load(nested);
  } catch (const std::exception& error) {
    inner.state() = std::move(state);
    for (size_t i = 0; i < options.size(); ++i) inner.param_groups()[i].set_options(std::move(options[i]));
    throw CheckpointError(c10::str("the checkpoint's inner optimizer does not load: ", error.what()));
  }
}

}  // namespace outerloop::checkpoint
