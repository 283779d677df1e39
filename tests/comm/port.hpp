#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace outerloop::testing {

/// A port of the kernel's choice that is this test's until it ends: bound, so that nobody else is given it, and not
/// listening, so that a server may (both set SO_REUSEADDR, as TCPStore does).
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0) << std::strerror(errno);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin6_port);
  }
  ReservedPort(const ReservedPort&) = delete;
  ~ReservedPort() { close(socket_); }
  operator uint16_t() const { return port_; }

 private:
  int socket_;
  uint16_t port_ = 0;
};

inline ::testing::AssertionResult says(const std::string& text, const std::string& words) {
  if (text.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" does not say \"" << words << '"';
}

}  // namespace outerloop::testing
