// Small operations of a forward pass on the processor, each in one call and one pass over its data.
//
// A step of few tokens is bound by the number of calls, and a long one by the number of passes over memory; matrix
// products of many rows stay with torch. Names and meaning are those of the reference implementation. "exact" is
// float, or double where the run is in double; values are rounded to the run's dtype where the reference rounds them.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using at::Tensor;

template <typename T>
using Exact = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline float load(c10::BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16); }
inline float load(float value) { return value; }
inline double load(double value) { return value; }

// Plain shifts instead of c10's conversion, which does not vectorize.
template <typename T, typename E>
inline T round_to(E value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return c10::BFloat16(static_cast<uint16_t>(nan ? 0x7fc0 : rounded), c10::BFloat16::from_bits());
  } else {
    return static_cast<T>(value);
  }
}

// e to the value, within 2e-7 of it: the library's function is a call per number, this one vectorizes.
inline float exponential(float value) {
  value = value < -87.0f ? -87.0f : value > 88.0f ? 88.0f : value;
  const float whole = std::nearbyint(value * 1.44269504088896341f);
  const float rest = (value - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  return series * std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
}
inline double exponential(double value) { return std::exp(value); }

template <typename E>
inline E sigmoid(E value) {
  return E(1) / (E(1) + exponential(-value));
}

c10::ScalarType exact_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Tensor exact(const Tensor& x, c10::ScalarType type) { return x.to(type).contiguous(); }

// Calls body<T>() for the dtype of a tensor.
template <typename F>
void dispatch_exact(c10::ScalarType type, const F& body) {
  if (type == at::kDouble) return body.template operator()<double>();
  TORCH_CHECK(type == at::kFloat, "no kernel for ", type);
  body.template operator()<float>();
}

template <typename F>
void dispatch(c10::ScalarType type, const F& body) {
  if (type == at::kBFloat16) return body.template operator()<c10::BFloat16>();
  dispatch_exact(type, body);
}

// Calls body(first, last) on shares of [0, count) that cost at least ~32k multiplications, `each` per item.
template <typename F>
void in_parallel(int64_t count, int64_t each, const F& body) {
  at::parallel_for(0, count, std::max<int64_t>(1, 32768 / std::max<int64_t>(each, 1)), body);
}

// LANES numbers in registers.
constexpr int64_t LANES = 8;
template <typename E>
struct Lanes {
  typedef E Vector __attribute__((vector_size(LANES * sizeof(E))));
  Vector v;
};
template <typename E>
using Vector = typename Lanes<E>::Vector;

template <typename E, typename T>
inline Vector<E> load_lanes(const T* from) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    Vector<uint16_t> halves;
    std::memcpy(&halves, from, sizeof(halves));
    const Vector<uint32_t> bits = __builtin_convertvector(halves, Vector<uint32_t>) << 16;
    return __builtin_convertvector(std::bit_cast<Vector<float>>(bits), Vector<E>);
  } else {
    Vector<T> values;
    std::memcpy(&values, from, sizeof(values));
    return __builtin_convertvector(values, Vector<E>);
  }
}

// sums[i] = x[i] . w for ROWS vectors of length n; several sums at a time, so that their chains of additions overlap.
template <int ROWS, typename E, typename W>
inline void dots(const E* const* x, const W* w, int64_t n, E* sums) {
  constexpr int CHAINS = ROWS == 1 ? 4 : ROWS == 8 ? 1 : 2;
  Vector<E> parts[ROWS][CHAINS] = {};
  int64_t i = 0;
  for (; i + CHAINS * LANES <= n; i += CHAINS * LANES) {
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) {
      const Vector<E> values = load_lanes<E>(w + i + c * LANES);
#pragma GCC unroll 8
      for (int row = 0; row < ROWS; ++row) parts[row][c] += load_lanes<E>(x[row] + i + c * LANES) * values;
    }
  }
  for (int row = 0; row < ROWS; ++row) {
    for (int c = 1; c < CHAINS; ++c) parts[row][0] += parts[row][c];
    E sum = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) sum += parts[row][0][lane];
    for (int64_t rest = i; rest < n; ++rest) sum += x[row][rest] * load(w[rest]);
    sums[row] = sum;
  }
}

// The same for any number of vectors.
template <typename E, typename W>
inline void dot_rows(const E* const* x, int64_t rows, const W* w, int64_t n, E* sums) {
  for (; rows >= 8; rows -= 8, x += 8, sums += 8) dots<8>(x, w, n, sums);
  for (; rows >= 4; rows -= 4, x += 4, sums += 4) dots<4>(x, w, n, sums);
  if (rows == 3) dots<3>(x, w, n, sums);
  if (rows == 2) dots<2>(x, w, n, sums);
  if (rows == 1) dots<1>(x, w, n, sums);
}

