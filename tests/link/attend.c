// A C program that links a shipped ggml and runs fused attention on a
// compressed cache through ggml's public functions. It checks the numbers, and
// that the kernel it expects did the work: exactly n_q x heads rows of it.
//
// Usage: attend TYPE [FOLDER]   FOLDER: where backends are, if they are loaded
//                               at run time (GGML_BACKEND_DL)

#include "check.h"
#include "type_by_name.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-kvforge.h"
#include "ggml.h"

#include <math.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 128, N_Q = 5, N_KV = 100 };

// random values, and what they become in a tensor of this type
static float * fill(struct ggml_tensor * tensor, unsigned long long seed) {
    const struct ggml_type_traits * traits = ggml_get_type_traits(tensor->type);
    const int64_t n = ggml_nelements(tensor);
    float * values = malloc(n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        values[i] = gaussian(&seed);
    }
    if (tensor->type == GGML_TYPE_F32) {
        ggml_backend_tensor_set(tensor, values, 0, ggml_nbytes(tensor));
        return values;
    }
    void * bytes = malloc(ggml_nbytes(tensor));
    traits->from_float_ref(values, bytes, n);
    traits->to_float(bytes, values, n);
    ggml_backend_tensor_set(tensor, bytes, 0, ggml_nbytes(tensor));
    free(bytes);
    return values;
}

// largest difference from a softmax written as in a textbook, over the largest value
static double worst_error(const float * out, const float * q, const float * k, const float * v, double scale) {
    double worst = 0, largest = 0;
    for (int head = 0; head < HEADS; head++) {
        const float * keys = k + head / (HEADS / KV_HEADS) * N_KV * DIM;
        const float * values = v + head / (HEADS / KV_HEADS) * N_KV * DIM;
        for (int row = 0; row < N_Q; row++) {
            double sum = 0, expected[DIM] = { 0 };
            for (int key = 0; key < N_KV; key++) {
                double dot = 0;
                for (int i = 0; i < DIM; i++) {
                    dot += (double) q[(head * N_Q + row) * DIM + i] * keys[key * DIM + i];
                }
                const double weight = exp(scale * dot);
                sum += weight;
                for (int i = 0; i < DIM; i++) {
                    expected[i] += weight * values[key * DIM + i];
                    largest = fmax(largest, fabs(values[key * DIM + i]));
                }
            }
            for (int i = 0; i < DIM; i++) {
                // the result is [DIM, heads, rows], its operands are [DIM, rows, heads]
                const double error = fabs(out[(row * HEADS + head) * DIM + i] - expected[i] / sum);
                worst = error > worst || isnan(error) ? error : worst;
            }
        }
    }
    return worst / largest;
}

static struct kvf_format_info format_by_name(const struct kvf_api * api, const char * name) {
    struct kvf_format_info info;
    for (uint32_t i = 0; api->format_info(i, &info) == KVF_OK; i++) {
        if (strcmp(info.name, name) == 0) {
            return info;
        }
    }
    fprintf(stderr, "the kernels know no format %s\n", name);
    exit(2);
}

// whatever ggml itself was compiled for, our kernels are those of the machine
static const char * best_isa(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        return "avx2";
    }
#endif
    return "scalar";
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: attend TYPE [FOLDER]\n");
        return 2;
    }
    if (argc > 2) {
        ggml_backend_load_all_from_path(argv[2]);
    }
    ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (!backend) {
        fprintf(stderr, "no CPU backend\n");
        return 2;
    }

    const struct ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    const struct kvf_api * api = ggml_kvforge_api();
    const struct kvf_format_info info = format_by_name(api, argv[1]);
    const enum ggml_type type = type_by_name(argv[1]);
    const enum ggml_type v_type = info.holds_values ? type : GGML_TYPE_F16;
    struct ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, DIM, N_Q, HEADS);
    struct ggml_tensor * k = ggml_new_tensor_3d(ctx, type, DIM, N_KV, KV_HEADS);
    struct ggml_tensor * v = ggml_new_tensor_3d(ctx, v_type, DIM, N_KV, KV_HEADS);
    const float scale = 0.09f;
    struct ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, NULL, scale, 0, 0);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    CHECK(ggml_backend_supports_op(backend, out));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    float * q_values = fill(q, 1), * k_values = fill(k, 2), * v_values = fill(v, 3);

    api->counters_reset();
    CHECK(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS);

    static float result[N_Q * HEADS * DIM];
    ggml_backend_tensor_get(out, result, 0, sizeof(result));
    const double error = worst_error(result, q_values, k_values, v_values, scale);
    printf("worst error %g, tolerance %g\n", error, info.attention_tolerance);
    CHECK(error <= info.attention_tolerance);

    char expected[64];
    snprintf(expected, sizeof(expected), "%s/attend/%s", argv[1], best_isa());
    uint64_t counted = 0;
    size_t cursor = 0;
    struct kvf_count count;
    while (api->counter_next(&cursor, &count) == KVF_OK) {
        const char * kernel = api->kernel_name(count.type, count.op, count.isa);
        printf("kernel %s: %llu\n", kernel, (unsigned long long) count.count);
        if (count.op == KVF_OP_ATTEND) {
            CHECK(strcmp(kernel, expected) == 0);
            counted += count.count;
        }
    }
    CHECK(counted == N_Q * HEADS);

    free(q_values); free(k_values); free(v_values);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(backend);
    return report();
}
