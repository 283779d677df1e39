#pragma once

namespace outerloop {

inline constexpr const char* version = "0.1.0";  ///< must be the same on all replicas

}  // namespace outerloop
