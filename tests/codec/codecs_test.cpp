#include <gtest/gtest.h>

#include <outerloop/random.hpp>
#include <outerloop/wire_formats.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include "codec/wire.hpp"
#include "optimizer/thrown.hpp"
#include "support/tensors.hpp"

namespace outerloop::testing::codec_facts {
namespace {

TEST(Codecs, HaveTheBytesTheySay) {
  using namespace codecs;
  EXPECT_EQ(fp32()->wire_bytes(1000), 4000);
  EXPECT_EQ(fp16()->wire_bytes(1001), 2002);
  EXPECT_EQ(bf16()->wire_bytes(1000), 2000);
  EXPECT_EQ(int8()->wire_bytes(120064), 120064 + 4 * 469);
  EXPECT_EQ(fp8_e4m3(1024)->wire_bytes(2048), 2048 + 8);
  EXPECT_EQ(int4()->wire_bytes(25600), 12800 + 2 * 100);
  EXPECT_EQ(nf4()->wire_bytes(6400), 3200 + 2 * 100);
  EXPECT_EQ(e2m1()->wire_bytes(3200), 1600 + 2 * 100);
  EXPECT_EQ(e3m0()->wire_bytes(25600), 12800 + 4 * 100);
  EXPECT_EQ(top_k(1.0 / 64, 2)->wire_bytes(10 * 4096), 10 * (64 * 12 / 8 + 64 * 2 / 8 + 8));
  EXPECT_EQ(top_k(1.0 / 64, 8)->wire_bytes(10 * 4096), 10 * (64 * 12 / 8 + 64 + 4));
  for (const CodecPtr& codec : all_codecs()) EXPECT_EQ(codec->wire_bytes(0), 0) << codec->describe();
}

TEST(Codecs, KeepZerosSmallVectorsAndSizesThatAreNoMultiple) {
  for (const CodecPtr& codec : all_codecs()) {
    for (const int64_t n : {0, 1, 2, 3, 15, 17, 255, 256, 257, 4095, 4096, 4097, 10001}) {
      EXPECT_TRUE(same_bits(through(*codec, torch::zeros({n})).abs(), torch::zeros({n}))) << codec->describe() << n;
      const Tensor delta = normal({n}, static_cast<uint64_t>(n) + 5), back = through(*codec, delta);
      EXPECT_TRUE(torch::isfinite(back).all().item<bool>()) << codec->describe() << n;
      EXPECT_TRUE(n == 0 || (back - delta).norm().item<double>() < delta.norm().item<double>())
          << codec->describe() << n;
    }
    // One element is its block's largest, and all there is to send.
    const Tensor one = torch::full({1}, -3.0f);
    EXPECT_NEAR(through(*codec, one).item<double>(), -3, 0.012) << codec->describe();
  }
}

/// What is nearest among all values that a block of this scale can have; ties to the even code, by trying all.
template <class Format>
float nearest(float x, float scale) {
  double best = INFINITY;
  float value = 0;
  bool even = false;
  for (uint32_t code = 0; code < (1u << Format::bits); ++code) {
    if (std::is_same_v<Format, wire_formats::E4m3> && (code & 0x7f) == 0x7f) continue;
    const double distance = std::abs(double(Format::value(code)) * scale - x);
    const bool is_even = code % 2 == 0;
    if (distance < best || (distance == best && is_even && !even)) {
      best = distance;
      value = Format::value(code) * scale;
      even = is_even;
    }
  }
  return value;
}

template <class Format>
void expect_nearest(const Codec& codec, int64_t block) {
  // A scale of one: dyadic values lie on levels and on the middles between them.
  Tensor delta = torch::randint(-int64_t(Format::top * 512), int64_t(Format::top * 512) + 1, {4 * block},
                                at::detail::createCPUGenerator(4))
                     .to(at::kFloat) /
                 512;
  for (int64_t b = 0; b < 4; ++b) delta[b * block] = Format::top;
  const Tensor back = through(codec, delta);
  for (int64_t i = 0; i < delta.numel(); ++i) {
    const float x = delta[i].item<float>();
    ASSERT_EQ(std::abs(back[i].item<float>() - x), std::abs(nearest<Format>(x, 1) - x)) << codec.describe() << " " << x;
    if (!std::is_same_v<Format, wire_formats::Nf4>) {
      ASSERT_EQ(back[i].item<float>(), nearest<Format>(x, 1)) << codec.describe() << " of " << x;
    }
  }
}

TEST(Codecs, RoundToTheNearestLevelTiesToEven) {
  expect_nearest<wire_formats::Int8>(*codecs::int8(256), 256);
  expect_nearest<wire_formats::E4m3>(*codecs::fp8_e4m3(256), 256);
  expect_nearest<wire_formats::Int4>(*codecs::int4(64), 64);
  expect_nearest<wire_formats::E2m1>(*codecs::e2m1(32), 32);
  expect_nearest<wire_formats::E3m0>(*codecs::e3m0(256), 256);
  expect_nearest<wire_formats::Nf4>(*codecs::nf4(64), 64);
}

TEST(Codecs, PutCodesFirstAndScalesAfter) {
  Tensor delta = torch::zeros({32});
  delta[0] = 127.0f;
  delta[1] = -5.0f;
  delta[16] = 254.0f;
  delta[17] = 3.0f;  // 1.5 of 2: to even
  const Tensor wire = encoded(*codecs::int8(16), delta);
  EXPECT_EQ(wire[0].item<int>(), 127);
  EXPECT_EQ(wire[1].item<int>(), 256 - 5);
  EXPECT_EQ(wire[17].item<int>(), 2);
  const auto* scales = reinterpret_cast<const float*>(wire.const_data_ptr<uint8_t>() + 32);
  EXPECT_EQ(scales[0], 1);
  EXPECT_EQ(scales[1], 2);
  Tensor small = torch::zeros({16});
  small[0] = 7.0f;
  small[1] = -3.0f;
  const Tensor halves = encoded(*codecs::int4(16), small);
  EXPECT_EQ(halves[0].item<int>(), 7 | (16 - 3) << 4);
}

TEST(Codecs, KeepDenormalsAsZeroAndTheLargestFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const CodecPtr& codec : all_codecs()) {
    if (codec->describe() == "fp32" || codec->describe() == "bf16" || codec->describe() == "fp16") continue;
    EXPECT_EQ(through(*codec, torch::full({300}, 1e-40f)).abs().max().item<float>(), 0) << codec->describe();
    EXPECT_TRUE(torch::isfinite(through(*codec, torch::full({300}, largest))).all().item<bool>()) << codec->describe();
    EXPECT_TRUE(torch::isfinite(through(*codec, torch::full({300}, -largest))).all().item<bool>()) << codec->describe();
  }
}

TEST(Codecs, MakeNothingFiniteThatIsNot) {
  for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
    for (const CodecPtr& codec : all_codecs()) {
      for (const int64_t place : {0, 100, 299}) {
        Tensor delta = normal({300}, 8);
        delta[place] = bad;
        EXPECT_THROW(through(*codec, delta), c10::Error) << codec->describe() << " " << bad;
      }
    }
  }
}

