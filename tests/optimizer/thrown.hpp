#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <outerloop/error.hpp>

#include <string>
#include <vector>

namespace outerloop::testing {

/// What a call threw: kind is the exception's name, or empty if it returned.
struct Thrown {
  std::string kind;
  std::string text;
};

template <class Call>
Thrown thrown_by(Call call) {
  try {
    call();
  } catch (const ConsistencyError& error) {
    return {"ConsistencyError", error.what()};
  } catch (const CheckpointError& error) {
    return {"CheckpointError", error.what()};
  } catch (const CommError& error) {
    return {"CommError", error.what()};
  } catch (const c10::Error& error) {
    return {"c10::Error", error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {"std::exception", error.what()};
  }
  return {};
}

inline ::testing::AssertionResult is(const Thrown& thrown, const std::string& kind,
                                     const std::vector<std::string>& words = {}) {
  const auto failure = [&] {
    return ::testing::AssertionFailure() << (thrown.kind.empty() ? "nothing" : thrown.kind) << " thrown, not " << kind
                                         << ": " << thrown.text;
  };
  if (thrown.kind != kind) return failure();
  for (const std::string& word : words) {
    if (thrown.text.find(word) == std::string::npos) return failure() << "\ndoes not say '" << word << "'";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace outerloop::testing
