// The C ABI as a C program sees it: every function, every status.

#include "check.h"
#include "kvforge.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { HEADS = 6, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, DIM = 64, N_Q = 3, N_KV = 70, SPLIT = 33 };

static struct kvf_format_info formats[16];
static uint32_t n_formats;

static const uint32_t isas[] = { KVF_ISA_SCALAR, KVF_ISA_AVX2 };
enum { N_ISAS = sizeof(isas) / sizeof(*isas) };

static void * aligned_memory(size_t size) {
    void * memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!memory) {
        abort();
    }
    memset(memory, 0, size);
    return memory;
}

static void fill(float * x, size_t n, unsigned long long seed) {
    for (size_t i = 0; i < n; i++) {
        x[i] = gaussian(&seed);
    }
}

static bool untouched(const void * memory, size_t n, unsigned char with) {
    const unsigned char * bytes = memory;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != with) {
            return false;
        }
    }
    return true;
}

// --- what there is -----------------------------------------------------------

static void test_formats(void) {
    while (n_formats < 16 && kvf_format_info(n_formats, &formats[n_formats]) == KVF_OK) {
        const struct kvf_format_info * f = &formats[n_formats++];
        CHECK(strlen(f->name) > 0 && strlen(f->name) < sizeof(f->name));
        CHECK(f->block_len > 0 && f->block_bytes * 8 >= f->block_len * f->code_bits);
        CHECK(f->gaussian_mse > 0 && f->gaussian_mse < 0.1 && f->gaussian_mse_margin > 0 && f->gaussian_mse_margin < 0.1);
        CHECK(f->score_tolerance > 0 && f->attention_tolerance > 0);
        printf("format %u: %s, %u values in %u bytes\n", f->id, f->name, f->block_len, f->block_bytes);
    }
    CHECK(n_formats > 0 && n_formats < 16);
    struct kvf_format_info info;
    CHECK(kvf_format_info(n_formats, &info) == KVF_BAD_TYPE);
    CHECK(kvf_format_info(UINT32_MAX, &info) == KVF_BAD_TYPE);
    CHECK(kvf_format_info(0, NULL) == KVF_NULL);
}

static void test_names(void) {
    for (int32_t a = KVF_OK; a <= KVF_SCRATCH; a++) {
        CHECK(strlen(kvf_status_text(a)) > 0);
        for (int32_t b = KVF_OK; b < a; b++) {
            CHECK(strcmp(kvf_status_text(a), kvf_status_text(b)) != 0);
        }
    }
    CHECK(kvf_status_text(-1) && kvf_status_text(1000));

    CHECK(kvf_isa_resolve(KVF_ISA_SCALAR) == KVF_ISA_SCALAR);
    const uint32_t best = kvf_isa_resolve(KVF_ISA_AUTO);
    CHECK(best == KVF_ISA_SCALAR || best == KVF_ISA_AVX2);
    CHECK(kvf_isa_resolve(1000) == 0);
    CHECK(strcmp(kvf_isa_name(KVF_ISA_SCALAR), "scalar") == 0 && strcmp(kvf_isa_name(KVF_ISA_AVX2), "avx2") == 0);
    CHECK(strcmp(kvf_isa_name(KVF_ISA_AUTO), kvf_isa_name(best)) == 0);
    CHECK(kvf_isa_name(1000) == NULL);

    static const char * const ops[] = { "encode", "decode", "score", "attend" };
    for (uint32_t i = 0; i < n_formats; i++) {
        for (uint32_t op = KVF_OP_ENCODE; op <= KVF_OP_ATTEND; op++) {
            char expected[64];
            snprintf(expected, sizeof(expected), "%.31s/%s/scalar", formats[i].name, ops[op]);
            const char * name = kvf_kernel_name(formats[i].id, op, KVF_ISA_SCALAR);
            CHECK(name && strcmp(name, expected) == 0);
        }
    }
    CHECK(kvf_kernel_name(formats[0].id, 1000, KVF_ISA_SCALAR) == NULL);
    CHECK(kvf_kernel_name(formats[0].id, KVF_OP_ENCODE, 1000) == NULL);
    CHECK(kvf_kernel_name(KVF_F16, KVF_OP_ENCODE, KVF_ISA_SCALAR) == NULL);
}

