#pragma once

#include <outerloop/planner.hpp>

#include <cstddef>
#include <vector>

namespace outerloop::planner {

enum class Event { ready, needed };

/// What happens to a message in every round.
struct Moment {
  double step;  ///< when, in inner steps of computing since the round before, in (0, sync_every]
  Event event;
  size_t message;
  size_t since = 0;  ///< how often it was ready again since what is needed now was
};

/// The messages of one round.
struct Traffic {
  std::vector<Moment> moments;  ///< in order of time; at the same time, what is ready comes before what is needed
  size_t messages = 0;          ///< all of one size
  int trips = 1;                ///< of each message
};

Traffic traffic_of(const Job& job, const Schedule& schedule);

}  // namespace outerloop::planner
