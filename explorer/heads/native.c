/* One pass of a Llama decoder, or of an EAGLE drafter's layer, over a handful of tokens: weights in float16, a drafter's in
 * eight bits with a scale per row, and arithmetic in float32.
 *
 * A pass over few tokens reads every weight once, so memory sets its time, if nothing else stands in the way. Here the
 * whole pass is one parallel region whose threads meet five times a layer; nothing is allocated and no operator is
 * dispatched. The rows of a batch and the tokens of a row do not influence each other: each output is summed in the same
 * order whatever stands beside it, so a token's law does not depend on how many drafts are verified with it.
 *
 * Matrices are packed by `pack_matrix`: groups of 32 output rows, and within a group column by column, so that one
 * broadcast input multiplies whole vectors of rows and nothing has to be summed across a vector.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__AVX512F__)
#define LANES 16
#define TILE 8 /* tokens that share one reading of a group: TILE * VECTORS sums fit the registers */
typedef float vec __attribute__((vector_size(64), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(64)));
static inline vec half(const void *p) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec byte(const void *p) {
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline float total(vec v) { return _mm512_reduce_add_ps((__m512)v); }
static inline vec between(vec v, float low, float high) {
  return (vec)_mm512_min_ps(_mm512_max_ps((__m512)v, _mm512_set1_ps(low)), _mm512_set1_ps(high));
}
#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define LANES 8
#define TILE 3
typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(32)));
static inline vec half(const void *p) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vec byte(const void *p) {
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline float total(vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline vec between(vec v, float low, float high) {
  return (vec)_mm256_min_ps(_mm256_max_ps((__m256)v, _mm256_set1_ps(low)), _mm256_set1_ps(high));
}
#else
#error "This processor has neither AVX-512 nor AVX2 with F16C and FMA."
#endif

#define GROUP 32
#define VECTORS (GROUP / LANES)
#define AHEAD 4096 /* bytes fetched early: with several inputs the processor does not look far enough by itself */
#define SPINS 4000 /* looks at the barrier before the processor is offered to others */

typedef struct {
  const void *data;   /* packed float16, or bytes */
  const float *scale; /* of each row of bytes; NULL for float16 */
} Matrix;

typedef struct {
  int32_t num_layers, hidden, heads, kv_heads, head_dim, inner, vocab;
  float eps;
  const uint16_t **qkv, **out, **gate, **up, **down; /* one packed matrix per layer */
  const uint16_t *head;
  const float *final_norm;
} Model;

typedef struct {
  int32_t hidden, heads, kv_heads, head_dim, inner, norm_before_residual;
  float eps;
  Matrix qkv, out, gate, up, down; /* the last three empty without a feed-forward part */
  const float *embedding, *input_norm, *hidden_norm, *mlp_norm, *final_norm;
} Drafter;

typedef struct {
  atomic_int waiting, phase;
  int size;
} Meeting;

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }

static void meet(Meeting *meeting) {
  if (meeting->size == 1) return;
  int phase = atomic_load_explicit(&meeting->phase, memory_order_acquire);
  if (atomic_fetch_add_explicit(&meeting->waiting, 1, memory_order_acq_rel) == meeting->size - 1) {
    atomic_store_explicit(&meeting->waiting, 0, memory_order_relaxed);
    atomic_store_explicit(&meeting->phase, phase + 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&meeting->phase, memory_order_acquire) == phase; spins++) {
    if (spins < SPINS) _mm_pause();
    else sched_yield();
  }
}

/* exp of each element, within two units in the last place; below -87 it is 0 for every purpose here. */
static inline vec exponential(vec x) {
  const float lowest = -87.0f, highest = 88.0f, magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
  x = between(x, lowest, highest);
  vec whole = (x * 1.44269504f + magic) - magic;
  vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  ivec power = (__builtin_convertvector(whole, ivec) + 127) << 23;
  return sum * (vec)power;
}

/* out[m][0..32) = group of 32 rows times input m; M and the kind of weights are known when this is compiled. */
static inline __attribute__((always_inline)) void tile(const char *w, const int bytes, const float *x, long stride, int K,
                                                       const int M, float *out) {
  vec sums[TILE][VECTORS];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < VECTORS; v++) sums[m][v] = (vec){0};
  for (int k = 0; k < K; k++, w += GROUP * bytes) {
    _mm_prefetch(w + AHEAD, _MM_HINT_T0);
    vec rows[VECTORS];
    for (int v = 0; v < VECTORS; v++) rows[v] = bytes == 2 ? half(w + v * LANES * 2) : byte(w + v * LANES);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < VECTORS; v++) sums[m][v] += rows[v] * x[m * stride + k];
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < VECTORS; v++) store(out + m * GROUP + v * LANES, sums[m][v]);
}

