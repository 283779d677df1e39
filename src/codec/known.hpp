#pragma once

#include <outerloop/codec.hpp>

#include <optional>

#include "kernels/wires.hpp"

namespace outerloop::codec {

/// What kernels need to know of one of the library's codecs; nothing of a user's own.
std::optional<kernels::WireFormat> known(const Codec& codec);

/// The wire is the delta itself, in float32.
bool is_plain(const Codec& codec);

}  // namespace outerloop::codec
