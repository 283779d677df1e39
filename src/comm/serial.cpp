#include "comm/serial.hpp"

#include <c10/util/StringUtil.h>

#include <outerloop/error.hpp>

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace outerloop::comm {

namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string question(int of) { return c10::str("outerloop/question/", of); }
std::string answer(int to, const std::string& asked) { return c10::str("outerloop/answer/", to, "/", asked); }

/// What a rank asks with: that this is its n-th question, in a group of so many.
std::string asking(const std::string& count, int size) { return c10::str(count, " of ", size); }

std::string give_out(c10d::Store& store, int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> answers;
  for (int other = 1; other < size; ++other) {
    store.wait({question(other)}, timeout);
    const std::string asked = text_of(store.get(question(other))), count = asked.substr(0, asked.find(' '));
    answers.push_back(answer(other, count));
    if (asked == asking(count, size)) continue;
    const std::string clash = c10::str("rank 0 is in a group of ", size, ", rank ", other, " in one",
                                       asked.substr(count.size()), "; all must be told the same size");
    store.deleteKey(question(other));
    store.set(answers.back(), bytes_of(clash));
    throw CommError(clash);
  }
  const std::string serial = std::to_string(store.add("outerloop/groups", 1));
  for (int other = 1; other < size; ++other) {
    store.deleteKey(question(other));
    store.set(answers[other - 1], bytes_of(serial));
  }
  return serial;
}

std::string ask_for(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const std::string count = std::to_string(store.add(c10::str("outerloop/asked/", rank), 1));
  store.set(question(rank), bytes_of(asking(count, size)));
  try {
    store.wait({answer(rank, count)}, timeout);
  } catch (...) {
    store.deleteKey(question(rank));
    throw;
  }
  std::string serial = text_of(store.get(answer(rank, count)));
  if (serial.find(' ') != std::string::npos) throw CommError(serial);
  return serial;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> own_keys(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout) {
  const std::string serial = rank == 0 ? give_out(*store, size, timeout) : ask_for(*store, rank, size, timeout);
  return c10::make_intrusive<c10d::PrefixStore>("outerloop/" + serial, store);
}

}  // namespace outerloop::comm
