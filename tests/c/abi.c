// The C ABI as a C program sees it: facts, names, counters, and rows of a cache.

#include "formats.h"

#include <float.h>
#include <math.h>

// --- what there is -----------------------------------------------------------

static void test_formats(void) {
    for (uint32_t n = 0; n < n_formats; n++) {
        const struct kvf_format_info * f = &formats[n];
        CHECK(strlen(f->name) > 0 && strlen(f->name) < sizeof(f->name));
        CHECK(f->block_len > 0 && DIM % f->block_len == 0 && f->coded_len >= f->block_len);
        CHECK(f->code_bits > 0 && f->block_bytes * 8 >= f->coded_len * f->code_bits);
        CHECK(f->gaussian_mse > 0 && f->gaussian_mse < 1 && f->gaussian_mse_margin > 0 && f->gaussian_mse_margin < 0.1);
        CHECK(f->gaussian_mse_best > 0 && f->gaussian_mse_best <= f->gaussian_mse);
        CHECK(f->holds_keys <= 1 && f->holds_values <= f->holds_keys);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(formats[i].id != f->id && formats[i].layout_hash != f->layout_hash);
        }
        CHECK(f->score_tolerance > 0 && f->attention_tolerance > 0);
        printf("format %u: %s, %u values in %u bytes\n", f->id, f->name, f->block_len, f->block_bytes);
    }
    struct kvf_format_info info;
    CHECK(kvf_format_info(n_formats, &info) == KVF_BAD_TYPE);
    CHECK(kvf_format_info(UINT32_MAX, &info) == KVF_BAD_TYPE);
    CHECK(kvf_format_info(0, NULL) == KVF_NULL);
}

// the format of that name
static const struct kvf_format_info * by_name(const char * name) {
    for (uint32_t i = 0; i < n_formats; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return &formats[i];
        }
    }
    fprintf(stderr, "no format %s\n", name);
    exit(2);
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

    static const char * const ops[] = { "encode", "decode", "score", "attend", "dot" };
    for (uint32_t i = 0; i < n_formats; i++) {
        for (uint32_t op = KVF_OP_ENCODE; op <= KVF_OP_DOT; op++) {
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

typedef int32_t (*encoder)(uint32_t, uint32_t, const float *, void *, size_t, uint32_t, size_t *);

enum { BLOCKS = 1024 };

// One encoder, and its error: what the format says.
static void test_encoder(const struct kvf_format_info * f, uint32_t isa, encoder encode, double mse) {
    const size_t n = BLOCKS * f->block_len, n_bytes = BLOCKS * f->block_bytes;
    float * x = aligned_memory(n * sizeof(float)), * y = aligned_memory(n * sizeof(float));
    unsigned char * bytes = aligned_memory(n_bytes), * again = aligned_memory(n_bytes);
    fill(x, n, f->id);
    kvf_counters_reset();
    CHECK(encode(f->id, isa, x, bytes, n, 3, NULL) == KVF_OK);
    CHECK(counted(f, KVF_OP_ENCODE, isa, 3) == BLOCKS && counted(f, KVF_OP_ENCODE, isa, 0) == 0);
    CHECK(encode(f->id, KVF_ISA_SCALAR, x, again, n, 0, NULL) == KVF_OK);
    CHECK(memcmp(bytes, again, n_bytes) == 0);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n, 5000) == KVF_OK);
    CHECK(counted(f, KVF_OP_DECODE, isa, 1023) == BLOCKS);
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        norm += x[i] * x[i];
    }
    CHECK(fabs(error / norm / mse - 1) <= f->gaussian_mse_margin);
    free(x); free(y); free(bytes); free(again);
}

// What is read back: in either domain, by a dot product, of a poisoned block.
static void test_reading(const struct kvf_format_info * f, uint32_t isa) {
    const size_t n = 4 * f->block_len, n_coded = 4 * f->coded_len, n_bytes = 4 * f->block_bytes;
    float * x = aligned_memory(n * sizeof(float)), * y = aligned_memory(n * sizeof(float));
    float * coded = aligned_memory(n_coded * sizeof(float));
    unsigned char * bytes = aligned_memory(n_bytes);
    fill(x, n, 5);
    CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, NULL) == KVF_OK);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n, 0) == KVF_OK);
    double dot = 0, norm = 0, decoded_norm = 0, coded_norm = 0;
    for (size_t i = 0; i < n; i++) {
        norm += x[i] * x[i];
        decoded_norm += y[i] * y[i];
        dot += (double) x[i] * y[i];
    }
    float result = 0;
    CHECK(kvf_dot(f->id, isa, bytes, x, n, &result, 0) == KVF_OK);
    CHECK(fabs(result - dot) <= f->score_tolerance * sqrt(norm * decoded_norm));

    CHECK(kvf_decode(f->id, isa, KVF_ROTATED, bytes, coded, n_coded, 0) == KVF_OK);
    for (size_t i = 0; i < n_coded; i++) {
        coded_norm += coded[i] * coded[i];
    }
    if (f->coded_len == f->block_len) {
        // a rotation keeps lengths
        CHECK(fabs(coded_norm / decoded_norm - 1) < 1e-5);
    } else {
        // signs of a sketch: one size in a block
        bool one_size = true;
        for (size_t i = 0; i < n_coded; i++) {
            one_size &= coded[i] != 0 && fabsf(coded[i]) == fabsf(coded[i / f->coded_len * f->coded_len]);
        }
        CHECK(one_size);
    }

    CHECK(kvf_poison(f->id, bytes, f->block_len) == KVF_OK);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n, 0) == KVF_OK);
    for (uint32_t i = 0; i < f->block_len; i++) {
        CHECK(isnan(y[i]) && isfinite(y[f->block_len + i]));
    }
    free(x); free(y); free(coded); free(bytes);
}