static inline __attribute__((always_inline)) void tiles_of(const char *w, const int bytes, const float *x, long stride,
                                                           int K, int M, float *out) {
  for (; M > 0; M -= TILE, x += TILE * stride, out += TILE * GROUP) {
    switch (M < TILE ? M : TILE) {
      case 1: tile(w, bytes, x, stride, K, 1, out); break;
      case 2: tile(w, bytes, x, stride, K, 2, out); break;
      case 3: tile(w, bytes, x, stride, K, 3, out); break;
#if TILE > 3
      case 4: tile(w, bytes, x, stride, K, 4, out); break;
      case 5: tile(w, bytes, x, stride, K, 5, out); break;
      case 6: tile(w, bytes, x, stride, K, 6, out); break;
      case 7: tile(w, bytes, x, stride, K, 7, out); break;
      case 8: tile(w, bytes, x, stride, K, 8, out); break;
#endif
    }
  }
}

/* out (M, 32) = rows 32 * group .. of a packed matrix times M inputs, over the first K of its `columns`. */
static void group_times(Matrix w, long group, int columns, int K, const float *x, int M, float *out) {
  long at = group * GROUP * columns;
  if (!w.scale) {
    tiles_of((const char *)w.data + 2 * at, 2, x, K, K, M, out);
    return;
  }
  tiles_of((const char *)w.data + at, 1, x, K, K, M, out);
  for (int m = 0; m < M; m++)
    for (int v = 0; v < GROUP; v += LANES)
      store(out + m * GROUP + v, load(out + m * GROUP + v) * load(w.scale + group * GROUP + v));
}

static void share(long count, int thread, int threads, long *first, long *end) {
  *first = count * thread / threads;
  *end = count * (thread + 1) / threads;
}

enum { SET, ADD };

/* out (M, N) = or += the first K columns of a packed matrix times M inputs; this thread's part of the rows. */
static void times(Matrix w, long N, int columns, int K, const float *x, int M, float *out, int how, float *tiles, int thread,
                  int threads) {
  long first, end;
  share((N + GROUP - 1) / GROUP, thread, threads, &first, &end);
  for (long group = first; group < end; group++) {
    group_times(w, group, columns, K, x, M, tiles);
    long row = group * GROUP, width = N - row < GROUP ? N - row : GROUP;
    for (int m = 0; m < M; m++) {
      float *to = out + m * N + row;
      if (how == ADD)
        for (long i = 0; i < width; i++) to[i] += tiles[m * GROUP + i];
      else
        memcpy(to, tiles + m * GROUP, width * sizeof(float));
    }
  }
}

/* hidden (M, I) = silu(gate x) * (up x); this thread's part. */
static void gated(Matrix gate, Matrix up, long I, int K, const float *x, int M, float *hidden, float *tiles,
                  int thread, int threads) {
  long first, end;
  float *ups = tiles + M * GROUP;
  share((I + GROUP - 1) / GROUP, thread, threads, &first, &end);
  for (long group = first; group < end; group++) {
    group_times(gate, group, K, K, x, M, tiles);
    group_times(up, group, K, K, x, M, ups);
    long row = group * GROUP, width = I - row < GROUP ? I - row : GROUP;
    for (int m = 0; m < M; m++) {
      for (int v = 0; v < GROUP; v += LANES) {
        vec g = load(tiles + m * GROUP + v);
        store(tiles + m * GROUP + v, g / (exponential(-g) + 1.0f) * load(ups + m * GROUP + v));
      }
      memcpy(hidden + m * I + row, tiles + m * GROUP, width * sizeof(float));
    }
  }
}

/* normed (M, D) = state without its root mean square, times `weight` where one is given. */
static void norm(const float *state, int M, int D, float eps, const float *weight, float *normed) {
  for (int m = 0; m < M; m++) {
    const float *x = state + (long)m * D;
    vec squares = {0};
    for (int i = 0; i < D; i += LANES) squares += load(x + i) * load(x + i);
    float scale = 1.0f / sqrtf(total(squares) / D + eps);
    for (int i = 0; i < D; i += LANES) {
      vec scaled = load(x + i) * scale;
      store(normed + (long)m * D + i, weight ? scaled * load(weight + i) : scaled);
    }
  }
}