// The rows of a contiguous matrix, as dot_rows wants them.
template <typename E>
std::vector<const E*> row_pointers(const Tensor& x) {
  std::vector<const E*> rows(x.size(0));
  for (int64_t row = 0; row < x.size(0); ++row) rows[row] = x.const_data_ptr<E>() + row * x.size(1);
  return rows;
}

// ---- linear: x [..., groups * in], W [groups * out, in], few rows -> [..., groups * out] in the dtype of x, or exact

Tensor few_linear(const Tensor& x, const Tensor& weight, bool exactly) {
  const Tensor wide = exact(x, exact_type(x));
  const int64_t in = weight.size(1), groups = x.size(-1) / in, rows = x.numel() / x.size(-1);
  const int64_t all = weight.size(0), out = all / groups;
  auto sizes = x.sizes().vec();
  sizes.back() = all;
  Tensor result = at::empty(sizes, x.options().dtype(exactly ? exact_type(x) : x.scalar_type()));
  dispatch(weight.scalar_type(), [&]<typename W>() {
    dispatch(result.scalar_type(), [&]<typename T>() {
      using E = Exact<T>;
      std::vector<const E*> from(groups * rows);
      for (int64_t i = 0; i < groups * rows; ++i) from[i % groups * rows + i / groups] = wide.const_data_ptr<E>() + i * in;
      const W* w = weight.const_data_ptr<W>();
      T* to = result.data_ptr<T>();
      in_parallel(all, rows * in, [&](int64_t first, int64_t last) {
        std::vector<E> sums(rows);
        for (int64_t o = first; o < last; ++o) {
          dot_rows(from.data() + o / out * rows, rows, w + o * in, in, sums.data());
          for (int64_t row = 0; row < rows; ++row) to[row * all + o] = round_to<T>(sums[row]);
        }
      });
    });
  });
  return result;
}

// ---- norm: x [..., width], weight [width] exact or none

Tensor rms_norm(const Tensor& input, const std::optional<Tensor>& weight, double eps) {
  const Tensor x = input.contiguous();
  Tensor result = at::empty(x.sizes(), x.options());
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  dispatch(x.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const T* from = x.const_data_ptr<T>();
    const E* scale = weight ? weight->const_data_ptr<E>() : nullptr;
    T* to = result.data_ptr<T>();
    in_parallel(rows, width, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = from + row * width;
        T* out = to + row * width;
        E sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; ++i) sum += load(in[i]) * load(in[i]);
        const E inverse = E(1) / std::sqrt(sum / E(width) + E(eps));
        if (scale) {
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) out[i] = round_to<T>(load(in[i]) * inverse * scale[i]);
        } else {
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) out[i] = round_to<T>(load(in[i]) * inverse);
        }
      }
    });
  });
  return result;
}

// ---- rotary: x [..., width]; cos, sin [..., half] exact, one angle for `heads` rows of x that follow one another

Tensor rotate(const Tensor& input, const Tensor& cosine, const Tensor& sine, bool back) {
  const Tensor x = input.contiguous(), cos = cosine.contiguous(), sin = sine.contiguous();
  Tensor result = at::empty(x.sizes(), x.options());
  const int64_t width = x.size(-1), half = cos.size(-1), still = width - 2 * half;
  const int64_t angles = cos.numel() / half, heads = angles ? x.numel() / width / angles : 0;
  dispatch(x.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const E *c = cos.const_data_ptr<E>(), *s = sin.const_data_ptr<E>();
    const E sign = back ? E(-1) : E(1);
    const T* from = x.const_data_ptr<T>();
    T* to = result.data_ptr<T>();
    in_parallel(angles, heads * width, [&](int64_t first, int64_t last) {
      for (int64_t row = first * heads; row < last * heads; ++row) {
        const T* in = from + row * width;
        T* out = to + row * width;
        const E *turn_c = c + row / heads * half, *turn_s = s + row / heads * half;
        std::copy(in, in + still, out);
        for (int64_t i = 0; i < half; ++i) {
          const E a = load(in[still + 2 * i]), b = load(in[still + 2 * i + 1]), turn = sign * turn_s[i];
          out[still + 2 * i] = round_to<T>(a * turn_c[i] - b * turn);
          out[still + 2 * i + 1] = round_to<T>(a * turn + b * turn_c[i]);
        }
      }
    });
  });
  return result;
}

// ---- hyper-connections: stream [tokens, K, hidden] contiguous; mixes [tokens, n] exact: the product, not yet normed

