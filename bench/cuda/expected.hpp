#pragma once

#include <ATen/Tensor.h>

#include <array>

namespace outerloop::bench {

using at::Tensor;

inline constexpr int replicas = 2;
inline constexpr double lr = 0.7, momentum = 0.9;

/// A stretch of numbers that fills every vector, over and over: what is right for a vector of any length is then found
/// by computing it for the stretch, on the CPU.
struct Numbers {
  Numbers(at::ScalarType of_params, at::Device device);
  Tensor anchor;                ///< float32
  std::array<Tensor, 2> local;  ///< what inner steps made of the parameters in two rounds, in their type
};

/// vector[i] <- numbers[(first + i) mod their length]
void fill(const Tensor& vector, int64_t first, const Tensor& numbers);

/// The vectors after two rounds, by the library's loops for the CPU.
struct Expected {
  explicit Expected(at::ScalarType of_params);
  Expected to(at::Device device) const;
  Tensor anchor, velocity, wire, params;

 private:
  Expected() = default;
};

}  // namespace outerloop::bench
