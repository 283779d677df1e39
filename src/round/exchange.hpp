#pragma once

#include <outerloop/communicator.hpp>

#include <string>
#include <vector>

#include "comm/staged.hpp"
#include "round/header.hpp"

namespace outerloop::round {

/// What all ranks know after an exchange of headers.
struct Meeting {
  std::vector<Header> headers;
  std::vector<std::string> texts;  ///< of all ranks, if they are in step and one failed or descriptions differ
};

/// The headers of a group. A group of one does not communicate.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Communicator> comm);
  const std::shared_ptr<Communicator>& group() const { return reach_.group(); }
  int size() const { return group()->size(); }
  int rank() const { return group()->rank(); }
  Communicator& from(at::Device device) { return reach_.from(device); }  ///< the group, for tensors there

  /// Collective; throws CommError. `text` is this rank's description, or what failed here.
  Meeting meet(Header mine, const std::string& text);

 private:
  std::vector<std::string> texts(const std::vector<Header>& headers, const std::string& mine);

  comm::Reach reach_;
  Tensor mine_, rows_;  // bytes of headers, on the CPU, kept between rounds
};

/// Throws c10::Error unless this build supports the group's device.
void check_device(const Communicator& comm);

/// The text of the first rank that failed, or the first line in which two ranks' texts differ.
std::string explain(const Meeting& meeting);

/// Tells the other ranks of `comm`, which are about to meet, that this one will not come, and why. They throw
/// ConsistencyError instead of waiting.
void refuse(const std::shared_ptr<Communicator>& comm, const std::string& why) noexcept;

/// Returns make(). If it throws, refuses to the other ranks before rethrowing.
template <class Make>
auto or_refuse(const std::shared_ptr<Communicator>& comm, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    refuse(comm, error.what());
    throw;
  }
}

}  // namespace outerloop::round
