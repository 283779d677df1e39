#pragma once

#include <outerloop/outer_loop.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace outerloop::round {

/// What the ranks talk about. Every conversation opens with one all-gather of headers, all of one size: ranks that meet
/// at different points of their programs find out, instead of mixing up payloads. A pipelined round has two: pieces
/// before it, close after it.
enum class Talk : uint32_t { start = 1, round = 2, reconnect = 3, pieces = 4, close = 5 };
enum class Vote : uint32_t { commit = 0, abort = 1, failed = 2 };  ///< failed: an exception waits to be thrown there

/// Sent as bytes, so it has no padding.
struct Header {
  uint32_t protocol = 3;
  Talk talk{};
  int64_t inner_step = 0;
  int64_t fragment = 0;
  int64_t round = 0;  ///< of the fragment; of all where the talk is not of one
  int64_t elements = 0;
  uint64_t description = 0;  ///< digest of options and parameters
  uint64_t fingerprint = 0;  ///< of the anchor; at the start, of the parameters
  int64_t non_finite = 0;
  double weight = 1;
  uint32_t text_bytes = 0;  ///< of the text this rank tells if a conversation ends in an error
  Vote vote = Vote::commit;
};
static_assert(sizeof(Header) == 80);

struct Verdict {
  enum class Action { commit, abort, repair, disagree } action = Action::commit;
  std::string reason = {};
  double total_weight = 0;
  int root = 0;                      ///< repair: the rank whose anchor all take
  std::vector<double> weights = {};  ///< of all ranks
};

/// Whether a replica of this weight has a share in the mean: with 0 it has none, and all others are refused.
bool takes_part(double weight);

/// What all ranks do in this round: a pure function of the headers, so that all do the same. Ranks whose descriptions
/// differ, or that talk about different things, disagree; the texts tell more.
Verdict decide(const std::vector<Header>& headers, OnMismatch on_mismatch);

/// The ranks do not talk about the same thing, at the same place; empty if they do.
std::string out_of_step(const std::vector<Header>& headers);

bool same_description(const std::vector<Header>& headers);

/// The first rank that failed, or -1.
int first_failed(const std::vector<Header>& headers);

/// The most advanced rank, the lowest on a tie.
int most_advanced(const std::vector<Header>& headers);

}  // namespace outerloop::round