/* to (size) = from, rotated; `sine` has its first half negated. */
static void rotate(const float *from, const float *cosine, const float *sine, int size, float *to) {
  int half = size / 2;
  for (int i = 0; i < half; i++) {
    float low = from[i], high = from[i + half];
    to[i] = low * cosine[i] + high * sine[i];
    to[i + half] = high * cosine[i + half] + low * sine[i + half];
  }
}

/* out (size) = attention of one query over slots 0 .. count - 1, which lie `stride` numbers apart. */
static void attend(const float *query, const float *keys, const float *values, long stride, long count, int size,
                   float *scores, float *out) {
  float scale = 1.0f / sqrtf((float)size), best = -INFINITY, sum = 0;
  for (long s = 0; s < count; s++) {
    vec products = {0};
    for (int i = 0; i < size; i += LANES) products += load(query + i) * load(keys + s * stride + i);
    scores[s] = total(products) * scale;
    best = scores[s] > best ? scores[s] : best;
  }
  for (long s = count; s % LANES; s++) scores[s] = -INFINITY; /* the buffer has room */
  for (long s = 0; s < count; s += LANES) {
    vec weights = exponential(load(scores + s) - best);
    store(scores + s, weights);
  }
  for (long s = 0; s < count; s++) sum += scores[s];
  for (int i = 0; i < size; i += LANES) {
    vec mixed = {0};
    for (long s = 0; s < count; s++) mixed += load(values + s * stride + i) * scores[s];
    store(out + i, mixed / sum);
  }
}

/* Pack rows (N, K) of float32 into groups; the last group is filled up with zeros. */
void pack_matrix(const float *weight, long N, long K, uint16_t *packed) {
  for (long group = 0; group * GROUP < N; group++)
    for (long k = 0; k < K; k++)
      for (long i = 0; i < GROUP; i++) {
        long row = group * GROUP + i;
        float x = row < N ? weight[row * K + k] : 0;
        packed[(group * K + k) * GROUP + i] = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
      }
}

/* Pack rows (N, K) into bytes and a scale for each row; the last group is filled up with zeros. */
void pack_bytes(const float *weight, long N, long K, int8_t *packed, float *scale) {
  for (long row = 0; row < (N + GROUP - 1) / GROUP * GROUP; row++) {
    float largest = 0;
    if (row < N)
      for (long k = 0; k < K; k++) largest = fmaxf(largest, fabsf(weight[row * K + k]));
    scale[row] = largest / 127;
    for (long k = 0; k < K; k++) {
      float x = largest > 0 ? weight[row * K + k] / scale[row] : 0;
      packed[(row / GROUP * K + k) * GROUP + row % GROUP] = (int8_t)lrintf(x);
    }
  }
}

/* Ask for large pages: a pass walks through all of it. */
void use_large_pages(void *start, long size) {
  uintptr_t page = 1 << 21, first = ((uintptr_t)start + page - 1) & ~(page - 1), end = (uintptr_t)start + size;
  if (first < end) madvise((void *)first, end - first, MADV_HUGEPAGE);
}

/* Floats of working memory that `run` needs. */
long scratch_size(const Model *model, long tokens, long end, int threads) {
  long projected = (long)(model->heads + 2 * model->kv_heads) * model->head_dim;
  long attended = (long)model->heads * model->head_dim;
  long own = tokens * (model->hidden + 2 * GROUP) + end + LANES + model->head_dim;
  return tokens * (projected + attended + model->inner) + threads * (own + LANES);
}

/* Run B rows of T tokens.
 *
 * state      (B, T, D) embeddings; holds the last layer's output afterwards.
 * positions  (B, T) slots the tokens are written to; each looks at the slots up to its own.
 * cosine     (B, T, size), and sine, whose first half is negated.
 * keys       one (B, kv_heads, capacity, size) block per layer, and so values.
 * wanted     num_layers + 1 places for hidden states (B, T, D), or NULL; the last is taken after the final norm.
 * logits     (B, keep, vocab) of the last `keep` tokens of every row.
 */