// q4_polar's residual: half a unit of length a block, up or down by one sign.
static void test_residual(const struct kvf_format_info * f, uint32_t isa) {
    const size_t n = f->block_len;
    float * x = aligned_memory(n * sizeof(float)), * y = aligned_memory(n * sizeof(float)), * with = aligned_memory(n * sizeof(float));
    void * bytes = aligned_memory(f->block_bytes);
    fill(x, n, 6);
    CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, NULL) == KVF_OK);
    CHECK(kvf_decode(f->id, isa, KVF_ROTATED, bytes, y, n, 0) == KVF_OK);
    CHECK(kvf_decode(KVF_Q4_POLAR_RESIDUAL, isa, KVF_ROTATED, bytes, with, n, 0) == KVF_OK);
    double smallest = INFINITY, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double step = fabs(with[i] - y[i]);
        smallest = fmin(smallest, step);
        largest = fmax(largest, step);
    }
    CHECK(smallest > 0 && largest < smallest * 1.001);
    CHECK(kvf_encode(KVF_Q4_POLAR_RESIDUAL, isa, x, bytes, n, 0, NULL) == KVF_BAD_TYPE);
    free(x); free(y); free(with); free(bytes);
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
    CHECK(kvf_encode_best(f->id, isa, NULL, bytes, n, 0, &bad) == KVF_NULL);
    CHECK(kvf_encode_best(f->id, isa, x, bytes, n - 1, 0, &bad) == KVF_BAD_SHAPE);
    CHECK(untouched(bytes, n_bytes, 0xA5) && bad == 7);

    // blocks before the bad one are written, it and later ones are not
    static const float bad_values[] = { NAN, INFINITY, -INFINITY, FLT_MAX };
    const encoder encoders[] = { kvf_encode, kvf_encode_best };
    for (int i = 0; i < 8; i++) {
        const encoder encode = encoders[i / 4];
        const float value = bad_values[i % 4];
        const bool overflows = isfinite(value);
        const size_t start = 2 * f->block_len, at = start + 5;
        // one large value may still fit the scale of a sketch
        for (size_t j = start; j < start + f->block_len; j++) {
            x[j] = overflows || j == at ? value : 1;
        }
        memset(bytes, 0xA5, n_bytes);
        const int32_t expected = overflows ? KVF_SCALE_OVERFLOW : KVF_NON_FINITE;
        CHECK(encode(f->id, isa, x, bytes, n, 0, &bad) == expected);
        CHECK(bad == (overflows ? start : at));
        CHECK(!untouched(bytes, 2 * f->block_bytes, 0xA5));
        CHECK(untouched(bytes + 2 * f->block_bytes, 2 * f->block_bytes, 0xA5));
        CHECK(encode(f->id, isa, x, bytes, n, 0, NULL) == expected);
    }
    fill(x, n, 1);

    CHECK(kvf_encode(f->id, isa, x, bytes, n, 0, NULL) == KVF_OK);
    memset(y, 0xA5, n * sizeof(float));
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, NULL, y, n, 0) == KVF_NULL);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, NULL, n, 0) == KVF_NULL);
    CHECK(kvf_decode(999, isa, KVF_ORIGINAL, bytes, y, n, 0) == KVF_BAD_TYPE);
    CHECK(kvf_decode(f->id, isa, 999, bytes, y, n, 0) == KVF_BAD_TYPE);
    CHECK(kvf_decode(f->id, isa, KVF_ORIGINAL, bytes, y, n - 1, 0) == KVF_BAD_SHAPE);
    CHECK(kvf_decode(f->id, isa, KVF_ROTATED, bytes, y, f->coded_len / 2, 0) == KVF_BAD_SHAPE);
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

int main(void) {
    CHECK(load_formats());
    test_formats();
    test_names();
    test_table();
    test_counters();
    for (uint32_t i = 0; i < n_formats; i++) {
        const struct kvf_format_info * f = &formats[i];
        for (int j = 0; j < N_ISAS; j++) {
            if (has_isa(f, isas[j])) {
                test_encoder(f, isas[j], kvf_encode, f->gaussian_mse);
                test_encoder(f, isas[j], kvf_encode_best, f->gaussian_mse_best);
                test_reading(f, isas[j]);
                test_codec_errors(f, isas[j]);
            }
        }
    }
    const struct kvf_format_info * polar = by_name("q4_polar");
    for (int j = 0; j < N_ISAS; j++) {
        if (has_isa(polar, isas[j])) {
            test_residual(polar, isas[j]);
        }
    }
    return report();
}
