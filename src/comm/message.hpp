#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace outerloop::comm {

/// What an error says, without the stack that libtorch adds.
inline std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace outerloop::comm