// x = sum over k of weights[k] * stream[k]
template <typename T, typename E>
inline void weighted_sum(const T* stream, const E* weights, int64_t k, int64_t hidden, T* x) {
  constexpr int64_t block = 256;
  E sums[block];
  for (int64_t start = 0; start < hidden; start += block) {
    const int64_t n = std::min(block, hidden - start);
    std::fill(sums, sums + n, E(0));
    for (int64_t j = 0; j < k; ++j) {
      const T* from = stream + j * hidden + start;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] += weights[j] * load(from[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[start + i] = round_to<T>(sums[i]);
  }
}

template <typename T>
inline Exact<T> inverse_norm(const T* x, int64_t n, double eps) {
  using E = Exact<T>;
  E sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += load(x[i]) * load(x[i]);
  return E(1) / std::sqrt(sum / E(n) + E(eps));
}

template <typename E>
inline void normalize_rows(E* c, int64_t k, E eps) {
  for (int64_t j = 0; j < k; ++j) {
    E sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += c[j * k + i];
    const E inverse = E(1) / (sum + eps);
    for (int64_t i = 0; i < k; ++i) c[j * k + i] *= inverse;
  }
}

template <typename E>
inline void normalize_columns(E* c, int64_t k, E eps) {
  for (int64_t i = 0; i < k; ++i) {
    E sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += c[j * k + i];
    const E inverse = E(1) / (sum + eps);
    for (int64_t j = 0; j < k; ++j) c[j * k + i] *= inverse;
  }
}

template <typename E>
inline void sinkhorn(E* c, int64_t k, int64_t iters, E eps) {
  for (int64_t j = 0; j < k; ++j) {
    E* row = c + j * k;
    const E most = *std::max_element(row, row + k);
    E sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += row[i] = exponential(row[i] - most);
    for (int64_t i = 0; i < k; ++i) row[i] = row[i] / sum + eps;
  }
  normalize_columns(c, k, eps);
  for (int64_t iteration = 1; iteration < iters; ++iteration) {
    normalize_rows(c, k, eps);
    normalize_columns(c, k, eps);
  }
}

// A width known to the compiler keeps the matrix in registers.
template <typename E>
void sinkhorn_of(E* c, int64_t k, int64_t iters, E eps) {
  if (k == 4) {
    E square[16];
    std::copy(c, c + 16, square);
    sinkhorn<E>(square, 4, iters, eps);
    std::copy(square, square + 16, c);
  } else {
    sinkhorn<E>(c, k, iters, eps);
  }
}

std::tuple<Tensor, Tensor, Tensor> hc_before(const Tensor& stream, const Tensor& mixes, const Tensor& base,
                                             const Tensor& scale, int64_t iters, double eps, double norm_eps) {
  const int64_t tokens = stream.size(0), k = stream.size(1), hidden = stream.size(2), all = 2 * k + k * k;
  Tensor x = at::empty({tokens, hidden}, stream.options());
  Tensor post = at::empty({tokens, k}, mixes.options()), comb = at::empty({tokens, k, k}, mixes.options());
  dispatch(stream.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const E *mix = mixes.const_data_ptr<E>(), *bias = base.const_data_ptr<E>(), *s = scale.const_data_ptr<E>();
    const T* flow = stream.const_data_ptr<T>();
    T* xs = x.data_ptr<T>();
    E *posts = post.data_ptr<E>(), *combs = comb.data_ptr<E>();
    in_parallel(tokens, 2 * k * hidden, [&](int64_t first, int64_t last) {
      std::vector<E> pre(k);
      for (int64_t t = first; t < last; ++t) {
        const E inverse = inverse_norm(flow + t * k * hidden, k * hidden, norm_eps);
        const E* m = mix + t * all;
        for (int64_t i = 0; i < k; ++i) {
          pre[i] = sigmoid(m[i] * inverse * s[0] + bias[i]) + E(eps);
          posts[t * k + i] = E(2) * sigmoid(m[k + i] * inverse * s[1] + bias[k + i]);
        }
        E* c = combs + t * k * k;
        for (int64_t i = 0; i < k * k; ++i) c[i] = m[2 * k + i] * inverse * s[2] + bias[2 * k + i];
        sinkhorn_of<E>(c, k, iters, E(eps));
        weighted_sum(flow + t * k * hidden, pre.data(), k, hidden, xs + t * hidden);
      }
    });
  });
  return {x, post, comb};
}

Tensor hc_head(const Tensor& stream, const Tensor& mixes, const Tensor& base, const Tensor& scale, double eps,
               double norm_eps) {
  const int64_t tokens = stream.size(0), k = stream.size(1), hidden = stream.size(2);
  Tensor x = at::empty({tokens, hidden}, stream.options());
  dispatch(stream.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const E *mix = mixes.const_data_ptr<E>(), *bias = base.const_data_ptr<E>(), *s = scale.const_data_ptr<E>();
    const T* flow = stream.const_data_ptr<T>();
    T* xs = x.data_ptr<T>();
    in_parallel(tokens, 2 * k * hidden, [&](int64_t first, int64_t last) {
      std::vector<E> weights(k);
      for (int64_t t = first; t < last; ++t) {
        const E inverse = inverse_norm(flow + t * k * hidden, k * hidden, norm_eps);
        for (int64_t i = 0; i < k; ++i) weights[i] = sigmoid(mix[t * k + i] * inverse * s[0] + bias[i]) + E(eps);
        weighted_sum(flow + t * k * hidden, weights.data(), k, hidden, xs + t * hidden);
      }
    });
  });
  return x;
}

