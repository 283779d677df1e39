#pragma once

#include <ATen/Tensor.h>

#include <memory>
#include <vector>

namespace outerloop {

using at::Tensor;

/// Scattered parameters seen as one flat vector of n elements, in the order given, each row-major. The vector's type is
/// float32 for float32, bfloat16 and float16 parameters in any mixture, float64 if all of them are float64.
///
/// The tensors are shared, and their memory is looked up at each call: a parameter may move (Module::to, torch::load)
/// but must keep its dtype, device and number of elements. Parameters with gaps or permuted strides cost one dense
/// copy. Throws c10::Error, naming the parameter, for other types, other devices than the CPU, duplicates and overlaps.
class FlatParams {
 public:
  explicit FlatParams(std::vector<Tensor> params);
  FlatParams(FlatParams&&) noexcept;
  FlatParams& operator=(FlatParams&&) noexcept;
  ~FlatParams();

  int64_t numel() const;
  at::ScalarType dtype() const;
  const std::vector<Tensor>& tensors() const;

  Tensor gather() const;  ///< a new flat vector holding the parameters
  /// params <- flat + keep_local * (params - flat), rounded to nearest. Bumps the parameters' version counters, so that
  /// backward through a graph recorded before throws instead of using the new values.
  void scatter(const Tensor& flat, double keep_local = 0.0);

  struct Impl;  ///< the library's own view, see src/params
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace outerloop