void run(const Model *model, int B, int T, int keep, float *state, const int64_t *positions, const float *cosine,
         const float *sine, float **keys, float **values, long capacity, float **wanted, float *logits, float *scratch,
         int threads) {
  const int M = B * T, D = model->hidden, H = model->heads, G = model->kv_heads, size = model->head_dim, I = model->inner;
  const long projected = (long)(H + 2 * G) * size, attended = (long)H * size;
  long end = 0;
  for (int m = 0; m < M; m++) end = positions[m] + 1 > end ? positions[m] + 1 : end;
  const long own = (long)M * (D + 2 * GROUP) + end + 2 * LANES + size;
  float *heads = scratch, *mixed = heads + M * projected, *hidden = mixed + M * attended, *rest = hidden + (long)M * I;
  Meeting meeting = {0, 0, 1};

#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num(), size_of_team = omp_get_num_threads();
    float *normed = rest + thread * own, *tiles = normed + (long)M * D, *query = tiles + (long)M * 2 * GROUP;
    float *scores = query + size;
#pragma omp single
    meeting.size = size_of_team;

    for (int layer = 0; layer < model->num_layers; layer++) {
      if (thread == 0 && wanted[layer]) memcpy(wanted[layer], state, (long)M * D * sizeof(float));
      norm(state, M, D, model->eps, NULL, normed);
      times((Matrix){model->qkv[layer], NULL}, projected, D, D, normed, M, heads, SET, tiles, thread, size_of_team);
      meet(&meeting);

      long first, last;
      share((long)M * G, thread, size_of_team, &first, &last);
      for (long item = first; item < last; item++) { /* keys and values into the cache */
        long m = item / G, group = item % G, slot = ((m / T) * G + group) * capacity + positions[m];
        const float *key = heads + m * projected + (H + group) * size;
        rotate(key, cosine + m * size, sine + m * size, size, keys[layer] + slot * size);
        memcpy(values[layer] + slot * size, key + (long)G * size, size * sizeof(float));
      }
      meet(&meeting);

      share((long)B * H, thread, size_of_team, &first, &last);
      for (long item = first; item < last; item++) {
        long row = item / H, head = item % H, block = (row * G + head / (H / G)) * capacity * size;
        for (long m = row * T; m < (row + 1) * T; m++) {
          rotate(heads + m * projected + head * size, cosine + m * size, sine + m * size, size, query);
          attend(query, keys[layer] + block, values[layer] + block, size, positions[m] + 1, size, scores,
                 mixed + m * attended + head * size);
        }
      }
      meet(&meeting);

      times((Matrix){model->out[layer], NULL}, D, attended, attended, mixed, M, state, ADD, tiles, thread, size_of_team);
      meet(&meeting);
      norm(state, M, D, model->eps, NULL, normed);
      gated((Matrix){model->gate[layer], NULL}, (Matrix){model->up[layer], NULL}, I, D, normed, M, hidden, tiles, thread, size_of_team);
      meet(&meeting);
      times((Matrix){model->down[layer], NULL}, D, I, I, hidden, M, state, ADD, tiles, thread, size_of_team);
      meet(&meeting);
    }

    norm(state, M, D, model->eps, model->final_norm, normed);
    if (thread == 0 && wanted[model->num_layers])
      memcpy(wanted[model->num_layers], normed, (long)M * D * sizeof(float));
    for (int row = 0; row < B; row++) /* the kept tokens side by side */
      memmove(normed + (long)row * keep * D, normed + ((long)row * T + T - keep) * D, (long)keep * D * sizeof(float));
    if (keep)
      times((Matrix){model->head, NULL}, model->vocab, D, D, normed, B * keep, logits, SET, tiles, thread, size_of_team);
  }
}

/* Floats of working memory that `draft` needs. */
long draft_scratch_size(const Drafter *drafter, long rows, long entries, long end, int threads) {
  long projected = (long)(drafter->heads + 2 * drafter->kv_heads) * drafter->head_dim;
  long attended = (long)drafter->heads * drafter->head_dim, M = rows * entries;
  long own = M * 2 * drafter->hidden + 2 * M * GROUP + end + 2 * LANES + drafter->head_dim;
  return M * projected + rows * (attended + drafter->inner) + threads * own;
}

