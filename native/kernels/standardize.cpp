#include "native/kernels/standardize.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace contig {

namespace {

// Sums that do not wait for one another, so that loops become vector instructions.
constexpr size_t kSums = 16;

// The sum of f(x) over an array.
template <class T, class F>
double sum_of(const T* data, size_t count, F f) {
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (size_t j = 0; j < kSums; ++j) sums[j] += f(static_cast<double>(data[i + j]));
  for (; i < count; ++i) sums[0] += f(static_cast<double>(data[i]));
  double out = 0;
  for (double sum : sums) out += sum;
  return out;
}

template <class T>
void one_column(T* data, size_t rows, double epsilon) {
  const double mean = sum_of(data, rows, [](double x) { return x; }) / rows;
  const double squares = sum_of(data, rows, [mean](double x) { return (x - mean) * (x - mean); });
  const double scale = 1 / (std::sqrt(squares / (rows - 1)) + epsilon);
  for (size_t i = 0; i < rows; ++i) data[i] = static_cast<T>((data[i] - mean) * scale);
}

template <class T>
void columns(T* data, size_t rows, size_t width, double epsilon) {
  std::vector<double> mean(width), squares(width);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < width; ++j) mean[j] += data[i * width + j];
  for (double& sum : mean) sum /= rows;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < width; ++j) {
      const double off = data[i * width + j] - mean[j];
      squares[j] += off * off;
    }
  for (double& sum : squares) sum = 1 / (std::sqrt(sum / (rows - 1)) + epsilon);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < width; ++j) {
      T& x = data[i * width + j];
      x = static_cast<T>((x - mean[j]) * squares[j]);
    }
}

}  // namespace

template <class T>
void standardize(T* data, size_t rows, size_t width, double epsilon) {
  if (rows < 2) return std::fill(data, data + rows * width, T(0));
  if (width == 1) return one_column(data, rows, epsilon);
  columns(data, rows, width, epsilon);
}

template void standardize<float>(float*, size_t, size_t, double);
template void standardize<double>(double*, size_t, size_t, double);

}  // namespace contig
