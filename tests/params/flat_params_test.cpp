#include <outerloop/flat_params.hpp>

#include <outerloop/math.hpp>

#include "optimizer/models.hpp"
#include "optimizer/thrown.hpp"

/// Scattered parameters as one flat vector.

namespace outerloop::testing {
namespace {

/// What gather must give: every tensor row-major, one after the other.
Tensor reference(const std::vector<Tensor>& tensors, at::ScalarType dtype) {
  std::vector<Tensor> parts{torch::empty({0}, dtype)};
  for (const Tensor& tensor : tensors) parts.push_back(tensor.detach().to(dtype).contiguous().flatten());
  return torch::cat(parts);
}

std::vector<Tensor> layouts() {
  return {
      eighths({3, 5}, 0),
      eighths({3, 5}, 1).t(),
      eighths({2, 3, 4, 5}, 2).contiguous(at::MemoryFormat::ChannelsLast),
      eighths({7, 4}, 3).slice(1, 1, 4, 2),
      eighths({40}, 4).slice(0, 3, 40, 3),
      eighths({}, 5),
      torch::empty({0, 3}),
      torch::empty({3, 0}).t(),
      eighths({1}, 6),
      eighths({4, 3}, 7).select(0, 2),  // contiguous, in the middle of its storage
  };
}

TEST(FlatParams, GatherReadsEveryLayoutRowMajor) {
  const auto tensors = layouts();
  const FlatParams params(tensors);
  const Tensor flat = params.gather();
  EXPECT_EQ(params.numel(), flat.numel());
  EXPECT_TRUE(same_bits(flat, reference(tensors, at::kFloat)));
}

TEST(FlatParams, ScatterWritesEveryLayoutAndNothingBetween) {
  const Tensor base = torch::full({6, 6}, 42.0F);
  const auto params_of = [](const Tensor& in) {
    return std::vector<Tensor>{in.slice(0, 0, 2).slice(1, 0, 6, 2), in.slice(0, 2, 6).slice(1, 1, 4).t()};
  };
  FlatParams params(params_of(base));
  const Tensor flat = eighths({params.numel()}, 3);
  params.scatter(flat);
  EXPECT_TRUE(same_bits(params.gather(), flat));
  Tensor expected = torch::full({6, 6}, 42.0F);
  const auto parts = params_of(expected);
  parts[0].copy_(flat.slice(0, 0, 6).view({2, 3}));
  parts[1].copy_(flat.slice(0, 6, 18).view({3, 4}));
  EXPECT_TRUE(same_bits(base, expected));
}

TEST(FlatParams, ScatterAndGatherAreInverseInEveryLayout) {
  FlatParams params(layouts());
  const Tensor flat = eighths({params.numel()}, 9);
  params.scatter(flat);
  EXPECT_TRUE(same_bits(params.gather(), flat));
}

TEST(FlatParams, MixFloatsUpTo32BitsInAFloat32Vector) {
  std::vector<Tensor> tensors;
  for (const int64_t n : {0, 1, 7, 8, 9, 31, 33, 1000}) {
    for (const auto dtype : {at::kBFloat16, at::kFloat, at::kHalf}) {
      tensors.push_back(torch::sin(torch::arange(n, at::kFloat) + n).to(dtype));
    }
  }
  const FlatParams params(tensors);
  EXPECT_EQ(params.dtype(), at::kFloat);
  EXPECT_TRUE(same_bits(params.gather(), reference(tensors, at::kFloat)));
}

TEST(FlatParams, KeepFloat64AsItIs) {
  const std::vector<Tensor> tensors{torch::sin(torch::arange(37, at::kDouble)), torch::zeros({2, 2}, at::kDouble)};
  FlatParams params(tensors);
  EXPECT_EQ(params.dtype(), at::kDouble);
  EXPECT_TRUE(same_bits(params.gather(), reference(tensors, at::kDouble)));
  const Tensor flat = torch::cos(torch::arange(params.numel(), at::kDouble));
  params.scatter(flat);
  EXPECT_TRUE(same_bits(params.gather(), flat));
}

TEST(FlatParams, ScatterRoundsToNearestEvenAsLibtorchDoes) {
  // Around 1, where bfloat16 is spaced by 2^-7 and float16 by 2^-10: values, ties and their neighbours; and the
  // extremes.
  Tensor flat =
      torch::cat({1 + torch::arange(4096, at::kFloat) / (1 << 13), -1 - torch::arange(4096, at::kFloat) / (1 << 13),
                  torch::tensor({0.0F, -0.0F, 65504.0F, 65519.0F, 65520.0F, 3e38F, 1e-8F, 6e-8F, 1e-40F, -3e-5F})});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Tensor param = torch::zeros_like(flat, dtype);
    FlatParams({param}).scatter(flat);
    EXPECT_TRUE(same_bits(param, flat.to(dtype))) << dtype;
  }
}

TEST(FlatParams, ScatterWithKeepLocalMixes) {
  const Tensor start = torch::sin(torch::arange(100, at::kFloat)), flat = torch::cos(torch::arange(100, at::kFloat));
  for (const double keep_local : {0.0, 0.3, 0.5, 1.0}) {
    const Tensor param = start.clone();
    FlatParams({param}).scatter(flat, keep_local);
    for (int64_t i = 0; i < 100; ++i) {
      const float expected =
          math::mix<float>(flat[i].item<float>(), start[i].item<float>(), static_cast<float>(keep_local));
      EXPECT_EQ(param[i].item<float>(), expected) << "element " << i << ", keep_local " << keep_local;
    }
  }
  const Tensor exact = eighths({8}, 0);
  FlatParams({exact}).scatter(eighths({8}, 1), 0.25);
  EXPECT_TRUE(same_bits(exact, eighths({8}, 0) * 0.25 + eighths({8}, 1) * 0.75));
}

TEST(FlatParams, ScatterMovesVersionCountersOn) {
  const auto dense = leaf(eighths({3}, 0)), strided = leaf(eighths({3, 2}, 0).t());
  FlatParams params({dense, strided});
  const auto before = std::pair(dense._version(), strided._version());
  const Tensor flat = params.gather();
  EXPECT_EQ(std::pair(dense._version(), strided._version()), before);
  params.scatter(flat);
  EXPECT_GT(dense._version(), before.first);
  EXPECT_GT(strided._version(), before.second);
  EXPECT_TRUE(dense.requires_grad() && dense.is_leaf() && strided.is_leaf());
}

TEST(FlatParams, FollowParametersWhoseMemoryOrStridesChange) {
  const Tensor a = eighths({3, 3}, 0), b = eighths({4}, 1);
  FlatParams params({a, b});
  for (const auto& moved : {eighths({3, 3}, 5).t(), eighths({3, 3}, 6), eighths({9}, 7)}) {
    a.set_data(moved.clone(at::MemoryFormat::Preserve));
    EXPECT_TRUE(same_bits(params.gather(), reference({a, b}, at::kFloat)));
    params.scatter(eighths({13}, 8));
    EXPECT_TRUE(same_bits(params.gather(), eighths({13}, 8)));
  }
}

TEST(FlatParams, RefuseParametersThatChangedTypeOrSize) {
  const Tensor a = eighths({3}, 0), b = eighths({4}, 0);
  const FlatParams params({a, b});
  b.set_data(torch::zeros({4}, at::kDouble));
  EXPECT_TRUE(is(thrown_by([&] { params.gather(); }), "c10::Error", {"parameter 1", "Float", "Double"}));
  b.set_data(torch::zeros({5}));
  EXPECT_TRUE(is(thrown_by([&] { params.gather(); }), "c10::Error", {"parameter 1", "4", "5"}));
}

TEST(FlatParams, RefuseWhatTheyCannotHoldByPlace) {
  const auto refused = [](std::vector<Tensor> tensors, const std::vector<std::string>& says) {
    EXPECT_TRUE(is(thrown_by([&] { FlatParams{tensors}; }), "c10::Error", says));
  };
  const Tensor a = eighths({6}, 0);
  refused({a, torch::ones({2}, at::kInt)}, {"parameter 1", "Int"});
  refused({torch::ones({2}, at::kBool)}, {"parameter 0", "Bool"});
  refused({torch::ones({2}, at::kComplexDouble)}, {"parameter 0", "ComplexDouble"});
  refused({a, Tensor()}, {"parameter 1", "undefined"});
  refused({torch::ones({2}, at::kMeta)}, {"parameter 0", "meta"});
  refused({a, eighths({2}, 1), a}, {"parameter 0", "parameter 2", "same"});
  refused({a, a.view({2, 3})}, {"parameter 0", "parameter 1", "share memory"});
  refused({a.slice(0, 2, 6), a.slice(0, 0, 3)}, {"parameter 0", "parameter 1", "share memory"});
  refused({torch::ones({1}).expand({3})}, {"parameter 0", "expanded"});
  refused({torch::arange(5.0).as_strided({3, 3}, {1, 1})}, {"parameter 0", "share memory"});
  refused({torch::arange(9.0).as_strided({2, 4}, {3, 1})}, {"parameter 0", "share memory"});
  refused({at::_neg_view(torch::ones({3}))}, {"parameter 0", "negated"});
  refused({a, torch::zeros({2}, at::kDouble)}, {"parameter 1", "Double", "float64"});
}

TEST(FlatParams, AcceptDisjointSlicesOfOneStorageAndEmptyTensorsWithin) {
  const Tensor base = eighths({10}, 0);
  const FlatParams params({base.slice(0, 5, 10), base.slice(0, 0, 5), base.slice(0, 3, 3)});
  EXPECT_TRUE(same_bits(params.gather(), torch::cat({base.slice(0, 5, 10), base.slice(0, 0, 5)})));
}

TEST(FlatParams, OfNothingAreEmpty) {
  FlatParams params({});
  EXPECT_EQ(params.numel(), 0);
  params.scatter(params.gather());
}

TEST(FlatParams, ScatterRefusesAnotherSizeTypeOrShare) {
  FlatParams params({eighths({4}, 0)});
  EXPECT_TRUE(is(thrown_by([&] { params.scatter(eighths({5}, 0)); }), "c10::Error", {"4", "5"}));
  EXPECT_TRUE(is(thrown_by([&] { params.scatter(eighths({4}, 0).to(at::kDouble)); }), "c10::Error", {"Double"}));
  EXPECT_TRUE(is(thrown_by([&] { params.scatter(eighths({4}, 0), 1.5); }), "c10::Error", {"keep_local", "1.5"}));
}

}  // namespace
}  // namespace outerloop::testing
