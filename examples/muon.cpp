#include "muon.hpp"

torch::Tensor orthogonalized(const torch::Tensor& matrices) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  torch::Tensor x = tall ? matrices.mT() : matrices;
  x = x / (x.norm(2, {-2, -1}, /*keepdim=*/true) + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const torch::Tensor square = x.matmul(x.mT());
    x = a * x + (b * square + c * square.matmul(square)).matmul(x);
  }
  return tall ? x.mT() : x;
}

Muon::Muon(std::vector<torch::Tensor> matrices, std::vector<torch::Tensor> others,
           const torch::optim::AdamWOptions& options, double mu)
    : AdamW(
          {torch::optim::OptimizerParamGroup(
               std::move(matrices), std::make_unique<torch::optim::AdamWOptions>(
                                        torch::optim::AdamWOptions(options).betas({mu, std::get<1>(options.betas())}))),
           torch::optim::OptimizerParamGroup(std::move(others), std::make_unique<torch::optim::AdamWOptions>(options))},
          options) {}

torch::Tensor Muon::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  const auto& group = param_groups_.front();
  std::vector<torch::Tensor> gradients;
  for (torch::Tensor matrix : group.params()) {
    if (matrix.grad().defined()) step_matrix(matrix, static_cast<const torch::optim::AdamWOptions&>(group.options()));
    gradients.push_back(std::exchange(matrix.mutable_grad(), {}));  // AdamW leaves alone what has none
  }
  AdamW::step();
  for (size_t i = 0; i < gradients.size(); ++i) group.params()[i].mutable_grad() = gradients[i];
  return loss;
}

void Muon::step_matrix(torch::Tensor matrix, const torch::optim::AdamWOptions& options) {
  const double mu = std::get<0>(options.betas()), lr = options.lr();
  auto& kept = state_[matrix.unsafeGetTensorImpl()];
  if (!kept) {
    auto fresh = std::make_unique<torch::optim::AdamWParamState>();
    fresh->step(0).exp_avg(torch::zeros_like(matrix)).exp_avg_sq(torch::empty({0}));
    kept = std::move(fresh);
  }
  auto& state = static_cast<torch::optim::AdamWParamState&>(*kept);
  state.step(state.step() + 1);
  const torch::Tensor gradient = matrix.grad(), momentum = state.exp_avg().mul_(mu).add_(gradient);
  const int64_t rows = matrix.size(0), columns = matrix.size(1), parts = rows == 3 * columns ? 3 : 1;
  const torch::Tensor update = orthogonalized((gradient + mu * momentum).view({parts, rows / parts, columns}));
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows / parts, columns)));
  matrix.mul_(1 - lr * options.weight_decay()).sub_(update.reshape({rows, columns}), lr * scale);
}
