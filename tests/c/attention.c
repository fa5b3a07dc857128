// The C ABI as a C program sees it: attention and scores over strided tensors.

#include "formats.h"

#include <math.h>

enum { HEADS = 6, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, N_Q = 3, N_KV = 70, SPLIT = 33 };

// A cache of N_KV tokens, both as bytes and as the values that the bytes stand
// for. Values are fp32 if the format holds none.
struct cache {
    size_t k_row_bytes;
    unsigned char * k, * v;
    float * k_values, * v_values; // [N_KV, KV_HEADS, DIM]
    float * q, * out;             // [N_Q, HEADS, DIM]
    struct kvf_segment segment;
    struct kvf_attention attention;
};

static struct cache new_cache(const struct kvf_format_info * f, uint32_t isa) {
    enum { ROW = KV_HEADS * DIM };
    const size_t coded_row = ROW / f->block_len * f->block_bytes;
    const size_t v_row_bytes = f->holds_values ? coded_row : ROW * sizeof(float);
    struct cache c = { .k_row_bytes = coded_row };
    c.k = aligned_memory(N_KV * c.k_row_bytes);
    c.v = aligned_memory(N_KV * v_row_bytes);
    c.k_values = aligned_memory(N_KV * ROW * sizeof(float));
    c.v_values = aligned_memory(N_KV * ROW * sizeof(float));
    c.q = aligned_memory(N_Q * HEADS * DIM * sizeof(float));
    c.out = aligned_memory(N_Q * HEADS * DIM * sizeof(float));
    fill(c.k_values, N_KV * ROW, 11);
    fill(c.v_values, N_KV * ROW, 12);
    fill(c.q, N_Q * HEADS * DIM, 13);
    CHECK(kvf_encode(f->id, isa, c.k_values, c.k, N_KV * ROW, 0, NULL) == KVF_OK);
    CHECK(kvf_decode(f->id, KVF_ISA_SCALAR, KVF_ORIGINAL, c.k, c.k_values, N_KV * ROW, 0) == KVF_OK);
    if (f->holds_values) {
        CHECK(kvf_encode(f->id, isa, c.v_values, c.v, N_KV * ROW, 0, NULL) == KVF_OK);
        CHECK(kvf_decode(f->id, KVF_ISA_SCALAR, KVF_ORIGINAL, c.v, c.v_values, N_KV * ROW, 0) == KVF_OK);
    } else {
        memcpy(c.v, c.v_values, N_KV * v_row_bytes);
    }
    c.segment = (struct kvf_segment) {
        .k_type = f->id, .v_type = f->holds_values ? f->id : KVF_F32, .k = c.k, .v = c.v, .n_kv = N_KV,
        .k_row_stride = c.k_row_bytes, .k_head_stride = c.k_row_bytes / KV_HEADS,
        .v_row_stride = v_row_bytes, .v_head_stride = v_row_bytes / KV_HEADS,
    };
    c.attention = (struct kvf_attention) {
        .struct_size = sizeof(struct kvf_attention),
        .head_dim_k = DIM, .head_dim_v = DIM, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .n_q = N_Q,
        .q = c.q, .q_row_stride = HEADS * DIM * sizeof(float), .q_head_stride = DIM * sizeof(float),
        .out = c.out, .out_row_stride = HEADS * DIM * sizeof(float), .out_head_stride = DIM * sizeof(float),
        .scale = 0.09f, .causal = 1, .q_pos0 = N_KV - N_Q, .n_segments = 1, .isa = isa, .slot = 4,
    };
    return c;
}

static void free_cache(struct cache * c) {
    free(c->k); free(c->v); free(c->k_values); free(c->v_values); free(c->q); free(c->out);
}

static double key_dot(const struct cache * c, int q, int head, int key) {
    double sum = 0;
    for (int i = 0; i < DIM; i++) {
        sum += (double) c->q[(q * HEADS + head) * DIM + i] * c->k_values[(key * KV_HEADS + head / GROUP) * DIM + i];
    }
    return sum;
}

