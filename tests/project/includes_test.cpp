#include <fnmatch.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "project/files.hpp"

/// Who may include whom:
///   optimizer -> checkpoint, round -> params, comm, outer -> kernels -> math.hpp      (siblings never include each
///   other)
///   planner -> the public header of groups, and nothing else of the library

namespace outerloop::testing {
namespace {

struct Rule {
  std::string files;        ///< a pattern; the first rule that fits a file counts
  std::string may_include;  ///< patterns; the standard library is open to all
};

const std::string tensors = "ATen/* c10/* ";
const std::string c10d = "torch/csrc/distributed/c10d/";
const std::string all_below_round = "params/* codec/* comm/* outer/* kernels/* ";

const std::vector<Rule> rules = {
    // Public headers are cheap to include: one class of libtorch each, never torch/torch.h. The first two are for
    // devices too, the third is arithmetic.
    {"include/outerloop/formats.hpp", ""},
    {"include/outerloop/math.hpp", "outerloop/formats.hpp"},
    {"include/outerloop/random.hpp", "outerloop/formats.hpp"},
    {"include/outerloop/rounding.hpp", "outerloop/formats.hpp"},
    {"include/outerloop/wire_scales.hpp", "outerloop/formats.hpp"},
    {"include/outerloop/wire_formats.hpp", "outerloop/rounding.hpp outerloop/wire_scales.hpp"},
    {"include/outerloop/stability.hpp", ""},
    {"include/outerloop/c10d.hpp", "outerloop/communicator.hpp " + c10d + "ProcessGroup.hpp"},
    {"include/outerloop/*", "outerloop/* ATen/Tensor.h torch/optim/optimizer.h"},

    // Device code is free of torch.
    {"cuda/*",
     "outerloop/math.hpp outerloop/formats.hpp outerloop/random.hpp outerloop/wire_formats.hpp cuda/* cuda_runtime.h "
     "cub/*"},

    {"src/kernels/cuda.cpp", "kernels/cuda.hpp kernels/here.hpp cuda/launch.hpp cuda/check.hpp " + tensors},
    {"src/kernels/*",
     "kernels/* outerloop/math.hpp outerloop/random.hpp outerloop/wire_formats.hpp emmintrin.h " + tensors},

    {"src/params/*", "params/* kernels/* outerloop/flat_params.hpp outerloop/fragments.hpp " + tensors},
    {"src/codec/*", "codec/* kernels/* outerloop/codec.hpp " + tensors},
    {"src/outer/*",
     "outer/* kernels/* outerloop/outer_rule.hpp outerloop/stability.hpp outerloop/stages.hpp " + tensors},
    // libtorch ships no gloo headers: what stands in for them is seen by one source only.
    {"src/comm/gloo_headers/*", ""},
    {"src/comm/gloo.cpp", "comm/* outerloop/c10d.hpp outerloop/error.hpp " + c10d + "* " + tensors},
    {"src/comm/nccl.cpp", "comm/* outerloop/communicator.hpp outerloop/error.hpp " + c10d + "*Store.hpp " + c10d +
                              "ProcessGroupNCCL.hpp c10/cuda/* " + tensors},
    {"src/comm/*", "comm/* kernels/staging.hpp outerloop/c10d.hpp outerloop/communicator.hpp outerloop/error.hpp " +
                       c10d + "*Store.hpp " + tensors},

    {"src/round/*", "round/* outerloop/* xxhash.h " + all_below_round + tensors},
    {"src/checkpoint/*",
     "checkpoint/* outerloop/* torch/optim/optimizer.h torch/serialize/* " + all_below_round + tensors},

    {"src/optimizer/*",
     "optimizer/* checkpoint/* round/* outerloop/* torch/optim/* torch/serialize/* " + all_below_round + tensors},

    {"src/planner/*", "planner/* outerloop/planner.hpp outerloop/communicator.hpp " + tensors},
};

bool fits(const std::string& name, const std::string& patterns) {
  std::istringstream words(patterns);
  for (std::string pattern; words >> pattern;) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

bool may_include(const std::string& file, const std::string& header) {
  if (header.find_first_of("./") == std::string::npos) return true;  // <vector>
  for (const auto& rule : rules) {
    if (fits(file, rule.files)) return fits(header, rule.may_include);
  }
  return false;
}

std::vector<std::string> included_by(const std::string& text) {
  static const std::regex include(R"rx((?:^|\n)[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"])rx");
  std::vector<std::string> headers;
  for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at) headers.push_back((*at)[1]);
  return headers;
}

TEST(Includes, FollowTheTable) {
  int seen = 0;
  for (const char* folder : {"include", "src", "cuda"}) {
    for (const auto& file : files_under(folder)) {
      if (file.ends_with(".md")) continue;
      for (const auto& header : included_by(read(source_dir() / file))) {
        EXPECT_TRUE(may_include(file, header)) << file << " must not include " << header;
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 100);  // the walk and the regex do find them
}

TEST(Includes, TheTableRefusesEachCrossing) {
  EXPECT_FALSE(may_include("src/params/x.cpp", "comm/gloo.hpp"));  // siblings
  EXPECT_FALSE(may_include("src/round/x.cpp", "checkpoint/archive.hpp"));
  EXPECT_FALSE(may_include("src/planner/x.cpp", "round/round.hpp"));
  EXPECT_FALSE(may_include("src/round/x.cpp", "planner/traffic.hpp"));
  EXPECT_FALSE(may_include("src/planner/x.cpp", "outerloop/diloco.hpp"));
  EXPECT_FALSE(may_include("src/kernels/x.cpp", "params/check.hpp"));  // upwards
  EXPECT_FALSE(may_include("src/outer/x.cpp", "outerloop/diloco.hpp"));
  EXPECT_FALSE(may_include("src/optimizer/x.cpp", c10d + "ProcessGroup.hpp"));
  EXPECT_FALSE(may_include("src/comm/c10d.cpp", c10d + "ProcessGroupGloo.hpp"));
  EXPECT_FALSE(may_include("include/outerloop/outer_loop.hpp", "torch/torch.h"));
  EXPECT_FALSE(may_include("include/outerloop/outer_loop.hpp", c10d + "ProcessGroup.hpp"));
  EXPECT_FALSE(may_include("include/outerloop/math.hpp", "ATen/Tensor.h"));
  EXPECT_FALSE(may_include("include/outerloop/formats.hpp", "ATen/Tensor.h"));
  EXPECT_FALSE(may_include("include/outerloop/stability.hpp", "ATen/Tensor.h"));
  EXPECT_FALSE(may_include("cuda/apply.cu", "ATen/Tensor.h"));
  EXPECT_FALSE(may_include("src/elsewhere/x.cpp", "kernels/cpu.hpp"));  // a folder that the table does not know
  EXPECT_TRUE(may_include("src/round/x.cpp", "params/check.hpp"));
  EXPECT_TRUE(may_include("src/kernels/x.cpp", "vector"));
}

TEST(Includes, AreFoundHoweverTheyAreWritten) {
  EXPECT_EQ(included_by("#include <a/b.h>\n // #include \"no.h\"\n  #  include \"c.hpp\"  // why\n"),
            (std::vector<std::string>{"a/b.h", "c.hpp"}));
}

}  // namespace
}  // namespace outerloop::testing
