#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace outerloop::bench {

/// What torchft (0.2, local_sgd.py and manager.py) does to a model in a round of DiLoCo, pass by pass and tensor by
/// tensor, its anchors beside the parameters: 108 bytes per element. reduce(deltas) sums them over the replicas.
template <class Reduce>
void torchft_passes(std::vector<at::Tensor>& params, const std::vector<at::Tensor>& anchors,
                    std::vector<at::Tensor>& velocities, int replicas, double lr, double momentum,
                    const Reduce& reduce) {
  std::vector<at::Tensor> delta, local;
  for (size_t i = 0; i < params.size(); ++i) delta.push_back(anchors[i] - params[i]);
  reduce(delta);
  for (const at::Tensor& of : delta) of.div_(replicas);
  for (const at::Tensor& param : params) local.push_back(param.clone());
  for (size_t i = 0; i < params.size(); ++i) params[i].copy_(anchors[i]);
  at::_foreach_mul_(velocities, momentum);
  at::_foreach_add_(velocities, delta);
  at::_foreach_add_(delta, velocities, momentum);
  at::_foreach_add_(params, delta, -lr);
  for (size_t i = 0; i < params.size(); ++i) anchors[i].copy_(params[i].clone());
  for (size_t i = 0; i < params.size(); ++i) params[i].lerp_(local[i], 0.0);
}

}  // namespace outerloop::bench
