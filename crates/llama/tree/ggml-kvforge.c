// The part of kvforge that lives in ggml-base: it exports the kernels and
// fills the rows of the type traits.

#include "ggml-kvforge.h"

#include "ggml-impl.h"
#include "ggml-threading.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// a generated number and the kernels' own idea of it must not drift apart
static void check_formats(const struct kvf_api * api) {
    struct kvf_format_info info;
#define CHECK(NAME, name, kernel_id, len, bytes, ...) { \
        uint32_t i = 0; \
        while (api->format_info(i, &info) == KVF_OK && info.id != (kernel_id)) { i++; } \
        GGML_ASSERT(info.id == (kernel_id) && info.block_len == (len) && info.block_bytes == (bytes) && \
            "kvforge: the kernels were built from another version than this tree's headers: run `kvforge ship` again"); \
    }
    KVFORGE_FORMATS(CHECK)
#undef CHECK
}

// Writes the non-zero kernel counters of this process to the file that
// KVFORGE_COUNTERS names, one JSON object a line.
static char counters_path[4096];

static void write_counters(void) {
    FILE * f = fopen(counters_path, "w");
    if (!f) {
        fprintf(stderr, "kvforge: cannot write KVFORGE_COUNTERS=%s\n", counters_path);
        return;
    }
    const struct kvf_api * api = kvf_api(KVF_API_VERSION);
    struct kvf_count c;
    size_t cursor = 0;
    while (api->counter_next(&cursor, &c) == KVF_OK) {
        fprintf(f, "{\"kernel\":\"%s\",\"slot\":%u,\"count\":%llu}\n",
            api->kernel_name(c.type, c.op, c.isa), (unsigned) c.slot, (unsigned long long) c.count);
    }
    fclose(f);
}

const struct kvf_api * ggml_kvforge_api(void) {
    // a race only repeats idempotent work: the table is a constant
    static const struct kvf_api * volatile cached;
    if (!cached) {
        const struct kvf_api * api = kvf_api(KVF_API_VERSION);
        GGML_ASSERT(api && api->struct_size >= sizeof(struct kvf_api) && "kvforge: kernel library too old for this tree");
        check_formats(api);
        cached = api;
    }
    return cached;
}

uint32_t ggml_kvforge_isa(void) {
    static volatile uint32_t cached;
    if (!cached) {
        const char * want = getenv("KVFORGE_ISA");
        uint32_t isa = KVF_ISA_AUTO;
        if (want && *want && strcmp(want, "auto") != 0) {
            if (strcmp(want, "scalar") == 0) {
                isa = KVF_ISA_SCALAR;
            } else if (strcmp(want, "avx2") == 0) {
                isa = KVF_ISA_AVX2;
            } else {
                GGML_ABORT("kvforge: KVFORGE_ISA=%s is not known: use auto, scalar or avx2", want);
            }
        }
        isa = ggml_kvforge_api()->isa_resolve(isa);
        if (!isa) {
            GGML_ABORT("kvforge: KVFORGE_ISA=%s cannot run on this CPU: use auto or scalar", want);
        }
        // first use of the kernels in this process: now they have something to report at its end
        const char * path = getenv("KVFORGE_COUNTERS");
        ggml_critical_section_start();
        if (path && *path && !counters_path[0]) {
            snprintf(counters_path, sizeof(counters_path), "%s", path);
            atexit(write_counters);
        }
        ggml_critical_section_end();
        cached = isa;
    }
    return cached;
}

bool ggml_kvforge_reference_encoder(void) {
    static volatile int cached; // one more than the answer
    if (!cached) {
        const char * want = getenv("KVFORGE_ENCODER");
        const bool reference = want && strcmp(want, "reference") == 0;
        if (want && *want && !reference && strcmp(want, "best") != 0) {
            GGML_ABORT("kvforge: KVFORGE_ENCODER=%s is not known: use best or reference", want);
        }
        cached = 1 + reference;
    }
    return cached - 1;
}

bool ggml_kvforge_is(enum ggml_type type) {
    switch ((int) type) {
#define CASE(NAME, ...) case GGML_TYPE_##NAME: return true;
        KVFORGE_FORMATS(CASE)
#undef CASE
        default: return false;
    }
}

uint32_t ggml_kvforge_kernel_type(enum ggml_type type) {
    switch ((int) type) {
        case GGML_TYPE_F32:  return KVF_F32;
        case GGML_TYPE_F16:  return KVF_F16;
        case GGML_TYPE_Q8_0: return KVF_Q8_0;
#define CASE(NAME, name, kernel_id, ...) case GGML_TYPE_##NAME: return kernel_id;
        KVFORGE_FORMATS(CASE)
#undef CASE
        default: return UINT32_MAX;
    }
}

