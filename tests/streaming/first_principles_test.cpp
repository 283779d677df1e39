#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include <array>
#include <deque>
#include <random>

#include "support/ranks.hpp"
#include "support/tensors.hpp"

/// Every parameter of random runs, computed again in float64 from the definition of Streaming DiLoCo.

namespace outerloop::testing {
namespace {

constexpr int ranks = 2;
constexpr double inner_lr = 0.1;
const std::vector<std::vector<int64_t>> shapes{{4, 5}, {7}, {3, 3}, {30}};

struct Run {
  int64_t sync_every, fragments, delay;
  double outer_lr, momentum, keep_local;
};

/// Where a replica is drawn to in a step, and where all begin: numbers that float32 holds.
double target(int rank, int64_t step, int64_t element) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + 10 * element + rank));
  return static_cast<double>(random() % 64) / 32 - 1;
}
double start(int64_t element) { return static_cast<double>(element % 16) / 8 - 1; }

std::vector<FragmentPlan::Size> sizes() {
  std::vector<FragmentPlan::Size> all;
  for (const auto& shape : shapes) all.push_back({c10::multiply_integers(shape), 4});
  return all;
}

/// The elements of each fragment, counted over all parameters.
std::vector<std::vector<int64_t>> elements(const FragmentPlan& plan) {
  std::vector<int64_t> begins{0};
  for (const auto& size : sizes()) begins.push_back(begins.back() + size.elements);
  std::vector<std::vector<int64_t>> of;
  for (const auto& fragment : plan.cut(sizes())) {
    auto& list = of.emplace_back();
    for (const auto& [parameter, begin, end] : fragment) {
      for (int64_t i = begin; i < end; ++i) list.push_back(begins[parameter] + i);
    }
  }
  return of;
}

/// Both replicas, element by element.
class Reference {
 public:
  Reference(const Run& run, const FragmentPlan& plan) : run_(run), fragments_(elements(plan)) {
    for (const auto& fragment : fragments_) count_ += static_cast<int64_t>(fragment.size());
    for (int64_t i = 0; i < count_; ++i) anchor.push_back(start(i));
    local.fill(anchor);
    velocity_.resize(count_);
  }
  void step(int64_t step) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < count_; ++i) local[rank][i] -= inner_lr * (local[rank][i] - target(rank, step, i));
    }
    for (size_t f = 0; f < fragments_.size(); ++f) {
      if (is_applied_after(f, step + run_.delay)) sent_.push_back({f, step + run_.delay, mean_delta(f)});
    }
    for (; !sent_.empty() && sent_.front().due == step; sent_.pop_front()) apply(sent_.front());
  }
  std::array<std::vector<double>, ranks> local;
  std::vector<double> anchor;

 private:
  struct Sent {
    size_t fragment;
    int64_t due;
    std::vector<double> mean_delta;
  };
  bool is_applied_after(size_t f, int64_t step) const {
    const int64_t n = run_.fragments, first = (run_.sync_every * (static_cast<int64_t>(f) + 1) + n - 1) / n;
    return step >= first && (step - first) % run_.sync_every == 0;
  }
  std::vector<double> mean_delta(size_t f) const {
    std::vector<double> mean;
    for (const int64_t i : fragments_[f]) mean.push_back(anchor[i] - (local[0][i] + local[1][i]) / ranks);
    return mean;
  }
  void apply(const Sent& sent) {
    for (size_t k = 0; k < sent.mean_delta.size(); ++k) {
      const int64_t i = fragments_[sent.fragment][k];
      velocity_[i] = run_.momentum * velocity_[i] + sent.mean_delta[k];
      anchor[i] -= run_.outer_lr * (sent.mean_delta[k] + run_.momentum * velocity_[i]);
      for (auto& params : local) params[i] = anchor[i] + run_.keep_local * (params[i] - anchor[i]);
    }
  }

  Run run_;
  std::vector<std::vector<int64_t>> fragments_;
  int64_t count_ = 0;
  std::vector<double> velocity_;
  std::deque<Sent> sent_;
};

std::vector<Tensor> parameters() {
  std::vector<Tensor> params;
  int64_t element = 0;
  for (const auto& shape : shapes) {
    std::vector<float> values(c10::multiply_integers(shape));
    for (float& value : values) value = static_cast<float>(start(element++));
    params.push_back(parameter(torch::tensor(values).view(shape)));
  }
  return params;
}

void set_gradients(const std::vector<Tensor>& params, int rank, int64_t step) {
  int64_t element = 0;
  for (const Tensor& param : params) {
    std::vector<float> values(param.numel());
    for (float& value : values) value = static_cast<float>(target(rank, step, element++));
    param.mutable_grad() = param.detach() - torch::tensor(values).view(param.sizes());
  }
}

void expect_close(const std::vector<Tensor>& ours, const std::vector<double>& expected, const std::string& where) {
  std::vector<Tensor> flat;
  for (const Tensor& part : ours) flat.push_back(part.detach().view(-1).to(torch::kDouble));
  const double error = (torch::cat(flat) - torch::tensor(expected, torch::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, 1e-5) << where;
}

void follow(const Run& run, const FragmentPlan& plan) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
    Reference reference(run, plan);
    const std::vector<Tensor> params = parameters();
    DiLoCoOptimizer optimizer(torch::optim::SGD(params, inner_lr), comm,
                              {.sync_every = run.sync_every,
                               .outer_lr = run.outer_lr,
                               .outer_momentum = run.momentum,
                               .streaming = {plan, run.delay, run.keep_local}});
    for (int64_t step = 1; step <= 30; ++step) {
      set_gradients(params, comm->rank(), step);
      optimizer.step();
      reference.step(step);
      const std::string where = "sync_every " + std::to_string(run.sync_every) + ", delay " +
                                std::to_string(run.delay) + ", step " + std::to_string(step);
      expect_close(params, reference.local[comm->rank()], where);
      expect_close(optimizer.anchors(), reference.anchor, where + ", anchors");
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST(FirstPrinciples, ExplainEveryParameterOfARunOfThreeFragments) {
  for (const int64_t delay : {0, 1, 2, 5}) {
    follow({7, 3, delay, 0.7, 0.6, 0.25}, FragmentPlan::sequential(3));
    follow({7, 3, delay, 0.7, 0.6, 0.0}, FragmentPlan::strided(3));
  }
}

TEST(FirstPrinciples, ExplainRoundsOfSeveralWindowsUnderWayAtOnce) {
  for (const int64_t delay : {6, 7, 12, 15}) follow({6, 3, delay, 0.1, 0.5, 0.5}, FragmentPlan::strided(3));
  follow({6, 1, 18, 0.1, 0.5, 0.0}, FragmentPlan::whole());
  follow({3, 3, 4, 0.2, 0.0, 0.5}, FragmentPlan::listed({{1}, {0, 3}, {2}}));
}

}  // namespace
}  // namespace outerloop::testing