static void test_table(void) {
    CHECK(kvf_api(0) == NULL && kvf_api(KVF_API_VERSION + 1) == NULL);
    const struct kvf_api * api = kvf_api(KVF_API_VERSION);
    if (!CHECK(api != NULL)) {
        return;
    }
    CHECK(api->struct_size == sizeof(struct kvf_api) && api->version == KVF_API_VERSION);
    CHECK(strcmp(api->status_text(KVF_NULL), kvf_status_text(KVF_NULL)) == 0);
    // counts through the table and counts of the functions are the same counts
    const struct kvf_format_info * f = &formats[0];
    float * x = aligned_memory(f->block_len * sizeof(float));
    void * block = aligned_memory(f->block_bytes);
    api->counters_reset();
    CHECK(api->encode(f->id, KVF_ISA_SCALAR, x, block, f->block_len, 9, NULL) == KVF_OK);
    CHECK(kvf_encode(f->id, KVF_ISA_SCALAR, x, block, f->block_len, 9, NULL) == KVF_OK);
    CHECK(kvf_counter(f->id, KVF_OP_ENCODE, KVF_ISA_SCALAR, 9) == 2);
    CHECK(api->counter(f->id, KVF_OP_ENCODE, KVF_ISA_SCALAR, 9) == 2);
    free(x);
    free(block);
}

// --- rows --------------------------------------------------------------------

static void test_codec(const struct kvf_format_info * f, uint32_t isa) {
    const size_t n = 1024 * f->block_len, n_bytes = 1024 * f->block_bytes;
    float * x = aligned_memory(n * sizeof(float)), * y = aligned_memory(n * sizeof(float));
    unsigned char * bytes = aligned_memory(n_bytes), * again = aligned_memory(n_bytes);
    fill(x, n, f->id);

    kvf_counters_reset();
    CHECK(kvf_encode(f->id, isa, x, bytes, n, 3, NULL) == KVF_OK);
    CHECK(kvf_counter(f->id, KVF_OP_ENCODE, isa, 3) == 1024 && kvf_counter(f->id, KVF_OP_ENCODE, isa, 0) == 0);
    CHECK(kvf_encode(f->id, KVF_ISA_SCALAR, x, again, n, 0, NULL) == KVF_OK);
    CHECK(memcmp(bytes, again, n_bytes) == 0);

    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n, 5000) == KVF_OK);
    CHECK(kvf_counter(f->id, KVF_OP_DECODE, isa, 1023) == 1024);
    double error = 0, norm = 0, dot = 0, rotated_norm = 0, decoded_norm = 0;
    for (size_t i = 0; i < n; i++) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        norm += x[i] * x[i];
        decoded_norm += y[i] * y[i];
        dot += (double) x[i] * y[i];
    }
    CHECK(fabs(error / norm / f->gaussian_mse - 1) <= f->gaussian_mse_margin);

    float result = 0;
    CHECK(kvf_dot(f->id, isa, bytes, x, n, &result, 0) == KVF_OK);
    CHECK(fabs(result - dot) <= f->score_tolerance * sqrt(norm * decoded_norm));

    CHECK(kvf_decode(f->id, isa, KVF_ROTATED, bytes, y, n, 0) == KVF_OK);
    for (size_t i = 0; i < n; i++) {
        rotated_norm += y[i] * y[i];
    }
    CHECK(fabs(rotated_norm / decoded_norm - 1) < 1e-5);

    CHECK(kvf_poison(f->id, bytes, f->block_len) == KVF_OK);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, 2 * f->block_len, 0) == KVF_OK);
    for (uint32_t i = 0; i < f->block_len; i++) {
        CHECK(isnan(y[i]) && isfinite(y[f->block_len + i]));
    }
    free(x); free(y); free(bytes); free(again);
}

