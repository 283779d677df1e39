#pragma once

#include <ATen/Tensor.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace outerloop::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// One way to run the kernels; all must give the same bits. Tensors are put where it works, and read back from there.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;

  /// A copy that begins `lead` elements into an allocation and ends with it.
  virtual Tensor put_param(const Tensor& values, int64_t lead) const = 0;
  virtual Tensor put_flat(const Tensor& values, int64_t lead = 0) const = 0;

  virtual kernels::Summary send(const Tensors& params, const Tensor& anchor, const Tensor& wire, double weight) = 0;
  /// The sum of squares of the mean delta.
  virtual double apply(const Tensors& params, const Tensor& anchor, const Tensor& velocity, const Tensor& wire,
                       const kernels::Step& step) = 0;
  virtual void step_apart(const Tensor& anchor, const Tensor& velocity, const Tensor& wire, const Tensor& next_velocity,
                          const kernels::Step& step, double* sum_squares) = 0;
  virtual void delta(const Tensors& params, const Tensor& anchor, const Tensor& delta) = 0;
  virtual void gather(const Tensors& params, const Tensor& flat) = 0;
  virtual void scatter(const Tensors& params, const Tensor& flat, double keep_local) = 0;
  virtual void step(const Tensor& anchor, const Tensor& velocity, const Tensor& mean_delta,
                    const kernels::Step& step) = 0;
  virtual kernels::Summary summarize(const Tensor& flat) = 0;
};

/// All that this program has. (One source of each test program defines it.)
const std::vector<std::shared_ptr<Backend>>& backends();

inline void PrintTo(const std::shared_ptr<Backend>& backend, std::ostream* out) { *out << backend->name(); }

}  // namespace outerloop::testing
