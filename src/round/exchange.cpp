#include "round/exchange.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "kernels/kernels.hpp"

namespace outerloop::round {

namespace {

/// Never empty.
std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  if (result.empty()) result.emplace_back();
  return result;
}

std::string first_difference(const std::vector<std::string>& texts) {
  const std::vector<std::string> first = lines(texts[0]);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = lines(texts[rank]);
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "nothing more",
                        b = i < other.size() ? other[i] : "nothing more";
      if (a != b) return c10::str("rank 0 has ", a, ", rank ", rank, " has ", b);
    }
  }
  return "their digests differ, their texts do not";
}

}  // namespace

Exchange::Exchange(std::shared_ptr<Communicator> comm) : reach_(std::move(comm)) {
  if (size() == 1) return;
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  mine_ = at::empty({static_cast<int64_t>(sizeof(Header))}, bytes);
  rows_ = at::empty({size(), static_cast<int64_t>(sizeof(Header))}, bytes);
}

Meeting Exchange::meet(Header mine, const std::string& text) {
  mine.text_bytes = static_cast<uint32_t>(text.size());
  std::vector<Header> headers(size(), mine);
  if (size() > 1) {
    std::memcpy(mine_.mutable_data_ptr(), &mine, sizeof(Header));
    from(at::kCPU).all_gather(rows_, mine_).wait();
    std::memcpy(headers.data(), rows_.const_data_ptr(), headers.size() * sizeof(Header));
  }
  const bool tell = out_of_step(headers).empty() && (first_failed(headers) >= 0 || !same_description(headers));
  return {headers, tell ? texts(headers, text) : std::vector<std::string>{}};
}

std::vector<std::string> Exchange::texts(const std::vector<Header>& headers, const std::string& mine) {
  if (size() == 1) return {mine};
  int64_t longest = 1;
  for (const Header& header : headers) longest = std::max(longest, int64_t{header.text_bytes});
  const Tensor text = at::zeros({longest}, mine_.options());
  const Tensor rows = at::empty({size(), longest}, mine_.options());
  std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  from(at::kCPU).all_gather(rows, text).wait();
  std::vector<std::string> all;
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    all.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + rank * longest, headers[rank].text_bytes);
  }
  return all;
}

void check_device(const Communicator& comm) {
  TORCH_CHECK(kernels::runs_on(comm.device()), "comm is on ", comm.device(), "; this build supports ",
              kernels::runs_on(at::kCUDA) ? "cpu and cuda" : "cpu");
}

std::string explain(const Meeting& meeting) {
  const int failed = first_failed(meeting.headers);
  return failed >= 0 ? c10::str("rank ", failed, " failed: ", lines(meeting.texts[failed])[0])
                     : first_difference(meeting.texts);
}

void refuse(const std::shared_ptr<Communicator>& comm, const std::string& why) noexcept {
  if (!comm || comm->size() == 1) return;
  try {
    Exchange(comm).meet({.talk = Talk::start, .vote = Vote::failed}, why);
  } catch (...) {  // the group is broken as well; the caller's own error matters more
  }
}

}  // namespace outerloop::round
