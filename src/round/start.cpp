#include "round/start.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <c10/util/StringUtil.h>

#include <outerloop/stages.hpp>

#include "round/fragment.hpp"

namespace outerloop::round {

namespace {

/// Where anchors will be, so that a GPU without room for them needs none now.
Tensor gathered(const FlatParams& params, const SyncOptions& sync) {
  return params.impl().gather(state_device(params, sync.anchor_device));
}

uint64_t fingerprint_of(const std::vector<FlatParams>& parts, const SyncOptions& sync) {
  uint64_t print = 0;
  for (const FlatParams& part : parts) print = 31 * print + fingerprint(gathered(part, sync));
  return print;
}

void check_equal(const std::vector<Header>& headers) {
  for (size_t rank = 1; rank < headers.size(); ++rank) {
    if (headers[rank].fingerprint != headers[0].fingerprint) {
      throw ConsistencyError(
          c10::str("the parameters of rank ", rank,
                   " differ from those of rank 0 (Start::verify; Start::broadcast makes them equal)"));
    }
  }
}

}  // namespace

Description::Description(std::string lines) : text(std::move(lines)), digest(XXH3_64bits(text.data(), text.size())) {}

void agree(Exchange& exchange, const Description& description, const std::vector<Tensor>& params,
           const SyncOptions& sync, int64_t inner_step, int64_t rounds) {
  if (exchange.size() == 1) return;
  std::vector<ParamSlice> whole;
  for (const Tensor& param : params) whole.push_back({param, "a parameter", 0, param.numel()});
  std::vector<FlatParams> parts = split(whole);
  Header mine{.talk = Talk::start, .inner_step = inner_step, .round = rounds, .description = description.digest};
  if (sync.start == Start::verify) mine.fingerprint = fingerprint_of(parts, sync);
  const Meeting meeting = exchange.meet(mine, description.text);
  if (std::string reason = out_of_step(meeting.headers); !reason.empty()) throw ConsistencyError(reason);
  if (!meeting.texts.empty()) throw ConsistencyError("replicas cannot train together: " + explain(meeting));
  if (sync.start == Start::verify) check_equal(meeting.headers);
  if (sync.start != Start::broadcast) return;
  for (FlatParams& part : parts) {
    const Tensor flat = gathered(part, sync);
    exchange.from(flat.device()).broadcast(flat, 0).wait();
    if (exchange.rank() != 0) part.scatter(flat);
  }
}

}  // namespace outerloop::round