// The largest difference between `out` and a softmax written as in a textbook,
// over the largest value.
static double attention_error(const struct cache * c) {
    double worst = 0, largest = 0;
    for (int i = 0; i < N_KV * KV_HEADS * DIM; i++) {
        largest = fmax(largest, fabs(c->v_values[i]));
    }
    for (int q = 0; q < N_Q; q++) {
        for (int head = 0; head < HEADS; head++) {
            double sum = 0, expected[DIM] = { 0 };
            for (int key = 0; key <= N_KV - N_Q + q; key++) {
                const double weight = exp(c->attention.scale * key_dot(c, q, head, key));
                sum += weight;
                for (int i = 0; i < DIM; i++) {
                    expected[i] += weight * c->v_values[(key * KV_HEADS + head / GROUP) * DIM + i];
                }
            }
            for (int i = 0; i < DIM; i++) {
                const double error = fabs(c->out[(q * HEADS + head) * DIM + i] - expected[i] / sum);
                worst = error > worst || isnan(error) ? error : worst;
            }
        }
    }
    return worst / largest;
}

static void test_attention(const struct kvf_format_info * f, uint32_t isa) {
    struct cache c = new_cache(f, isa);
    c.attention.segments = &c.segment;
    const size_t size = kvf_attend_scratch(&c.attention, N_Q);
    CHECK(size > 0);
    void * scratch = aligned_memory(size);

    kvf_counters_reset();
    for (size_t head = 0; head < KV_HEADS; head++) {
        CHECK(kvf_attend(&c.attention, head, 0, N_Q, scratch, size) == KVF_OK);
    }
    CHECK(attention_error(&c) <= f->attention_tolerance);
    CHECK(counted(f, KVF_OP_ATTEND, isa, 4) == N_Q * HEADS);

    // the same in two parts, merged
    CHECK(kvf_partial_floats(&c.attention) == DIM + 2);
    const size_t floats = N_Q * GROUP * (DIM + 2);
    float * partials = aligned_memory(2 * floats * sizeof(float));
    memset(c.out, 0, N_Q * HEADS * DIM * sizeof(float));
    for (size_t head = 0; head < KV_HEADS; head++) {
        CHECK(kvf_attend_partial(&c.attention, head, 0, N_Q, 0, 0, SPLIT, partials, scratch, size) == KVF_OK);
        CHECK(kvf_attend_partial(&c.attention, head, 0, N_Q, 0, SPLIT, N_KV, partials + floats, scratch, size) == KVF_OK);
        CHECK(kvf_attend_merge(&c.attention, head, 0, N_Q, partials, 2, floats) == KVF_OK);
    }
    CHECK(attention_error(&c) <= f->attention_tolerance);
    CHECK(counted(f, KVF_OP_ATTEND, isa, 4) == 2 * N_Q * HEADS);
    free(partials); free(scratch);
    free_cache(&c);
}

static void test_attention_errors(const struct kvf_format_info * f) {
    struct cache c = new_cache(f, KVF_ISA_SCALAR);
    const struct kvf_segment good_segment = c.segment;
    const struct kvf_attention good = c.attention;
    const size_t out_bytes = N_Q * HEADS * DIM * sizeof(float);
    c.attention.segments = &c.segment;
    const size_t size = kvf_attend_scratch(&c.attention, N_Q);
    unsigned char * scratch = aligned_memory(size + 64);
    float * partials = aligned_memory(N_Q * GROUP * (DIM + 2) * sizeof(float));
    memset(c.out, 0xA5, out_bytes);

    // each change makes the call wrong in one way
#define WRONG(change, status) do { \
        c.segment = good_segment; \
        c.attention = good; \
        c.attention.segments = &c.segment; \
        change; \
        CHECK(kvf_attend(&c.attention, 0, 0, N_Q, scratch, size) == (status)); \
        CHECK(kvf_attend_partial(&c.attention, 0, 0, N_Q, 0, 0, N_KV, partials, scratch, size) == (status)); \
        CHECK(untouched(c.out, out_bytes, 0xA5)); \
    } while (0)
    WRONG(c.attention.q = NULL, KVF_NULL);
    WRONG(c.attention.segments = NULL, KVF_NULL);
    WRONG(c.segment.k = NULL, KVF_NULL);
    WRONG(c.segment.v = NULL, KVF_NULL);
    WRONG(c.segment.k_type = 999, KVF_BAD_TYPE);
    WRONG(c.segment.v_type = 999, KVF_BAD_TYPE);
    WRONG((c.segment.mask = c.q, c.segment.mask_type = f->id), KVF_BAD_TYPE);
    WRONG(c.attention.n_heads = 0, KVF_BAD_SHAPE);
    WRONG(c.attention.n_kv_heads = 0, KVF_BAD_SHAPE);
    WRONG(c.attention.n_heads = HEADS + 1, KVF_BAD_SHAPE);
    WRONG(c.attention.head_dim_k = DIM - 1, KVF_BAD_SHAPE);
    WRONG(c.attention.head_dim_v = 0, KVF_BAD_SHAPE);
    WRONG(c.attention.n_segments = KVF_MAX_SEGMENTS + 1, KVF_BAD_SHAPE);
    WRONG(c.segment.k_row_stride = 1, KVF_BAD_SHAPE);
    WRONG(c.segment.v_row_stride = SIZE_MAX, KVF_BAD_SHAPE);
    WRONG(c.attention.q_row_stride = 4, KVF_BAD_SHAPE);
    WRONG(c.segment.n_kv = SIZE_MAX / 2, KVF_BAD_SHAPE);
    WRONG(c.attention.isa = 1000, KVF_UNSUPPORTED);
    WRONG(c.attention.struct_size = 0, KVF_UNSUPPORTED);
