#pragma once

#include <charconv>
#include <string>

namespace outerloop {

/// The shortest decimal text that reads back as the same number: 0.7 is "0.7", and no two numbers look alike.
inline std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace outerloop