// out [tokens, K, hidden] contiguous, written; y [tokens, hidden] in the dtype of stream or exact
void hc_after(const Tensor& y, const Tensor& stream, const Tensor& post, const Tensor& comb, Tensor out) {
  const int64_t tokens = stream.size(0), k = stream.size(1), hidden = stream.size(2);
  constexpr int64_t block = 256;
  dispatch(stream.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const T *added = y.const_data_ptr<T>(), *flow = stream.const_data_ptr<T>();
    const E *posts = post.const_data_ptr<E>(), *combs = comb.const_data_ptr<E>();
    T* to = out.data_ptr<T>();
    in_parallel(tokens, k * k * hidden, [&](int64_t first, int64_t last) {
      E sums[block];
      for (int64_t item = first * k; item < last * k; ++item) {
        const int64_t t = item / k, i = item % k;
        for (int64_t start = 0; start < hidden; start += block) {
          const int64_t n = std::min(block, hidden - start);
          const T* own = added + t * hidden + start;
#pragma omp simd
          for (int64_t d = 0; d < n; ++d) sums[d] = posts[item] * load(own[d]);
          for (int64_t j = 0; j < k; ++j) {
            const E weight = combs[(t * k + j) * k + i];
            const T* from = flow + (t * k + j) * hidden + start;
#pragma omp simd
            for (int64_t d = 0; d < n; ++d) sums[d] += weight * load(from[d]);
          }
          T* row = to + item * hidden + start;
#pragma omp simd
          for (int64_t d = 0; d < n; ++d) row[d] = round_to<T>(sums[d]);
        }
      }
    });
  });
}

// ---- selection: the `count` largest of a row, the lowest index first among equals, in rising order

template <typename E>
struct Scored {
  E value;
  int64_t index;
};

template <typename E>
inline bool better(const Scored<E>& a, const Scored<E>& b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan;
  return a_nan || a.value == b.value ? a.index < b.index : a.value > b.value;
}

template <typename E>
inline void largest_of(std::vector<Scored<E>>& row, int64_t count, int64_t* chosen) {
  const auto end = row.begin() + count;
  if (end < row.end()) std::nth_element(row.begin(), end, row.end(), better<E>);
  for (int64_t i = 0; i < count; ++i) chosen[i] = row[i].index;
  std::sort(chosen, chosen + count);
}

// scores [rows, n] exact, bias [n] exact -> [rows, count]
Tensor choose(const Tensor& scores, const Tensor& bias, int64_t count) {
  const int64_t rows = scores.size(0), n = scores.size(1);
  Tensor chosen = at::empty({rows, count}, scores.options().dtype(at::kLong));
  dispatch_exact(scores.scalar_type(), [&]<typename E>() {
    const E *from = scores.const_data_ptr<E>(), *more = bias.const_data_ptr<E>();
    int64_t* to = chosen.data_ptr<int64_t>();
    in_parallel(rows, 8 * n, [&](int64_t first, int64_t last) {
      std::vector<Scored<E>> row(n);
      for (int64_t r = first; r < last; ++r) {
        for (int64_t i = 0; i < n; ++i) row[i] = {from[r * n + i] + more[i], i};
        largest_of(row, count, to + r * count);
      }
    });
  });
  return chosen;
}