static void test_codec_errors(const struct kvf_format_info * f, uint32_t isa) {
    const size_t n = 4 * f->block_len, n_bytes = 4 * f->block_bytes;
    float * x = aligned_memory(n * sizeof(float)), * y = aligned_memory(n * sizeof(float));
    unsigned char * bytes = aligned_memory(n_bytes);
    float result = 7;
    size_t bad = 7;
    fill(x, n, 1);

    memset(bytes, 0xA5, n_bytes);
    CHECK(kvf_encode(f->id, isa, NULL, bytes, n, 0, &bad) == KVF_NULL);
    CHECK(kvf_encode(f->id, isa, x, NULL, n, 0, &bad) == KVF_NULL);
    CHECK(kvf_encode(KVF_F16, isa, x, bytes, n, 0, &bad) == KVF_BAD_TYPE);
    CHECK(kvf_encode(999, isa, x, bytes, n, 0, &bad) == KVF_BAD_TYPE);
    CHECK(kvf_encode(f->id, isa, x, bytes, n - 1, 0, &bad) == KVF_BAD_SHAPE);
    CHECK(kvf_encode(f->id, 1000, x, bytes, n, 0, &bad) == KVF_UNSUPPORTED);
    CHECK(untouched(bytes, n_bytes, 0xA5) && bad == 7);

    // blocks before the bad one are written, it and later ones are not
    static const float bad_values[] = { NAN, INFINITY, -INFINITY, FLT_MAX };
    for (int i = 0; i < 4; i++) {
        const size_t at = 2 * f->block_len + 5;
        const float good = x[at];
        x[at] = bad_values[i];
        memset(bytes, 0xA5, n_bytes);
        const int32_t expected = i < 3 ? KVF_NON_FINITE : KVF_SCALE_OVERFLOW;
        CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, &bad) == expected);
        CHECK(bad == (i < 3 ? at : 2 * f->block_len));
        CHECK(!untouched(bytes, 2 * f->block_bytes, 0xA5));
        CHECK(untouched(bytes + 2 * f->block_bytes, 2 * f->block_bytes, 0xA5));
        CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, NULL) == expected);
        x[at] = good;
    }

    CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, NULL) == KVF_OK);
    memset(y, 0xA5, n * sizeof(float));
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, NULL, y, n, 0) == KVF_NULL);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, NULL, n, 0) == KVF_NULL);
    CHECK(kvf_decode(999, isa, KVF_ORIGINAL, bytes, y, n, 0) == KVF_BAD_TYPE);
    CHECK(kvf_decode(f->id, isa, 999, bytes, y, n, 0) == KVF_BAD_TYPE);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n + 1, 0) == KVF_BAD_SHAPE);
    CHECK(kvf_decode(f->id, 1000, KVF_ORIGINAL, bytes, y, n, 0) == KVF_UNSUPPORTED);
    CHECK(untouched(y, n * sizeof(float), 0xA5));

    CHECK(kvf_dot(f->id, isa, NULL, x, n, &result, 0) == KVF_NULL);
    CHECK(kvf_dot(f->id, isa, bytes, NULL, n, &result, 0) == KVF_NULL);
    CHECK(kvf_dot(f->id, isa, bytes, x, n, NULL, 0) == KVF_NULL);
    CHECK(kvf_dot(999, isa, bytes, x, n, &result, 0) == KVF_BAD_TYPE);
    CHECK(kvf_dot(f->id, isa, bytes, x, 1, &result, 0) == KVF_BAD_SHAPE);
    CHECK(kvf_dot(f->id, 1000, bytes, x, n, &result, 0) == KVF_UNSUPPORTED);
    CHECK(result == 7);

    CHECK(kvf_poison(f->id, NULL, n) == KVF_NULL);
    CHECK(kvf_poison(999, bytes, n) == KVF_BAD_TYPE);
    CHECK(kvf_poison(f->id, bytes, 1) == KVF_BAD_SHAPE);
    free(x); free(y); free(bytes);
}