#undef WRONG

    c.segment = good_segment;
    c.attention = good;
    c.attention.segments = &c.segment;
    const struct kvf_attention * a = &c.attention;
    CHECK(kvf_attend(NULL, 0, 0, N_Q, scratch, size) == KVF_NULL);
    CHECK(kvf_attend(a, KV_HEADS, 0, N_Q, scratch, size) == KVF_BAD_SHAPE);
    CHECK(kvf_attend(a, 0, 0, N_Q + 1, scratch, size) == KVF_BAD_SHAPE);
    CHECK(kvf_attend(a, 0, 2, 1, scratch, size) == KVF_BAD_SHAPE);
    CHECK(kvf_attend(a, 0, 0, N_Q, NULL, size) == KVF_NULL);
    CHECK(kvf_attend(a, 0, 0, N_Q, scratch + 4, size) == KVF_SCRATCH);
    CHECK(kvf_attend(a, 0, 0, N_Q, scratch, 64) == KVF_SCRATCH);
    CHECK(kvf_attend_partial(NULL, 0, 0, N_Q, 0, 0, N_KV, partials, scratch, size) == KVF_NULL);
    CHECK(kvf_attend_partial(a, 0, 0, N_Q, 0, 0, N_KV, NULL, scratch, size) == KVF_NULL);
    CHECK(kvf_attend_partial(a, 0, 0, N_Q, 1, 0, N_KV, partials, scratch, size) == KVF_BAD_SHAPE);
    CHECK(kvf_attend_partial(a, 0, 0, N_Q, 0, 0, N_KV + 1, partials, scratch, size) == KVF_BAD_SHAPE);
    CHECK(kvf_attend_partial(a, 0, 0, N_Q, 0, 0, N_KV, partials, scratch, 64) == KVF_SCRATCH);
    CHECK(kvf_attend_merge(NULL, 0, 0, N_Q, partials, 1, 0) == KVF_NULL);
    CHECK(kvf_attend_merge(a, 0, 0, N_Q, NULL, 1, N_Q * GROUP * (DIM + 2)) == KVF_NULL);
    CHECK(kvf_attend_merge(a, KV_HEADS, 0, N_Q, partials, 1, N_Q * GROUP * (DIM + 2)) == KVF_BAD_SHAPE);
    CHECK(kvf_attend_merge(a, 0, 0, N_Q, partials, 2, 1) == KVF_BAD_SHAPE);
    CHECK(untouched(c.out, out_bytes, 0xA5));
    CHECK(kvf_attend_scratch(NULL, N_Q) == 0 && kvf_partial_floats(NULL) == 0);

    // as what a cache may not hold
    if (!f->holds_values) {
        c.segment.v_type = f->id;
        c.segment.v = c.k;
        c.segment.v_row_stride = c.segment.k_row_stride;
        c.segment.v_head_stride = c.segment.k_head_stride;
        CHECK(kvf_attend(a, 0, 0, N_Q, scratch, size) == KVF_BAD_SHAPE);
        CHECK(untouched(c.out, out_bytes, 0xA5));
    }
    free(scratch); free(partials);
    free_cache(&c);
}

// Formats that only old files hold are no cache's.
static void test_attention_refused(const struct kvf_format_info * f) {
    struct cache c = new_cache(f, KVF_ISA_SCALAR);
    const size_t out_bytes = N_Q * HEADS * DIM * sizeof(float);
    c.attention.segments = &c.segment;
    const size_t size = kvf_attend_scratch(&c.attention, N_Q);
    void * scratch = aligned_memory(size);
    memset(c.out, 0xA5, out_bytes);
    CHECK(kvf_attend(&c.attention, 0, 0, N_Q, scratch, size) == KVF_BAD_SHAPE);
    CHECK(untouched(c.out, out_bytes, 0xA5));
    free(scratch);
    free_cache(&c);
}