TEST(Codecs, OfTopKKeepTheLargestOfEachChunk) {
  const Tensor delta = normal({4096 + 1000}, 12), back = through(*codecs::top_k(1.0 / 64, 8), delta);
  for (const auto& [begin, size, kept] : {std::tuple{0, 4096, 64}, std::tuple{4096, 1000, 16}}) {
    const Tensor chunk = delta.narrow(0, begin, size), got = back.narrow(0, begin, size);
    const Tensor places = std::get<1>(chunk.abs().topk(kept));
    EXPECT_EQ(got.count_nonzero().item<int64_t>(), kept);
    EXPECT_LT(relative_error(got.index({places}), chunk.index({places})), 0.01);
  }
  // Of equal ones the first.
  EXPECT_EQ(through(*codecs::top_k(1.0 / 64, 2), torch::ones({4096})).narrow(0, 0, 64).sum().item<float>(), 64);
}

TEST(Codecs, RefuseSettingsOutOfRange) {
  for (const int64_t block : {0, -1, 8, 24, 255, 8192}) {
    EXPECT_TRUE(is(thrown_by([&] { codecs::int8(block); }), "c10::Error",
                   {"block must be a power of two from 16 to 4096, got " + std::to_string(block)}));
    EXPECT_THROW(codecs::fp8_e4m3(block), c10::Error);
    EXPECT_THROW(codecs::int4(block), c10::Error);
    EXPECT_THROW(codecs::nf4(block), c10::Error);
    EXPECT_THROW(codecs::e2m1(block), c10::Error);
    EXPECT_THROW(codecs::e3m0(block), c10::Error);
  }
  for (const double density : {0.0, -0.1, 1.01, static_cast<double>(NAN)})
    EXPECT_THROW(codecs::top_k(density, 2), c10::Error);
  for (const int bits : {0, 1, 3, 4, 16}) EXPECT_THROW(codecs::top_k(0.1, bits), c10::Error);
}

