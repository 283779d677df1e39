#include "round/header.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace outerloop::round {

namespace {

using Action = Verdict::Action;

const char* name(Talk talk) {
  switch (talk) {
    case Talk::start:
      return "agreeing on parameters";
    case Talk::round:
    case Talk::pieces:
      return "in a round";
    case Talk::close:
      return "at the end of a round";
    case Talk::reconnect:
      return "reconnecting";
  }
  return "in an unknown conversation";
}

std::string place(size_t rank, const Header& header) {
  return c10::str("rank ", rank, " is ", name(header.talk),
                  header.fragment > 0 ? c10::str(" of fragment ", header.fragment) : "", " at inner step ",
                  header.inner_step, " after ", header.round, " rounds");
}

/// The lowest rank whose fingerprint most ranks share.
int majority(const std::vector<Header>& headers) {
  const auto votes = [&](const Header& mine) {
    return std::count_if(headers.begin(), headers.end(),
                         [&](const Header& other) { return other.fingerprint == mine.fingerprint; });
  };
  return static_cast<int>(std::max_element(headers.begin(), headers.end(),
                                           [&](const Header& a, const Header& b) { return votes(a) < votes(b); }) -
                          headers.begin());
}

/// Far enough inside float32, in which weighted deltas travel and the sum of the weights is divided by.
constexpr double least_weight = 1e-9, largest_weight = 1e15;

std::string objections(const std::vector<Header>& headers) {
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    const Header& header = headers[rank];
    if (!(header.weight == 0 || takes_part(header.weight))) {
      return c10::str("rank ", rank, " has weight ", header.weight, "; it must be 0, or from ", least_weight, " to ",
                      largest_weight);
    }
    if (header.non_finite > 0)
      return c10::str("rank ", rank, " has ", header.non_finite, " non-finite elements in its delta");
    if (header.vote == Vote::abort) return c10::str("commit_if said no on rank ", rank);
  }
  return {};
}

}  // namespace

bool takes_part(double weight) { return weight >= least_weight && weight <= largest_weight; }

std::string out_of_step(const std::vector<Header>& headers) {
  const Header& first = headers[0];
  for (size_t rank = 1; rank < headers.size(); ++rank) {
    const Header& header = headers[rank];
    if (header.protocol != first.protocol) {
      return c10::str("rank 0 speaks protocol ", first.protocol, ", rank ", rank, " protocol ", header.protocol);
    }
    const auto at = [](const Header& h) { return std::tie(h.inner_step, h.fragment, h.round); };
    if (at(header) == at(first) && std::minmax(header.talk, first.talk) == std::minmax(Talk::round, Talk::pieces)) {
      const bool pieces = first.talk == Talk::pieces;
      return c10::str("rank 0 sends this round ", pieces ? "in pieces" : "whole", ", rank ", rank,
                      pieces ? " whole" : " in pieces",
                      "; a group with lanes wants the parameters on its own device on every rank, or on none");
    }
    // A new group may join ranks at different places; one that refuses may not know its own.
    const bool counts = header.talk != Talk::reconnect && header.vote != Vote::failed && first.vote != Vote::failed;
    if (header.talk != first.talk || (counts && at(header) != at(first))) {
      return c10::str("replicas are out of step: ", place(0, first), ", ", place(rank, header),
                      "; every rank must call step(), skip_step(), sync() and add_param_group() alike");
    }
  }
  return {};
}

bool same_description(const std::vector<Header>& headers) {
  return std::all_of(headers.begin(), headers.end(), [&](const Header& header) {
    return header.description == headers[0].description && header.elements == headers[0].elements;
  });
}

int first_failed(const std::vector<Header>& headers) {
  const auto failed =
      std::find_if(headers.begin(), headers.end(), [](const Header& h) { return h.vote == Vote::failed; });
  return failed == headers.end() ? -1 : static_cast<int>(failed - headers.begin());
}

int most_advanced(const std::vector<Header>& headers) {
  const auto behind = [](const Header& a, const Header& b) {
    return std::tie(a.round, a.inner_step) < std::tie(b.round, b.inner_step);
  };
  return static_cast<int>(std::max_element(headers.begin(), headers.end(), behind) - headers.begin());
}

Verdict decide(const std::vector<Header>& headers, OnMismatch on_mismatch) {
  if (std::string reason = out_of_step(headers); !reason.empty()) return {Action::disagree, std::move(reason)};
  if (first_failed(headers) >= 0) return {.action = Action::abort};  // its text is the reason
  if (!same_description(headers)) return {Action::disagree, "replicas have different options or parameters"};

  const int root = majority(headers);
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    if (headers[rank].fingerprint == headers[root].fingerprint) continue;
    const std::string reason = c10::str("the anchor of rank ", rank, " differs from that of rank ", root);
    if (on_mismatch == OnMismatch::fail) return {Action::disagree, reason};
    return {Action::repair, reason + "; all take the latter", 0, root};
  }

  if (std::string reason = objections(headers); !reason.empty()) return {Action::abort, std::move(reason)};
  double total_weight = 0;
  std::vector<double> weights;
  for (const Header& header : headers) {
    weights.push_back(header.weight);
    total_weight += header.weight;
  }
  if (total_weight == 0) return {Action::abort, "the weights of all ranks are 0"};
  return {Action::commit, {}, total_weight, 0, std::move(weights)};
}

}  // namespace outerloop::round
