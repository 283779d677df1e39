#pragma once

#include <outerloop/formats.hpp>

#include "cuda/launch.hpp"

/// From types named at run time to types of C++.

namespace outerloop::cuda {

/// body(S{}, T{}): the types of the state and of the parameters.
template <class Body>
void with_types(Type params, const Body& body) {
  switch (params) {
    case Type::float32:
      return body(float{}, float{});
    case Type::bfloat16:
      return body(float{}, math::Bfloat16{});
    case Type::float16:
      return body(float{}, math::Float16{});
    case Type::float64:
      return body(double{}, double{});
  }
}

/// body(S{}) with the type of the state.
template <class Body>
void with_state_type(Type type, const Body& body) {
  type == Type::float64 ? body(double{}) : body(float{});
}

}  // namespace outerloop::cuda