struct kvf_format_info ggml_kvforge_info(enum ggml_type type) {
    const struct kvf_api * api = ggml_kvforge_api();
    struct kvf_format_info info;
    uint32_t i = 0;
    do {
        GGML_ASSERT(api->format_info(i++, &info) == KVF_OK && "kvforge: not one of our types");
    } while (info.id != ggml_kvforge_kernel_type(type));
    return info;
}

bool ggml_kvforge_validate(enum ggml_type type, const void * bytes, size_t n_blocks) {
    float x[256];
    const int64_t len = ggml_blck_size(type);
    GGML_ASSERT(len <= (int64_t) (sizeof(x)/sizeof(x[0])));
    for (size_t i = 0; i < n_blocks; i++) {
        const char * block = (const char *) bytes + i*ggml_type_size(type);
        if (ggml_kvforge_api()->decode(ggml_kvforge_kernel_type(type), KVF_ISA_SCALAR, KVF_ORIGINAL, block, x, len, 0) != KVF_OK) {
            return false;
        }
        for (int64_t j = 0; j < len; j++) {
            if (!isfinite(x[j])) {
                fprintf(stderr, "kvforge: block %zu of type %s does not decode to finite values\n", i, ggml_type_name(type));
                return false;
            }
        }
    }
    return true;
}

uint32_t ggml_kvforge_slot(const char * name) {
    for (const char * p = strstr(name, "_l"); p; p = strstr(p + 2, "_l")) {
        if (p[2] >= '0' && p[2] <= '9') {
            return (uint32_t) strtoul(p + 2, NULL, 10) + 1;
        }
    }
    return 0;
}

void ggml_kvforge_encode(enum ggml_type type, uint32_t isa, const float * x, void * bytes, int64_t n, uint32_t slot, const char * name) {
    const struct kvf_api * api = ggml_kvforge_api();
    const uint32_t kernel_type = ggml_kvforge_kernel_type(type);
    const int64_t  len   = ggml_blck_size(type);
    const size_t   size  = ggml_type_size(type);
    const bool     reference = ggml_kvforge_reference_encoder();
    char *         out   = (char *) bytes;

    // step over each block that cannot be encoded
    while (n > 0) {
        size_t bad = 0;
        const int32_t status = (reference ? api->encode : api->encode_best)(kernel_type, isa, x, out, n, slot, &bad);
        if (status == KVF_OK) {
            return;
        }
        GGML_ASSERT((status == KVF_NON_FINITE || status == KVF_SCALE_OVERFLOW) && "kvforge: bad row length");
        static volatile int told;
        if (!told) {
            told = 1;
            GGML_LOG_ERROR("kvforge: a row written to '%s' (%s) cannot be encoded: %s. It is stored as NaN\n",
                name, ggml_type_name(type), api->status_text(status));
        }
        const int64_t block = (int64_t) bad / len;
        api->poison(kernel_type, out + block*size, len);
        x   += (block + 1)*len;
        out += (block + 1)*size;
        n   -= (block + 1)*len;
    }
}

#define TRAITS(NAME, name, kernel_id, ...) \
    void ggml_kvforge_to_float_##name(const void * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k) { \
        const int32_t status = ggml_kvforge_api()->decode(kernel_id, ggml_kvforge_isa(), KVF_ORIGINAL, x, y, k, 0); \
        GGML_ASSERT(status == KVF_OK); \
    } \
    void ggml_kvforge_from_float_ref_##name(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k) { \
        ggml_kvforge_encode(GGML_TYPE_##NAME, KVF_ISA_SCALAR, x, y, k, 0, "row"); \
    } \
    void ggml_kvforge_from_float_##name(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k) { \
        ggml_kvforge_encode(GGML_TYPE_##NAME, ggml_kvforge_isa(), x, y, k, 0, "row"); \
    } \
    void ggml_kvforge_vec_dot_##name(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT x, size_t bx, const void * GGML_RESTRICT y, size_t by, int nrc) { \
        GGML_ASSERT(nrc == 1); \
        GGML_UNUSED(bs); \
        GGML_UNUSED(bx); \
        GGML_UNUSED(by); \
        const int32_t status = ggml_kvforge_api()->dot(kernel_id, ggml_kvforge_isa(), x, (const float *) y, n, s, 0); \
        GGML_ASSERT(status == KVF_OK); \
    }
KVFORGE_FORMATS(TRAITS)
