#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace outerloop::planner {

/// What c10::Error says of `call`; nothing if it is fine.
template <class Call>
std::string refused(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.msg();
  }
  return "";
}

}  // namespace outerloop::planner
