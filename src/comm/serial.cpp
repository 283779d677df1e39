#include "comm/serial.hpp"

#include <c10/util/StringUtil.h>

#include <outerloop/error.hpp>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace outerloop::comm {

namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string question(int of) { return c10::str("outerloop/question/", of); }
std::string answer(int to, const std::string& asked) { return c10::str("outerloop/answer/", to, "/", asked); }

/// What a rank asks with: that this is its n-th question, and for which group.
std::string asking(const std::string& count, const Rendezvous& at) {
  return c10::str(count, " of ", at.size, at.lanes > 0 ? c10::str(" with ", at.lanes, " lanes") : "");
}

std::string heard(const std::string& answer) { return answer + "/heard"; }

/// Returns when they have heard, as the store may go with this rank; or soon.
void tell_of_difference(c10d::Store& store, const std::vector<std::string>& answers, const std::string& difference,
                        std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds patience{1000};
  std::vector<std::string> all_heard;
  for (const std::string& answer : answers) {
    store.set(answer, bytes_of(difference));
    all_heard.push_back(heard(answer));
  }
  try {
    store.wait(all_heard, std::min(timeout, patience));
  } catch (const std::exception&) {  // one is gone: there is nobody to tell
  }
}

std::string give_out(c10d::Store& store, const Rendezvous& at, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds patience{1000};
  std::vector<std::string> answers;
  std::string difference;
  for (int other = 1; other < at.size; ++other) {
    try {
      store.wait({question(other)}, difference.empty() ? timeout : std::min(timeout, patience));
    } catch (...) {
      if (difference.empty()) throw;
      break;  // it is not told in time
    }
    const std::string asked = text_of(store.get(question(other))), count = asked.substr(0, asked.find(' '));
    answers.push_back(answer(other, count));
    if (asked == asking(count, at) || !difference.empty()) continue;
    difference = c10::str("rank 0 is in a group", asking("", at), ", rank ", other, " in one",
                          asked.substr(count.size()), "; all must be told the same size and lanes");
  }
  if (!difference.empty()) {
    for (int asker = 1; asker <= static_cast<int>(answers.size()); ++asker) store.deleteKey(question(asker));
    tell_of_difference(store, answers, difference, timeout);
    throw CommError(difference);
  }
  const std::string serial = std::to_string(store.add("outerloop/groups", 1));
  for (int other = 1; other < at.size; ++other) {
    store.deleteKey(question(other));
    store.set(answers[other - 1], bytes_of(serial));
  }
  return serial;
}

std::string ask_for(c10d::Store& store, const Rendezvous& at, std::chrono::milliseconds timeout) {
  const int rank = at.rank;
  const std::string count = std::to_string(store.add(c10::str("outerloop/asked/", rank), 1));
  store.set(question(rank), bytes_of(asking(count, at)));
  try {
    store.wait({answer(rank, count)}, timeout);
  } catch (...) {
    store.deleteKey(question(rank));
    throw;
  }
  std::string serial = text_of(store.get(answer(rank, count)));
  if (serial.find(' ') == std::string::npos) return serial;
  store.set(heard(answer(rank, count)), bytes_of("1"));
  throw CommError(serial);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> own_keys(const c10::intrusive_ptr<c10d::Store>& store, const Rendezvous& at,
                                         std::chrono::milliseconds timeout) {
  const std::string serial = at.rank == 0 ? give_out(*store, at, timeout) : ask_for(*store, at, timeout);
  return c10::make_intrusive<c10d::PrefixStore>("outerloop/" + serial, store);
}

}  // namespace outerloop::comm
