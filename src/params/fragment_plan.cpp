#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include <outerloop/fragments.hpp>

namespace outerloop {

namespace {

using Size = FragmentPlan::Size;

/// All elements as one vector in which some are wider than others.
struct Line {
  explicit Line(const std::vector<Size>& parameters) {
    for (const Size& size : parameters) {
      const int64_t elements_here = size.frozen ? 0 : size.elements;
      begins.push_back({elements, bytes, size.bytes_per_element});
      elements += elements_here;
      bytes += elements_here * size.bytes_per_element;
    }
    begins.push_back({elements, bytes, 1});
  }
  struct Begin {
    int64_t element, byte, width;
  };
  std::vector<Begin> begins;  ///< of each parameter, and the end
  int64_t elements = 0, bytes = 0;
};

/// The element at which piece `index` of `pieces` begins: where its share does, or at the nearer end of the parameter
/// that lies across that place and is no larger than a share.
int64_t begin_of(const Line& line, int64_t index, int64_t pieces) {
  // Split, so that bytes * index cannot overflow.
  const int64_t at = line.bytes / pieces * index + line.bytes % pieces * index / pieces;
  const auto next = std::upper_bound(line.begins.begin(), line.begins.end() - 1, at,
                                     [](int64_t byte, const Line::Begin& begin) { return byte < begin.byte; });
  const Line::Begin& here = *(next - 1);
  if (next->byte - here.byte > line.bytes / pieces) return here.element + (at - here.byte) / here.width;
  return next->byte - at < at - here.byte ? next->element : here.element;
}

/// Where `pieces` pieces of nearly equal bytes begin, and the end: ascending, so that none is empty.
std::vector<int64_t> borders(const Line& line, int64_t pieces) {
  std::vector<int64_t> at{0};
  for (int64_t i = 1; i < pieces; ++i) {
    at.push_back(std::clamp(begin_of(line, i, pieces), at.back() + 1, line.elements - (pieces - i)));
  }
  at.push_back(line.elements);
  return at;
}

/// What of the parameters lies in elements [begin, end) of the line.
void add_slices(const Line& line, int64_t begin, int64_t end, std::vector<Slice>& to) {
  for (size_t i = 0; i + 1 < line.begins.size(); ++i) {
    const int64_t first = line.begins[i].element;
    const int64_t from = std::max(begin, first), until = std::min(end, line.begins[i + 1].element);
    if (from < until) to.push_back({static_cast<int64_t>(i), from - first, until - first});
  }
}

std::vector<std::vector<Slice>> in_pieces(const Line& line, int64_t pieces, int64_t fragments) {
  std::vector<std::vector<Slice>> cut(fragments);
  const std::vector<int64_t> at = borders(line, pieces);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    add_slices(line, at[piece], at[piece + 1], cut[piece % fragments]);
  }
  return cut;
}

std::vector<std::vector<Slice>> as_listed(const std::vector<std::vector<int64_t>>& lists,
                                          const std::vector<Size>& parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  std::vector<int64_t> fragment_of(count, -1);
  std::vector<std::vector<Slice>> cut(lists.size());
  for (size_t f = 0; f < lists.size(); ++f) {
    for (const int64_t i : lists[f]) {
      TORCH_CHECK(i >= 0 && i < count, "fragment ", f, " has parameter ", i, ", but there are ", count);
      TORCH_CHECK(fragment_of[i] < 0, "parameter ", i, " is in fragment ", fragment_of[i], " and again in fragment ",
                  f);
      fragment_of[i] = static_cast<int64_t>(f);
      if (!parameters[i].frozen && parameters[i].elements > 0) cut[f].push_back({i, 0, parameters[i].elements});
    }
    TORCH_CHECK(!cut[f].empty(), "fragment ", f, " has no element to train");
  }
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(fragment_of[i] >= 0 || parameters[i].frozen, "parameter ", i, " is in no fragment");
  }
  return cut;
}

}  // namespace

FragmentPlan FragmentPlan::whole() { return sequential(1); }

FragmentPlan FragmentPlan::sequential(int64_t n) {
  TORCH_CHECK(n >= 1, "fragments must be >= 1, got ", n);
  return {Kind::sequential, n};
}

FragmentPlan FragmentPlan::strided(int64_t n) {
  TORCH_CHECK(n >= 1, "fragments must be >= 1, got ", n);
  return {Kind::strided, n};
}

FragmentPlan FragmentPlan::listed(std::vector<std::vector<int64_t>> parameters) {
  TORCH_CHECK(!parameters.empty(), "fragments must be >= 1, got an empty list");
  const auto count = static_cast<int64_t>(parameters.size());
  return {Kind::listed, count, std::move(parameters)};
}

std::string FragmentPlan::describe() const {
  if (kind_ != Kind::listed) return c10::str(kind_ == Kind::strided ? "strided " : "sequential ", count_);
  std::string text = "listed";
  for (const auto& fragment : parameters_) text += c10::str(" {", c10::Join(" ", fragment), "}");
  return text;
}

std::vector<std::vector<Slice>> FragmentPlan::cut(const std::vector<Size>& parameters) const {
  if (kind_ == Kind::listed) return as_listed(parameters_, parameters);
  const Line line(parameters);
  if (count_ == 1) return in_pieces(line, 1, 1);  // of no elements too
  TORCH_CHECK(count_ <= line.elements, "fragments is ", count_, ", but there are ", line.elements,
              " elements to train");
  if (kind_ == Kind::sequential) return in_pieces(line, count_, count_);
  const int64_t turns = std::max<int64_t>(1, static_cast<int64_t>(parameters.size()) / count_);
  return in_pieces(line, count_ * std::min(turns, line.elements / count_), count_);
}

}  // namespace outerloop