static void test_counters(void) {
    kvf_counters_reset();
    size_t cursor = 0;
    struct kvf_count count;
    CHECK(kvf_counter_next(&cursor, &count) != KVF_OK);
    const struct kvf_format_info * f = &formats[n_formats - 1];
    float * x = aligned_memory(3 * f->block_len * sizeof(float));
    void * bytes = aligned_memory(3 * f->block_bytes);
    CHECK(kvf_encode(f->id, KVF_ISA_SCALAR, x, bytes, 3 * f->block_len, 2, NULL) == KVF_OK);
    cursor = 0;
    CHECK(kvf_counter_next(&cursor, &count) == KVF_OK);
    CHECK(count.type == f->id && count.op == KVF_OP_ENCODE && count.isa == KVF_ISA_SCALAR && count.slot == 2 && count.count == 3);
    CHECK(kvf_counter_next(&cursor, &count) != KVF_OK);
    CHECK(kvf_counter_next(NULL, &count) == KVF_NULL && kvf_counter_next(&cursor, NULL) == KVF_NULL);
    CHECK(kvf_counter(999, KVF_OP_ENCODE, KVF_ISA_SCALAR, 2) == 0);
    free(x); free(bytes);
}

// --- attention ---------------------------------------------------------------

// A cache of N_KV tokens, both as bytes and as the values that the bytes stand for.
struct cache {
    const struct kvf_format_info * format;
    size_t row_bytes;
    unsigned char * k, * v;
    float * k_values, * v_values; // [N_KV, KV_HEADS, DIM]
    float * q, * out;             // [N_Q, HEADS, DIM]
    struct kvf_segment segment;
    struct kvf_attention attention;
};