// products [queries, heads, n] exact: q . k; weights [queries, heads] exact; ready [queries] -> [queries, count]
Tensor pick(const Tensor& products, const Tensor& weights, const Tensor& ready, int64_t count) {
  const int64_t queries = products.size(0), heads = products.size(1), n = products.size(2);
  Tensor picks = at::empty({queries, count}, ready.options());
  dispatch_exact(products.scalar_type(), [&]<typename E>() {
    const E *from = products.const_data_ptr<E>(), *weight = weights.const_data_ptr<E>();
    const int64_t* limits = ready.const_data_ptr<int64_t>();
    int64_t* to = picks.data_ptr<int64_t>();
    in_parallel(queries, (heads + 8) * n, [&](int64_t first, int64_t last) {
      std::vector<E> sums(n);
      std::vector<Scored<E>> row;
      for (int64_t q = first; q < last; ++q) {
        const int64_t seen = std::min(limits[q], n), kept = std::min(seen, count);
        std::fill(sums.begin(), sums.end(), E(0));
        for (int64_t h = 0; h < heads; ++h) {
          const E* products_of = from + (q * heads + h) * n;
          const E scale = weight[q * heads + h];
#pragma omp simd
          for (int64_t i = 0; i < seen; ++i) {
            // as relu: a NaN stays one
            sums[i] += scale * (products_of[i] < E(0) ? E(0) : products_of[i]);
          }
        }
        row.resize(seen);
        for (int64_t i = 0; i < seen; ++i) row[i] = {sums[i], i};
        largest_of(row, kept, to + q * count);
        std::fill(to + q * count + kept, to + (q + 1) * count, int64_t(-1));
      }
    });
  });
  return picks;
}

// ---- router: logits [tokens, experts] exact, overwritten with sqrt(softplus(logits))

Tensor router_scores(Tensor logits) {
  dispatch_exact(logits.scalar_type(), [&]<typename E>() {
    E* values = logits.data_ptr<E>();
    in_parallel(logits.numel(), 32, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const E value = values[i];
        values[i] = std::sqrt(value > E(20) ? value : std::log1p(std::exp(value)));
      }
    });
  });
  return logits;
}

// scored [tokens, experts] exact, chosen [tokens, active] -> the chosen scores, summing to scaling
Tensor weigh(const Tensor& scored, const Tensor& chosen, double scaling) {
  const int64_t tokens = chosen.size(0), active = chosen.size(1), experts = scored.size(1);
  Tensor weights = at::empty({tokens, active}, scored.options());
  dispatch_exact(scored.scalar_type(), [&]<typename E>() {
    const E* from = scored.const_data_ptr<E>();
    const int64_t* picked = chosen.const_data_ptr<int64_t>();
    E* to = weights.data_ptr<E>();
    for (int64_t t = 0; t < tokens; ++t) {
      E sum = 0;
      for (int64_t i = 0; i < active; ++i) {
        const int64_t expert = picked[t * active + i];
        TORCH_CHECK_INDEX(expert >= 0 && expert < experts, "expert ", expert, " of ", experts);
        sum += to[t * active + i] = from[t * experts + expert];
      }
      for (int64_t i = 0; i < active; ++i) to[t * active + i] = to[t * active + i] / sum * E(scaling);
    }
  });
  return weights;
}

// ---- experts

template <typename E>
inline E swiglu(E gate, E up, E limit) {
  gate = std::min(gate, limit);
  up = std::min(std::max(up, -limit), limit);
  return gate * sigmoid(gate) * up;
}

// gate = weights * silu(min(gate, limit)) * clamp(up), in place; gate, up [rows, width]; weights: one per row, or none
template <typename T>
void activate(const Tensor& gate, const Tensor& up, double limit, const Exact<T>* weights) {
  using E = Exact<T>;
  const int64_t rows = gate.size(0), width = gate.size(1);
  T* g = gate.data_ptr<T>();
  const T* u = up.const_data_ptr<T>();
  in_parallel(rows, 16 * width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const E weight = weights ? weights[row] : E(1);
#pragma omp simd
      for (int64_t i = row * width; i < (row + 1) * width; ++i) {
        g[i] = round_to<T>(weight * swiglu<E>(load(g[i]), load(u[i]), E(limit)));
      }
    }
  });
}

// The tokens of one expert and their weights, in the order of the tokens.
template <typename E>
struct Group {
  int64_t expert;
  std::vector<int64_t> tokens;
  std::vector<E> weights;
};

template <typename E>
std::vector<Group<E>> grouped_by_expert(const Tensor& chosen, const Tensor& weights, int64_t first, int64_t experts) {
  std::vector<Group<E>> groups(experts);
  for (int64_t e = 0; e < experts; ++e) groups[e].expert = e;
  const int64_t active = chosen.size(1);
  const int64_t* picked = chosen.const_data_ptr<int64_t>();
  const E* weight = weights.const_data_ptr<E>();
  for (int64_t i = 0; i < chosen.numel(); ++i) {
    const int64_t e = picked[i] - first;
    if (e < 0 || e >= experts) continue;
    groups[e].tokens.push_back(i / active);
    groups[e].weights.push_back(weight[i]);
  }
  std::erase_if(groups, [](const Group<E>& group) { return group.tokens.empty(); });
  return groups;
}

