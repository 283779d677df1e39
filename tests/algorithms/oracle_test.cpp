#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "algorithms/quadratic.hpp"

// Trajectories of torchft 0.2.0 on small problems (tests/data): after every inner step, parameters and anchors.

namespace outerloop {
namespace {

using nlohmann::json;

constexpr double tolerance = 2e-6;  // float32 rounds differently there

json read(const std::string& name) {
  std::ifstream file(OUTERLOOP_SOURCE_DIR "/tests/data/" + name + ".json");
  EXPECT_TRUE(file) << name;
  return json::parse(file);
}

Tensor tensor(const json& values, const json& shape) {
  const auto doubles = values.get<std::vector<double>>();
  return torch::tensor(doubles, torch::kDouble).to(torch::kFloat).view(shape.get<std::vector<int64_t>>());
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const json& inner, const std::vector<Tensor>& params) {
  if (inner["kind"] == "adamw") {
    const auto betas = inner["betas"].get<std::tuple<double, double>>();
    return std::make_unique<torch::optim::AdamW>(params, torch::optim::AdamWOptions(inner["lr"].get<double>())
                                                             .betas(betas)
                                                             .eps(inner["eps"])
                                                             .weight_decay(inner["weight_decay"]));
  }
  if (inner["kind"] == "plain") return std::make_unique<torch::optim::SGD>(params, inner["lr"].get<double>());
  EXPECT_EQ(inner["kind"], "sgd");
  return std::make_unique<torch::optim::SGD>(params, torch::optim::SGDOptions(inner["lr"].get<double>())
                                                         .momentum(inner["momentum"])
                                                         .nesterov(inner["nesterov"])
                                                         .weight_decay(inner["weight_decay"]));
}

FragmentPlan plan(const json& spec) {
  if (!spec.contains("fragments")) return FragmentPlan::whole();
  return FragmentPlan::listed(spec["fragments"].get<std::vector<std::vector<int64_t>>>());
}

std::unique_ptr<OuterLoopOptimizer> make_outer(const json& spec, const std::vector<Tensor>& params,
                                               std::shared_ptr<Communicator> comm) {
  auto inner = make_inner(spec["inner"], params);
  const int64_t sync_every = spec["sync_every"];
  if (spec["algorithm"] == "localsgd") {
    return std::make_unique<LocalSGDOptimizer>(std::move(inner), comm, LocalSGDOptions{.sync_every = sync_every});
  }
  EXPECT_EQ(spec["algorithm"], "diloco");
  const json& outer = spec["outer"];
  return std::make_unique<DiLoCoOptimizer>(
      std::move(inner), comm,
      DiLoCoOptions{.sync_every = sync_every,
                    .outer_lr = outer["lr"],
                    .outer_momentum = outer.value("momentum", 0.0),
                    .nesterov = outer.value("nesterov", true),
                    .streaming = {.fragments = plan(spec),
                                  .delay = spec.value("fragment_sync_delay", int64_t{0}),
                                  .keep_local = spec.value("fragment_update_alpha", 0.0)}});
}

void expect_close(const std::vector<Tensor>& ours, const json& theirs, const json& params, const std::string& where) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const Tensor expected = tensor(theirs[i], params[i]["shape"]);
    EXPECT_LE((ours[i].detach() - expected).abs().max().item<double>(), tolerance)
        << where << ", " << params[i]["name"].get<std::string>();
  }
}

/// The gradient of one parameter in a step: given, or that of a quadratic.
Tensor gradient(const json& gradients, int rank, int step, size_t i, const Tensor& param, const json& shape) {
  if (gradients["kind"] == "explicit") return tensor(gradients["g"][rank][step - 1][i], shape);
  return param.detach() - tensor(gradients["c"][rank][step - 1][i], shape);
}

/// One replica's whole run against the file.
void follow(const json& file, const std::shared_ptr<Communicator>& comm) {
  const json &spec = file["spec"], &expected = file["expected"], &shapes = spec["params"];
  std::vector<Tensor> params;
  for (const auto& p : shapes) params.push_back(testing::parameter(tensor(p["init"], p["shape"])));
  const auto optimizer = make_outer(spec, params, comm);
  const int rank = comm->rank(), steps = spec["steps"];
  const int64_t before = spec.value("start_outer_step", int64_t{0});
  for (int step = 1; step <= steps; ++step) {
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].mutable_grad() = gradient(spec["gradients"], rank, step, i, params[i], shapes[i]["shape"]);
    }
    optimizer->step();
    const std::string where = "rank " + std::to_string(rank) + ", step " + std::to_string(step);
    expect_close(params, expected["params"][rank][step], shapes, where);
    if (!expected["globals"].is_null()) {
      expect_close(optimizer->anchors(), expected["globals"][step], shapes, where + ", anchors");
    }
    EXPECT_EQ(before + optimizer->rounds(), expected["outer_step"][step].get<int64_t>()) << where;
  }
}

class Oracle : public ::testing::TestWithParam<const char*> {};

TEST_P(Oracle, AgreesAfterEveryStepOnEveryRank) {
  const json file = read(GetParam());
  ASSERT_EQ(file["format"], "outerloop-oracle/1");
  ASSERT_GE(file["spec"]["steps"].get<int>(), 15);
  testing::run_ranks(file["spec"]["ranks"].get<int>(), [&](std::shared_ptr<Communicator> comm) { follow(file, comm); });
}

INSTANTIATE_TEST_SUITE_P(Torchft, Oracle,
                         ::testing::Values("diloco_adamw_nesterov", "diloco_sgd_nesterov", "diloco_alpha05",
                                           "localsgd_sgd_momentum", "diloco_2frag_delay1", "torchft_fixture_updates_0",
                                           "torchft_fixture_updates_3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace outerloop
