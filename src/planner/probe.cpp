#include "planner/probe.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "planner/check.hpp"

namespace outerloop::planner {

namespace {

constexpr int64_t nothing_more = 0, smallest = 1, first_large = 1 << 10, largest = 1 << 24;  // elements, float32

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What every rank does alike, told by rank 0.
class Member {
 public:
  explicit Member(Communicator& comm)
      : comm_(comm),
        order_(at::zeros({1}, at::device(comm.device()).dtype(at::kLong))),
        link_(at::zeros({2}, at::device(comm.device()).dtype(at::kDouble))),
        payload_(at::zeros({smallest}, at::device(comm.device()).dtype(at::kFloat))) {}

  /// The number of elements to reduce next: rank 0's, on every rank.
  int64_t agree(int64_t numel) {
    order_.fill_(numel);
    comm_.broadcast(order_, 0).wait();
    return order_.item<int64_t>();
  }
  /// All ranks begin together, after one that is not timed.
  void reduce(int64_t numel, const std::function<void()>& begin) {
    if (payload_.numel() < numel) payload_ = at::zeros({numel}, payload_.options());
    comm_.all_reduce_sum(payload_.narrow(0, 0, smallest)).wait();
    begin();
    comm_.all_reduce_sum(payload_.narrow(0, 0, numel)).wait();
  }
  Link share(const Link& link) {
    link_[0].fill_(link.bits_per_second);
    link_[1].fill_(link.latency_seconds);
    comm_.broadcast(link_, 0).wait();
    return {link_[0].item<double>(), link_[1].item<double>()};
  }

 private:
  Communicator& comm_;
  at::Tensor order_, link_, payload_;
};

class Leader {
 public:
  Leader(Member& member, double seconds, const std::function<double()>& now)
      : member_(member), now_(now), begun_(now()), seconds_(seconds) {}

  double time(int64_t numel) {
    double begun = 0;
    member_.agree(numel);
    member_.reduce(numel, [&] { begun = now_(); });
    return now_() - begun;
  }
  /// Median seconds; at least one, then, up to a hundred, while another fits into the first `share` of the time.
  double repeat(int64_t numel, double share) {
    std::vector<double> times;
    do {
      times.push_back(time(numel));
    } while (now_() - begun_ + times.back() < share * seconds_ && times.size() < 100);
    return median(times);
  }
  /// So many elements that one all-reduce takes a sixteenth of the time, up to four times as long.
  int64_t large_enough() {
    int64_t numel = first_large;
    while (numel < largest && time(numel) < seconds_ / 16) numel *= 4;
    return numel;
  }

 private:
  Member& member_;
  const std::function<double()>& now_;
  double begun_, seconds_;
};

/// The line through two all-reduces: seconds = latency + bits / bandwidth. Where they take as long as each other, half
/// of that is latency.
Link line_through(double small_bits, double small_seconds, double large_bits, double large_seconds) {
  small_seconds = std::min(small_seconds, large_seconds / 2);
  const double bandwidth = (large_bits - small_bits) / (large_seconds - small_seconds);
  return {bandwidth, std::max(0.0, small_seconds - small_bits / bandwidth)};
}

Link measure(Member& member, double seconds, int replicas, const std::function<double()>& now) {
  member.agree(smallest);
  member.reduce(smallest, [] {});  // the first ones set things up
  Leader leader(member, seconds, now);
  const double small_seconds = leader.repeat(smallest, 0.25);
  const int64_t large = leader.large_enough();
  const double large_seconds = leader.repeat(large, 1);
  member.agree(nothing_more);
  const double bits = 2.0 * (replicas - 1) / replicas * 8 * sizeof(float);  // that a replica sends of one element
  return line_through(bits * smallest, small_seconds, bits * static_cast<double>(large), large_seconds);
}

}  // namespace

Link probe(Communicator& comm, double seconds, const std::function<double()>& now) {
  check_positive("seconds", seconds);
  if (comm.size() == 1) return {std::numeric_limits<double>::infinity(), 0};
  Member member(comm);
  if (comm.rank() == 0) return member.share(measure(member, seconds, comm.size(), now));
  while (const int64_t numel = member.agree(nothing_more)) member.reduce(numel, [] {});
  return member.share({});
}

Link probe(Communicator& comm, double seconds) {
  return probe(comm, seconds, [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  });
}

}  // namespace outerloop::planner