// Many tokens: matrix products by torch.
template <typename T>
void many_rows(const Group<Exact<T>>& group, const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3,
               double limit, const Tensor& total) {
  using E = Exact<T>;
  const int64_t n = group.tokens.size(), hidden = x.size(1);
  Tensor rows = at::empty({n, hidden}, x.options());
  const T* from = x.const_data_ptr<T>();
  T* to = rows.data_ptr<T>();
  in_parallel(n, hidden, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) std::copy_n(from + group.tokens[i] * hidden, hidden, to + i * hidden);
  });
  Tensor gate = at::linear(rows, w1.select(0, group.expert)), up = at::linear(rows, w3.select(0, group.expert));
  activate<T>(gate, up, limit, group.weights.data());
  const Tensor part = at::linear(gate, w2.select(0, group.expert));
  const T* parts = part.const_data_ptr<T>();
  E* sums = total.data_ptr<E>();
  in_parallel(n, hidden, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      E* row = sums + group.tokens[i] * hidden;
#pragma omp simd
      for (int64_t d = 0; d < hidden; ++d) row[d] += load(parts[i * hidden + d]);
    }
  });
}

// Few tokens in each of these experts: every weight is read once, in two sweeps over all of them.
template <typename T>
void few_rows(const std::vector<Group<Exact<T>>>& groups, const Tensor& x, const Tensor& w1, const Tensor& w2,
              const Tensor& w3, double limit, const Tensor& total) {
  using E = Exact<T>;
  const int64_t hidden = x.size(1), inner = w1.size(1), n = groups.size();
  const Tensor wide = exact(x, exact_type(x));
  const auto tokens = row_pointers<E>(wide);
  std::vector<std::vector<const E*>> inputs(n), middles(n);
  int64_t pairs = 0;
  for (const auto& group : groups) pairs += group.tokens.size();
  std::vector<E> active(pairs * inner);
  pairs = 0;
  for (int64_t g = 0; g < n; ++g) {
    for (const int64_t token : groups[g].tokens) {
      inputs[g].push_back(tokens[token]);
      middles[g].push_back(active.data() + inner * pairs++);
    }
  }
  const T *gates = w1.const_data_ptr<T>(), *ups = w3.const_data_ptr<T>(), *downs = w2.const_data_ptr<T>();
  in_parallel(n * inner, 2 * hidden, [&](int64_t first, int64_t last) {
    std::vector<E> gate(x.size(0)), up(x.size(0));
    for (int64_t item = first; item < last; ++item) {
      const int64_t g = item / inner, o = item % inner, rows = inputs[g].size();
      const int64_t at = (groups[g].expert * inner + o) * hidden;
      dot_rows(inputs[g].data(), rows, gates + at, hidden, gate.data());
      dot_rows(inputs[g].data(), rows, ups + at, hidden, up.data());
      for (int64_t row = 0; row < rows; ++row) {
        const E value = swiglu<E>(load(round_to<T>(gate[row])), load(round_to<T>(up[row])), E(limit));
        const_cast<E*>(middles[g][row])[o] = load(round_to<T>(groups[g].weights[row] * value));
      }
    }
  });
  E* sums = total.data_ptr<E>();
  in_parallel(hidden, pairs * inner, [&](int64_t first, int64_t last) {
    std::vector<E> out(x.size(0));
    for (int64_t g = 0; g < n; ++g) {
      for (int64_t o = first; o < last; ++o) {
        const int64_t rows = middles[g].size();
        dot_rows(middles[g].data(), rows, downs + (groups[g].expert * hidden + o) * inner, inner, out.data());
        for (int64_t row = 0; row < rows; ++row) sums[groups[g].tokens[row] * hidden + o] += load(round_to<T>(out[row]));
      }
    }
  });
}

// x [tokens, hidden]; chosen, weights (exact) [tokens, active]; w1, w3 [experts, inner, hidden]; w2 [experts, hidden,
// inner] in the dtype of x -> [tokens, hidden] exact. few: up to so many tokens an expert is computed without torch.
Tensor experts(const Tensor& x, const Tensor& chosen, const Tensor& weights, const Tensor& w1, const Tensor& w2,
               const Tensor& w3, double limit, int64_t first, int64_t few) {
  Tensor total = at::zeros(x.sizes(), weights.options());
  dispatch(x.scalar_type(), [&]<typename T>() {
    std::vector<Group<Exact<T>>> small;
    for (auto& group : grouped_by_expert<Exact<T>>(chosen, weights, first, w1.size(0))) {
      if (static_cast<int64_t>(group.tokens.size()) <= few) {
        small.push_back(std::move(group));
      } else {
        many_rows<T>(group, x, w1, w2, w3, limit, total);
      }
    }
    if (!small.empty()) few_rows<T>(small, x, w1, w2, w3, limit, total);
  });
  return total;
}