TEST(Codecs, RefuseTensorsThatDoNotFit) {
  for (const CodecPtr& codec : all_codecs()) {
    const Tensor delta = torch::ones({100}), wire = torch::zeros({codec->wire_bytes(100)}, at::kByte);
    const Tensor longer = torch::zeros({codec->wire_bytes(100) + 1}, at::kByte);
    for (const auto& [d, w] :
         {std::pair{delta, longer}, std::pair{delta, longer.narrow(0, 0, wire.numel() - 1)},
          std::pair{delta.to(at::kDouble), wire}, std::pair{delta, wire.to(at::kChar)},
          std::pair{torch::ones({100, 2}).select(1, 0), wire}, std::pair{Tensor(), wire}, std::pair{delta, Tensor()}}) {
      EXPECT_THROW(codec->encode(d, w, 0), c10::Error) << codec->describe();
      EXPECT_THROW(codec->decode(w, d), c10::Error) << codec->describe();
    }
  }
}

TEST(Codecs, NameTheBlockAndTheValueThatIsDamaged) {
  const CodecPtr codec = codecs::int8(16);
  Tensor wire = encoded(*codec, torch::ones({48}));
  reinterpret_cast<float*>(wire.mutable_data_ptr<uint8_t>() + 48)[2] = -1;
  EXPECT_TRUE(is(thrown_by([&] { decoded(*codec, wire, 48); }), "c10::Error", {"the scale of block 2 is -1"}));
  Tensor sparse = encoded(*codecs::top_k(), torch::ones({100}));
  sparse[0] = 0x65;  // index 101 of 100
  EXPECT_TRUE(is(thrown_by([&] { decoded(*codecs::top_k(), sparse, 100); }), "c10::Error", {"index 0 of chunk 0 is"}));
}

TEST(Codecs, DecodeAnyBytesToFiniteNumbersOrThrow) {
  std::mt19937 random(5);
  int thrown_at = 0, kept = 0;
  for (const CodecPtr& codec : all_codecs()) {
    for (int trial = 0; trial < 200; ++trial) {
      const int64_t n = random() % 5000;
      Tensor wire =
          trial % 2 ? encoded(*codec, normal({n}, random())) : torch::zeros({codec->wire_bytes(n)}, at::kByte);
      auto* bytes = wire.mutable_data_ptr<uint8_t>();
      const int64_t changes = trial % 2 ? std::min<int64_t>(3, wire.numel()) : wire.numel();
      for (int64_t i = 0; i < changes; ++i)
        bytes[trial % 2 ? random() % wire.numel() : i] = static_cast<uint8_t>(random());
      Tensor delta = torch::zeros({n});
      try {
        codec->decode(wire, delta);
        ++kept;
        // A scale near the largest float times a code may be infinite: in wires that encode() never makes.
        const bool finite = torch::isfinite(delta).all().item<bool>();
        EXPECT_TRUE(finite || delta.abs().max().item<float>() > 1e30f) << codec->describe();
      } catch (const c10::Error&) {
        ++thrown_at;
      }
    }
  }
  EXPECT_GT(thrown_at, 100);
  EXPECT_GT(kept, 100);
}

TEST(Codecs, DescribeWhatDecidesTheBytes) {
  std::vector<std::string> all;
  for (const CodecPtr& codec : all_codecs()) all.push_back(codec->describe());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

/// Known answers of Random123's test vectors: counter and key of zeros, and of ones (whose upper counter is not ours).
TEST(Random, IsPhilox) {
  const random::Four zeros = random::philox(0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_EQ(zeros.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.word[3], 0x9b00dbd8u);
}

}  // namespace
}  // namespace outerloop::testing::codec_facts
