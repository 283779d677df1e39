#pragma once

#include <outerloop/codec.hpp>
#include <outerloop/communicator.hpp>
#include <outerloop/diloco.hpp>
#include <outerloop/error.hpp>
#include <outerloop/flat_params.hpp>
#include <outerloop/fragments.hpp>
#include <outerloop/local_sgd.hpp>
#include <outerloop/outer_loop.hpp>
#include <outerloop/outer_rule.hpp>
#include <outerloop/planner.hpp>
#include <outerloop/report.hpp>
#include <outerloop/stability.hpp>
#include <outerloop/stages.hpp>
#include <outerloop/sync_options.hpp>
#include <outerloop/version.hpp>
