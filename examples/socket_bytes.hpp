#pragma once

#include <cstdint>

/// Bytes that the TCP sockets which this process holds open have sent so far, as the kernel counts them; what it sent
/// again because it thought it lost is not counted.
int64_t socket_bytes_sent();