static struct cache new_cache(const struct kvf_format_info * f, uint32_t isa) {
    enum { ROW = KV_HEADS * DIM };
    struct cache c = { .format = f, .row_bytes = ROW / f->block_len * f->block_bytes };
    c.k = aligned_memory(N_KV * c.row_bytes);
    c.v = aligned_memory(N_KV * c.row_bytes);
    c.k_values = aligned_memory(N_KV * ROW * sizeof(float));
    c.v_values = aligned_memory(N_KV * ROW * sizeof(float));
    c.q = aligned_memory(N_Q * HEADS * DIM * sizeof(float));
    c.out = aligned_memory(N_Q * HEADS * DIM * sizeof(float));
    fill(c.k_values, N_KV * ROW, 11);
    fill(c.v_values, N_KV * ROW, 12);
    fill(c.q, N_Q * HEADS * DIM, 13);
    CHECK(kvf_encode(f->id, isa, c.k_values, c.k, N_KV * ROW, 0, NULL) == KVF_OK);
    CHECK(kvf_encode(f->id, isa, c.v_values, c.v, N_KV * ROW, 0, NULL) == KVF_OK);
    CHECK(kvf_decode(f->id, KVF_ISA_SCALAR, KVF_ORIGINAL, c.k, c.k_values, N_KV * ROW, 0) == KVF_OK);
    CHECK(kvf_decode(f->id, KVF_ISA_SCALAR, KVF_ORIGINAL, c.v, c.v_values, N_KV * ROW, 0) == KVF_OK);
    c.segment = (struct kvf_segment) {
        .k_type = f->id, .v_type = f->id, .k = c.k, .v = c.v, .n_kv = N_KV,
        .k_row_stride = c.row_bytes, .k_head_stride = c.row_bytes / KV_HEADS,
        .v_row_stride = c.row_bytes, .v_head_stride = c.row_bytes / KV_HEADS,
    };
    c.attention = (struct kvf_attention) {
        .struct_size = sizeof(struct kvf_attention),
        .head_dim_k = DIM, .head_dim_v = DIM, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .n_q = N_Q,
        .q = c.q, .q_row_stride = HEADS * DIM * sizeof(float), .q_head_stride = DIM * sizeof(float),
        .out = c.out, .out_row_stride = HEADS * DIM * sizeof(float), .out_head_stride = DIM * sizeof(float),
        .scale = 0.125f, .causal = 1, .q_pos0 = N_KV - N_Q, .n_segments = 1, .isa = isa, .slot = 4,
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
    CHECK(kvf_counter(f->id, KVF_OP_ATTEND, isa, 4) == N_Q * HEADS);

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
    CHECK(kvf_counter(f->id, KVF_OP_ATTEND, isa, 4) == 2 * N_Q * HEADS);
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

    free(scratch); free(partials);
    free_cache(&c);
}

static void test_scores(const struct kvf_format_info * f, uint32_t isa) {
    struct cache c = new_cache(f, isa);
    float * out = aligned_memory(N_Q * HEADS * N_KV * sizeof(float));
    struct kvf_scores s = {
        .struct_size = sizeof(s), .k_type = f->id, .isa = isa, .slot = 6, .head_dim = DIM,
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .n_q = N_Q, .n_kv = N_KV,
        .q = c.q, .q_row_stride = HEADS * DIM * sizeof(float), .q_head_stride = DIM * sizeof(float),
        .k = c.k, .k_row_stride = c.row_bytes, .k_head_stride = c.row_bytes / KV_HEADS,
        .out = out, .out_row_stride = HEADS * N_KV * sizeof(float), .out_head_stride = N_KV * sizeof(float),
    };
    s.scratch_bytes = kvf_score_scratch(&s);
    CHECK(s.scratch_bytes > 0);
    s.scratch = aligned_memory(s.scratch_bytes);
    kvf_counters_reset();
    CHECK(kvf_score(&s) == KVF_OK);
    CHECK(kvf_counter(f->id, KVF_OP_SCORE, isa, 6) == (uint64_t) N_Q * HEADS * N_KV);
    double worst = 0;
    for (int q = 0; q < N_Q; q++) {
        for (int head = 0; head < HEADS; head++) {
            for (int key = 0; key < N_KV; key++) {
                double norms = 0, k_norm = 0;
                for (int i = 0; i < DIM; i++) {
                    const double a = c.q[(q * HEADS + head) * DIM + i], b = c.k_values[(key * KV_HEADS + head / GROUP) * DIM + i];
                    norms += a * a;
                    k_norm += b * b;
                }
                const double error = fabs(out[(q * HEADS + head) * N_KV + key] - key_dot(&c, q, head, key)) / sqrt(norms * k_norm);
                worst = error > worst || isnan(error) ? error : worst;
            }
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
    WRONG(s.n_heads = HEADS + 1, KVF_BAD_SHAPE);
    WRONG(s.head_dim = DIM - 1, KVF_BAD_SHAPE);
    WRONG(s.k_row_stride = 1, KVF_BAD_SHAPE);
    WRONG(s.isa = 1000, KVF_UNSUPPORTED);
    WRONG(s.struct_size = 0, KVF_UNSUPPORTED);
    WRONG(s.scratch_bytes = 1, KVF_SCRATCH);
#undef WRONG
    CHECK(kvf_score(NULL) == KVF_NULL && kvf_score_scratch(NULL) == 0);
    free(good.scratch); free(out);
    free_cache(&c);
}

int main(void) {
    test_formats();
    test_names();
    test_table();
    test_counters();
    for (uint32_t i = 0; i < n_formats; i++) {
        for (int j = 0; j < N_ISAS; j++) {
            if (kvf_isa_resolve(isas[j]) == 0) {
                printf("not run: %s: this machine has no %s\n", formats[i].name, kvf_isa_name(isas[j]));
                continue;
            }
            test_codec(&formats[i], isas[j]);
            test_codec_errors(&formats[i], isas[j]);
            test_attention(&formats[i], isas[j]);
            test_scores(&formats[i], isas[j]);
        }
        test_attention_errors(&formats[i]);
    }
    return report();
}
