#pragma once

namespace outerloop::bench {

/// "met" or "MISSED", for a summary's line.
inline const char* verdict(bool met) { return met ? "met" : "MISSED"; }

}  // namespace outerloop::bench