/* Write T entries of each of B rows into the drafter's cache, and give the layer's output at one of them.
 *
 * ids        (B, T) the token after each entry's position.
 * states     (B, T, D) fused features, or the layer's own earlier output.
 * positions  (B, T) slots.
 * last       (B,) which entry looks back; nothing reads the outputs of the others.
 * cosine     (capacity, size) tables, and sine, whose first half is negated.
 * keys       (B, capacity, kv_heads, size), and so values.
 * state      (B, D) output before the final norm, `normed` after it.
 */
void draft(const Drafter *drafter, int B, int T, const int64_t *ids, const float *states, const int64_t *positions,
           const int64_t *last, const float *cosine, const float *sine, float *keys, float *values, long capacity,
           float *state, float *normed, float *scratch, int threads) {
  const int M = B * T, D = drafter->hidden, H = drafter->heads, G = drafter->kv_heads, size = drafter->head_dim;
  const int I = drafter->inner;
  const long projected = (long)(H + 2 * G) * size, attended = (long)H * size, slot = (long)G * size;
  long end = 0;
  for (int m = 0; m < M; m++) end = positions[m] + 1 > end ? positions[m] + 1 : end;
  const long own = (long)M * 2 * D + 2L * M * GROUP + end + 2 * LANES + size;
  float *heads = scratch, *mixed = heads + M * projected, *hidden = mixed + B * attended, *rest = hidden + (long)B * I;
  Meeting meeting = {0, 0, 1};

#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num(), size_of_team = omp_get_num_threads();
    float *inputs = rest + thread * own, *tiles = inputs + (long)M * 2 * D, *query = tiles + (long)M * 2 * GROUP;
    float *scores = query + size;
#pragma omp single
    meeting.size = size_of_team;

    for (int m = 0; m < M; m++) {
      norm(drafter->embedding + ids[m] * D, 1, D, drafter->eps, drafter->input_norm, inputs + (long)m * 2 * D);
      norm(states + (long)m * D, 1, D, drafter->eps, drafter->hidden_norm, inputs + (long)m * 2 * D + D);
    }
    if (thread == 0)
      for (int row = 0; row < B; row++) {
        long m = (long)row * T + last[row];
        const float *residual = drafter->norm_before_residual ? inputs + m * 2 * D + D : states + m * D;
        memcpy(state + (long)row * D, residual, D * sizeof(float));
      }
    times(drafter->qkv, projected, 2 * D, 2 * D, inputs, M, heads, SET, tiles, thread, size_of_team);
    meet(&meeting);

    long first, final;
    share((long)M * G, thread, size_of_team, &first, &final);
    for (long item = first; item < final; item++) {
      long m = item / G, group = item % G, at = ((m / T) * capacity + positions[m]) * slot + group * size;
      const float *key = heads + m * projected + (H + group) * size;
      rotate(key, cosine + positions[m] * size, sine + positions[m] * size, size, keys + at);
      memcpy(values + at, key + slot, size * sizeof(float));
    }
    meet(&meeting);

    share((long)B * H, thread, size_of_team, &first, &final);
    for (long item = first; item < final; item++) {
      long row = item / H, head = item % H, m = row * T + last[row], at = positions[m] * size;
      long block = row * capacity * slot + head / (H / G) * size;
      rotate(heads + m * projected + head * size, cosine + at, sine + at, size, query);
      attend(query, keys + block, values + block, slot, positions[m] + 1, size, scores, mixed + row * attended + head * size);
    }
    meet(&meeting);

    times(drafter->out, D, attended, attended, mixed, B, state, ADD, tiles, thread, size_of_team);
    meet(&meeting);
    if (I) {
      norm(state, B, D, drafter->eps, drafter->mlp_norm, inputs);
      gated(drafter->gate, drafter->up, I, D, inputs, B, hidden, tiles, thread, size_of_team);
      meet(&meeting);
      times(drafter->down, D, I, I, hidden, B, state, ADD, tiles, thread, size_of_team);
      meet(&meeting);
    }
    if (thread == 0) norm(state, B, D, drafter->eps, drafter->final_norm, normed);
  }
}

/* out (M, N) = the first K columns of a packed matrix times M inputs; `scratch` has threads * M * 32 floats. */
void multiply(const void *packed, const float *scale, long N, int columns, int K, const float *x, int M, float *out,
              float *scratch, int threads) {
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    float *tiles = scratch + (long)thread * M * GROUP;
    times((Matrix){packed, scale}, N, columns, K, x, M, out, SET, tiles, thread, omp_get_num_threads());
  }
}