// The activation of the shared expert: gate, up [rows, inner] in one dtype -> gate, overwritten.
Tensor swiglu_(Tensor gate, const Tensor& up, double limit) {
  dispatch(gate.scalar_type(), [&]<typename T>() { activate<T>(gate, up, limit, nullptr); });
  return gate;
}

// ---- attention

// Numbers stand in lanes by head: products of keys with all heads need no sums across lanes.

// Room for one query after another: keys [n, width]; q [width], scores [n], each for LANES heads at a time.
template <typename E>
struct Room {
  std::vector<E> keys;
  std::vector<Lanes<E>> q, scores, sums;
};

// scores[j] = keys[j] . q for LANES heads; eight keys at a time, so that their chains of additions overlap.
template <typename E>
inline void score_keys(const E* keys, int64_t n, int64_t width, const Vector<E>* q, Vector<E>* scores) {
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    Vector<E> sum[8] = {};
    const E* rows = keys + j * width;
    for (int64_t i = 0; i < width; ++i) {
#pragma GCC unroll 8
      for (int64_t row = 0; row < 8; ++row) sum[row] += q[i] * rows[row * width + i];
    }
#pragma GCC unroll 8
    for (int64_t row = 0; row < 8; ++row) scores[j + row] = sum[row];
  }
  for (; j < n; ++j) {
    Vector<E> sum = {};
    for (int64_t i = 0; i < width; ++i) sum += q[i] * keys[j * width + i];
    scores[j] = sum;
  }
}

// sums[i] = sum over j of weights[j] * keys[j][i] for LANES heads
template <typename E>
inline void mix_keys(const E* keys, int64_t n, int64_t width, const Vector<E>* weights, Vector<E>* sums) {
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    Vector<E> sum[8] = {};
    for (int64_t j = 0; j < n; ++j) {
      const E* key = keys + j * width + i;
#pragma GCC unroll 8
      for (int64_t column = 0; column < 8; ++column) sum[column] += weights[j] * key[column];
    }
#pragma GCC unroll 8
    for (int64_t column = 0; column < 8; ++column) sums[i + column] = sum[column];
  }
  for (; i < width; ++i) {
    Vector<E> sum = {};
    for (int64_t j = 0; j < n; ++j) sum += weights[j] * keys[j * width + i];
    sums[i] = sum;
  }
}

// scores -> weights that, with the sink's, sum to one; rounded to T
template <typename T, typename E = Exact<T>>
inline void soften(Vector<E>* scores, int64_t n, E scale, const E* sink, int64_t heads) {
  for (int64_t h = 0; h < heads; ++h) {
    E most = sink[h];
    for (int64_t j = 0; j < n; ++j) most = std::max(most, scores[j][h] * scale);
    for (int64_t j = 0; j < n; ++j) scores[j][h] = scores[j][h] * scale - most;
    scores[n][h] = sink[h] - most;
  }
  E* values = reinterpret_cast<E*>(scores);
#pragma omp simd
  for (int64_t i = 0; i < (n + 1) * LANES; ++i) values[i] = exponential(values[i]);
  Vector<E> total = scores[n];
  for (int64_t j = 0; j < n; ++j) total += scores[j];
  for (int64_t j = 0; j < n; ++j) scores[j] /= total;
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
#pragma omp simd
    for (int64_t i = 0; i < n * LANES; ++i) values[i] = load(round_to<T>(values[i]));
  }
}

// Attention of all heads of one query, [heads, width], over the rows seen -> out [heads, width].
template <typename T, typename E = Exact<T>>
void attend_one(const T* query, int64_t heads, int64_t width, const std::vector<const T*>& seen, const E* sink,
                Room<E>& room, T* out) {
  const int64_t n = seen.size();
  const E scale = E(1) / std::sqrt(E(width));
  room.keys.resize(n * width);
  room.scores.resize(n + 1);
  for (int64_t j = 0; j < n; ++j) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) room.keys[j * width + i] = load(seen[j][i]);
  }
  for (int64_t first = 0; first < heads; first += LANES) {
    const int64_t some = std::min(LANES, heads - first);
    room.q.assign(width, Lanes<E>{});
    room.sums.resize(width);
    for (int64_t h = 0; h < some; ++h) {
      for (int64_t i = 0; i < width; ++i) room.q[i].v[h] = load(query[(first + h) * width + i]);
    }
    Vector<E>* scores = &room.scores[0].v;
    score_keys<E>(room.keys.data(), n, width, &room.q[0].v, scores);
    scores[n] = Vector<E>{};
    soften<T>(scores, n, scale, sink + first, some);
    mix_keys<E>(room.keys.data(), n, width, scores, &room.sums[0].v);
    for (int64_t h = 0; h < some; ++h) {
      for (int64_t i = 0; i < width; ++i) out[(first + h) * width + i] = round_to<T>(room.sums[i].v[h]);
    }
  }
}

