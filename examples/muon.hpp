#pragma once

#include <torch/torch.h>

/// The nearest matrix with orthogonal rows or columns, roughly: singular values end between 0.7 and 1.2. Five
/// Newton-Schulz steps X <- a X + (b A + c A^2) X, A = X X^T, on [..., rows, columns]. Jordan et al., 2024.
torch::Tensor orthogonalized(const torch::Tensor& matrices);

/// An optimizer made of two: Muon for its first group, of matrices, AdamW for all others.
///   momentum <- mu * momentum + gradient
///   matrix   <- (1 - lr * weight_decay) * matrix - lr * 0.2 sqrt(max(rows, columns)) * orthogonalized(gradient + mu *
///   momentum)
/// so that both want about the same lr (Liu et al., 2025, arXiv:2502.16982). mu is the first of the group's betas. A
/// matrix of three times as many rows as columns is taken for three: queries, keys and values.
class Muon : public torch::optim::AdamW {
 public:
  Muon(std::vector<torch::Tensor> matrices, std::vector<torch::Tensor> others,
       const torch::optim::AdamWOptions& options, double mu = 0.9);
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  void step_matrix(torch::Tensor matrix, const torch::optim::AdamWOptions& options);
};
