#include <gtest/gtest.h>
#include <torch/types.h>

#include <outerloop/outerloop.hpp>

#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/pair.hpp"
#include "comm/port.hpp"
#include "comm/serial.hpp"

namespace outerloop {
namespace {

using namespace std::chrono_literals;
using testing::expect_sums;
using testing::on_two_threads;
using testing::ReservedPort;
using testing::says;

/// Something that is not a store, and says nothing.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : socket_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1, no = 0;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
  }
  ~Stranger() { close(socket_); }

 private:
  int socket_;
};

TEST(ConnectGloo, MeetsOnThreadsOfOneProcess) {
  const ReservedPort port;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = connect_gloo({.rank = rank, .size = 3, .port = port, .timeout = 60s});
      const Tensor rows = torch::empty({3, 1}, at::kLong);
      comm->all_gather(rows, torch::full({1}, rank, at::kLong)).wait();
      EXPECT_TRUE(torch::equal(rows.view(-1), torch::arange(3)));
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Rank 0, which serves the store, lets go of its group after the other has come back for the next.
TEST(ConnectGloo, MeetsAgainWhereAnEarlierGroupIsJustGoing) {
  const ReservedPort port;
  std::promise<void> coming;
  const auto connect = [&](int rank) { return connect_gloo({.rank = rank, .size = 2, .port = port, .timeout = 20s}); };
  on_two_threads([&](int rank) {
    auto comm = connect(rank);
    if (rank == 0) {
      coming.get_future().wait();
      std::this_thread::sleep_for(300ms);
    }
    comm.reset();
    if (rank == 1) coming.set_value();
    expect_sums(connect(rank));
  });
}

TEST(ConnectGloo, OfRanksThatWereToldDifferentSizesNamesThem) {
  const ReservedPort port;
  on_two_threads([&](int rank) {
    try {
      connect_gloo({.rank = rank, .size = 2 + rank, .port = port, .timeout = 20s});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_TRUE(says(error.what(), "rank 0 is in a group of 2, rank 1 in one of 3; all must be told"));
    }
  });
}

/// The peer takes part in the meeting shortly before the time is over, and then in nothing more.
TEST(ConnectGloo, TakesNoMoreThanItsTimeoutInAll) {
  const ReservedPort port;
  const auto begin = std::chrono::steady_clock::now();
  on_two_threads([&](int rank) {
    if (rank == 0) {
      EXPECT_THROW(connect_gloo({.size = 2, .port = port, .timeout = 3s}), CommError);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 4500ms);
      return;
    }
    std::this_thread::sleep_for(2500ms);
    c10d::TCPStoreOptions options;
    options.port = port;
    comm::own_keys(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options), {.rank = 1, .size = 2}, 10s);
  });
}

TEST(ConnectGloo, OfOneIsAloneAndOpensNoPort) {
  EXPECT_EQ(connect_gloo({.size = 1, .host = "no-such-host.invalid"})->size(), 1);
}

TEST(ConnectGloo, AtAPortInUseIsACommErrorNamingIt) {
  const ReservedPort port;
  const Stranger stranger(port);
  try {
    connect_gloo({.rank = 0, .size = 2, .port = port, .timeout = 1s});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_TRUE(says(error.what(), "rank 0 of 2"));
    EXPECT_TRUE(says(error.what(), "127.0.0.1:" + std::to_string(port)));
    EXPECT_EQ(std::string(error.what()).find("frame #"), std::string::npos) << error.what();
  }
}

TEST(ConnectGloo, AtAPortWhereNobodyAnswersIsACommErrorToo) {
  const ReservedPort port;
  const Stranger stranger(port);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(connect_gloo({.rank = 1, .size = 2, .port = port, .timeout = 500ms}), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(ConnectGloo, NamesABadArgument) {
  const auto refusal = [](const Rendezvous& at) -> std::string {
    try {
      connect_gloo(at);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  EXPECT_TRUE(says(refusal({.size = 0}), "size must be >= 1, got 0"));
  EXPECT_TRUE(says(refusal({.rank = 2, .size = 2}), "rank 2 of size 2"));
  EXPECT_TRUE(says(refusal({.rank = -1, .size = 2}), "rank -1"));
  EXPECT_TRUE(says(refusal({.size = 2, .host = ""}), "host"));
  EXPECT_TRUE(says(refusal({.size = 2, .lanes = -1}), "lanes must be in [0, 64], got -1"));
  EXPECT_TRUE(says(refusal({.size = 2, .lanes = 65}), "got 65"));
  EXPECT_TRUE(says(refusal({.size = 2, .timeout = 0ms}), "timeout"));
  EXPECT_TRUE(says(refusal({.size = 2, .timeout = std::chrono::milliseconds::max()}), "timeout"));
}

}  // namespace
}  // namespace outerloop