// queries [batch, tokens, heads, width], window [batch, reach + tokens, width] contiguous, starts [batch], sink [heads]
// exact; entries [batch, n, width] or, each query its own, [batch, tokens, n, width], rows contiguous, or none;
// ready [batch, tokens] or picks [batch, tokens, count] (into entries; where a query has its own, -1 hides one).
Tensor attend(const Tensor& queries, const Tensor& window, const Tensor& starts, const Tensor& sink,
              const std::optional<Tensor>& entries, const std::optional<Tensor>& ready,
              const std::optional<Tensor>& picks) {
  const int64_t batch = queries.size(0), tokens = queries.size(1), heads = queries.size(2), width = queries.size(3);
  const int64_t reach = window.size(1) - tokens, count = picks ? picks->size(2) : 0;
  const bool own = entries && entries->dim() == 4;
  Tensor result = at::empty(queries.sizes(), queries.options());
  const int64_t most = reach + 1 + (picks ? count : entries ? entries->size(1) : 0);
  dispatch(queries.scalar_type(), [&]<typename T>() {
    using E = Exact<T>;
    const T *all = queries.const_data_ptr<T>(), *near = window.const_data_ptr<T>();
    const E* sinks = sink.const_data_ptr<E>();
    const int64_t* begin = starts.const_data_ptr<int64_t>();
    const int64_t* limit = ready ? ready->const_data_ptr<int64_t>() : nullptr;
    const int64_t* pick = picks ? picks->const_data_ptr<int64_t>() : nullptr;
    in_parallel(batch * tokens, 2 * heads * width * most, [&](int64_t first, int64_t last) {
      Room<E> room;
      std::vector<const T*> seen;
      for (int64_t item = first; item < last; ++item) {
        const int64_t b = item / tokens, t = item % tokens;
        const T* around = near + b * (reach + tokens) * width;
        seen.clear();
        for (int64_t i = std::max(t, reach - begin[b]); i <= t + reach; ++i) seen.push_back(around + i * width);
        if (entries) {
          const T* rows = entries->const_data_ptr<T>() + b * entries->stride(0);
          if (own) rows += t * entries->stride(1);
          const int64_t stride = entries->stride(-2);
          if (pick) {
            for (int64_t i = 0; i < count; ++i) {
              const int64_t row = pick[item * count + i];
              if (row >= 0) seen.push_back(rows + (own ? i : row) * stride);
            }
          } else {
            for (int64_t i = 0; i < std::min(limit[item], entries->size(1)); ++i) seen.push_back(rows + i * stride);
          }
        }
        const int64_t at = item * heads * width;
        attend_one<T>(all + at, heads, width, seen, sinks, room, result.data_ptr<T>() + at);
      }
    });
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(builder_kernels, library) {
  library.def("few_linear(Tensor x, Tensor weight, bool exactly) -> Tensor", &few_linear);
  library.def("rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor", &rms_norm);
  library.def("rotate(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor", &rotate);
  library.def(
      "hc_before(Tensor stream, Tensor mixes, Tensor base, Tensor scale, int iters, float eps, float norm_eps)"
      " -> (Tensor, Tensor, Tensor)",
      &hc_before);
  library.def("hc_head(Tensor stream, Tensor mixes, Tensor base, Tensor scale, float eps, float norm_eps) -> Tensor",
              &hc_head);
  library.def("hc_after(Tensor y, Tensor stream, Tensor post, Tensor comb, Tensor(a!) out) -> ()", &hc_after);
  library.def("choose(Tensor scores, Tensor bias, int count) -> Tensor", &choose);
  library.def("pick(Tensor products, Tensor weights, Tensor ready, int count) -> Tensor", &pick);
  library.def("router_scores(Tensor(a!) logits) -> Tensor(a!)", &router_scores);
  library.def("weigh(Tensor scored, Tensor chosen, float scaling) -> Tensor", &weigh);
  library.def(
      "experts(Tensor x, Tensor chosen, Tensor weights, Tensor w1, Tensor w2, Tensor w3, float limit, int first,"
      " int few) -> Tensor",
      &experts);
  library.def("swiglu_(Tensor(a!) gate, Tensor up, float limit) -> Tensor(a!)", &swiglu_);
  library.def(
      "attend(Tensor queries, Tensor window, Tensor starts, Tensor sink, Tensor? entries, Tensor? ready,"
      " Tensor? picks) -> Tensor",
      &attend);
}
