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
/// copy. All are on one device, the CPU or a GPU; work on a GPU goes to its current stream, where the host does not
/// wait. Throws c10::Error, naming the parameter, for other types and devices, mixtures, duplicates and overlaps.
class FlatParams {
 public:
  explicit FlatParams(std::vector<Tensor> params);
  FlatParams(FlatParams&&) noexcept;
  FlatParams& operator=(FlatParams&&) noexcept;
  ~FlatParams();

  int64_t numel() const;
  at::ScalarType dtype() const;
  at::Device device() const;
  const std::vector<Tensor>& tensors() const;

  Tensor gather() const;  ///< a new flat vector on device(), holding the parameters
  /// params <- flat + keep_local * (params - flat), rounded to nearest. `flat` is on device() or on the CPU. Bumps the
  /// parameters' version counters, so that backward through a graph recorded before throws instead of using the new
  /// values.
  void scatter(const Tensor& flat, double keep_local = 0.0);

  struct Impl;  ///< the library's own view, see src/params
  Impl& impl() const { return *impl_; }

 private:
  struct Made {};
  FlatParams(Made, std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace outerloop