// Scores of queries of one domain with keys decoded into it.
static void test_scores(const struct kvf_format_info * f, uint32_t isa, uint32_t domain) {
    const size_t dim = domain == KVF_ROTATED ? DIM / f->block_len * f->coded_len : DIM;
    const float scale = domain == KVF_ROTATED ? 0.25f : 1;
    struct cache c = new_cache(f, isa);
    float * out = aligned_memory(N_Q * HEADS * N_KV * sizeof(float));
    float * queries = aligned_memory(N_Q * HEADS * dim * sizeof(float));
    float * keys = aligned_memory(N_KV * KV_HEADS * dim * sizeof(float));
    fill(queries, N_Q * HEADS * dim, 14);
    CHECK(kvf_decode(f->id, KVF_ISA_SCALAR, domain, c.k, keys, N_KV * KV_HEADS * dim, 0) == KVF_OK);
    struct kvf_scores s = {
        .struct_size = sizeof(s), .k_type = f->id, .isa = isa, .slot = 6, .q_domain = domain, .scale = scale,
        .head_dim = DIM, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .n_q = N_Q, .n_kv = N_KV,
        .q = queries, .q_row_stride = HEADS * dim * sizeof(float), .q_head_stride = dim * sizeof(float),
        .k = c.k, .k_row_stride = c.k_row_bytes, .k_head_stride = c.k_row_bytes / KV_HEADS,
        .out = out, .out_row_stride = HEADS * N_KV * sizeof(float), .out_head_stride = N_KV * sizeof(float),
    };
    s.scratch_bytes = kvf_score_scratch(&s);
    CHECK(s.scratch_bytes > 0);
    s.scratch = aligned_memory(s.scratch_bytes);
    kvf_counters_reset();
    CHECK(kvf_score(&s) == KVF_OK);
    CHECK(counted(f, KVF_OP_SCORE, isa, 6) == (uint64_t) N_Q * HEADS * N_KV);
    double worst = 0;
    for (int row = 0; row < N_Q * HEADS; row++) {
        const float * q = queries + row * dim;
        for (int key = 0; key < N_KV; key++) {
            const float * k = keys + (key * KV_HEADS + row % HEADS / GROUP) * dim;
            double q_norm = 0, k_norm = 0, dot = 0;
            for (size_t i = 0; i < dim; i++) {
                q_norm += (double) q[i] * q[i];
                k_norm += (double) k[i] * k[i];
                dot += (double) q[i] * k[i];
            }
            const double error = fabs(out[row * N_KV + key] / scale - dot) / sqrt(q_norm * k_norm);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    CHECK(worst <= f->score_tolerance);

    const struct kvf_scores good = s;
#define WRONG(change, status) do { s = good; change; CHECK(kvf_score(&s) == (status)); } while (0)
    WRONG(s.q = NULL, KVF_NULL);
    WRONG(s.k = NULL, KVF_NULL);
    WRONG(s.out = NULL, KVF_NULL);
    WRONG(s.scratch = NULL, KVF_NULL);
    WRONG(s.k_type = 999, KVF_BAD_TYPE);
    WRONG(s.q_domain = 999, KVF_BAD_TYPE);
    WRONG(s.n_heads = HEADS + 1, KVF_BAD_SHAPE);
    WRONG(s.head_dim = DIM - 1, KVF_BAD_SHAPE);
    WRONG(s.k_row_stride = 1, KVF_BAD_SHAPE);
    WRONG(s.isa = 1000, KVF_UNSUPPORTED);
    WRONG(s.struct_size = 0, KVF_UNSUPPORTED);
    WRONG(s.scratch_bytes = 1, KVF_SCRATCH);
#undef WRONG
    CHECK(kvf_score(NULL) == KVF_NULL && kvf_score_scratch(NULL) == 0);
    free(good.scratch); free(out); free(queries); free(keys);
    free_cache(&c);
}

int main(void) {
    CHECK(load_formats());
    for (uint32_t i = 0; i < n_formats; i++) {
        const struct kvf_format_info * f = &formats[i];
        for (int j = 0; j < N_ISAS; j++) {
            if (!has_isa(f, isas[j])) {
                continue;
            }
            if (f->holds_keys) {
                test_attention(f, isas[j]);
            }
            test_scores(f, isas[j], KVF_ORIGINAL);
            test_scores(f, isas[j], KVF_ROTATED);
        }
        if (f->holds_keys) {
            test_attention_errors(f);
        } else {
            test_attention_refused(f);
        }
    }
    return report();
}
