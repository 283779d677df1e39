#include "comm/serial.hpp"

#include <c10/util/StringUtil.h>

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace outerloop::comm {

namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string question(int of) { return c10::str("outerloop/question/", of); }
std::string answer(int to, const std::string& asked) { return c10::str("outerloop/answer/", to, "/", asked); }

std::string give_out(c10d::Store& store, int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> questions;
  for (int other = 1; other < size; ++other) questions.push_back(question(other));
  store.wait(questions, timeout);
  const std::string serial = std::to_string(store.add("outerloop/groups", 1));
  for (int other = 1; other < size; ++other) {
    const std::string asked = text_of(store.get(question(other)));
    store.deleteKey(question(other));
    store.set(answer(other, asked), bytes_of(serial));
  }
  return serial;
}

std::string ask_for(c10d::Store& store, int rank, std::chrono::milliseconds timeout) {
  const std::string asked = std::to_string(store.add(c10::str("outerloop/asked/", rank), 1));
  store.set(question(rank), bytes_of(asked));
  try {
    store.wait({answer(rank, asked)}, timeout);
  } catch (...) {
    store.deleteKey(question(rank));
    throw;
  }
  return text_of(store.get(answer(rank, asked)));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> own_keys(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout) {
  const std::string serial = rank == 0 ? give_out(*store, size, timeout) : ask_for(*store, rank, timeout);
  return c10::make_intrusive<c10d::PrefixStore>("outerloop/" + serial, store);
}

}  // namespace outerloop::comm
