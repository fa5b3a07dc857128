// Static centres of every kind of RoPE, against averages of what ggml's own
// operation makes of the mean key at every position. Writes its calibrations by
// itself, by what crates/calibration/README.md says of the file.
//
// Usage: rope

#include "check.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-kvforge.h"
#include "llama-kvforge-keys.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace {

const int64_t HEADS = 2;

struct variant {
    const char * name;
    int   mode, head, n_dims;
    float freq_base, freq_scale, ext_factor, attn_factor;
    int   n_ctx_orig;
    bool  factors;
};

const variant VARIANTS[] = {
    { "interleaved",           GGML_ROPE_TYPE_NORMAL,  64,  64,  1e5f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "split",                 GGML_ROPE_TYPE_NEOX,   128, 128,  1e6f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "split, local base",     GGML_ROPE_TYPE_NEOX,   256, 256,  1e4f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "interleaved, partial",  GGML_ROPE_TYPE_NORMAL, 128,  64,  1e4f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "split, partial",        GGML_ROPE_TYPE_NEOX,    80,  32,  1e4f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "linear scaling",        GGML_ROPE_TYPE_NORMAL,  64,  64,  1e4f, 0.25f, 0.0f, 1.0f, 0,     false },
    { "YaRN",                  GGML_ROPE_TYPE_NEOX,   128, 128,  1e6f, 0.25f, 1.0f, 1.0f, 32768, false },
    { "YaRN, interleaved",     GGML_ROPE_TYPE_NORMAL, 128, 128,  1e4f, 0.1f,  1.0f, 0.8f, 4096,  false },
    { "frequency factors",     GGML_ROPE_TYPE_NORMAL, 128, 128,  5e5f, 1.0f,  0.0f, 1.0f, 0,     true  },
    { "M-RoPE, text",          GGML_ROPE_TYPE_MROPE,  128, 128,  1e6f, 1.0f,  0.0f, 1.0f, 0,     false },
    { "interleaved M-RoPE",    GGML_ROPE_TYPE_IMROPE, 128, 128,  1e6f, 1.0f,  0.0f, 1.0f, 0,     false },
};

bool is_multi(const variant & v) { return v.mode & GGML_ROPE_TYPE_MROPE; }

// x: [head, HEADS, n] at positions 0, 1, ...
ggml_tensor * rope(ggml_context * ctx, const variant & v, ggml_tensor * x) {
    const int64_t n = x->ne[2];
    ggml_tensor * pos = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, is_multi(v) ? 4*n : n);
    for (int64_t i = 0; i < pos->ne[0]; i++) {
        ((int32_t *) pos->data)[i] = i < 3*n ? i % n : 0;
    }
    ggml_tensor * factors = nullptr;
    if (v.factors) {
        factors = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, v.n_dims/2);
        for (int i = 0; i < v.n_dims/2; i++) {
            ((float *) factors->data)[i] = i < 20 ? 1.0f : i < 40 ? 1.0f + 0.35f*(i - 20) : 8.0f;
        }
    }
    int sections[GGML_MROPE_SECTIONS] = { 16, 24, 24, 0 };
    return is_multi(v) ?
        ggml_rope_multi(ctx, x, pos, factors, v.n_dims, sections, v.mode, v.n_ctx_orig, v.freq_base, v.freq_scale, v.ext_factor, v.attn_factor, 32.0f, 1.0f) :
        ggml_rope_ext  (ctx, x, pos, factors, v.n_dims,           v.mode, v.n_ctx_orig, v.freq_base, v.freq_scale, v.ext_factor, v.attn_factor, 32.0f, 1.0f);
}

ggml_context_ptr memory(size_t bytes) {
    return ggml_context_ptr { ggml_init({ bytes + (1 << 20), nullptr, false }) };
}

// the average image of the mean key, position by position
std::vector<double> average(const variant & v, const std::vector<float> & mean, int64_t n) {
    ggml_context_ptr ctx = memory(n*(2*HEADS*v.head + 8)*sizeof(float));
    ggml_tensor * x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, v.head, HEADS, n);
    for (int64_t p = 0; p < n; p++) {
        memcpy((float *) x->data + p*HEADS*v.head, mean.data(), HEADS*v.head*sizeof(float));
    }
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_tensor * turned = rope(ctx.get(), v, x);
    ggml_build_forward_expand(gf, turned);
    ggml_backend_ptr cpu { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    CHECK(ggml_backend_graph_compute(cpu.get(), gf) == GGML_STATUS_SUCCESS);
    std::vector<double> sum(HEADS*v.head, 0.0);
    for (int64_t p = 0; p < n; p++) {
        for (size_t i = 0; i < sum.size(); i++) {
            sum[i] += ((const float *) turned->data)[p*sum.size() + i];
        }
    }
    for (double & s : sum) {
        s /= n;
    }
    return sum;
}

// the same over sequences of `n`, `n/2`, ... tokens, down to 512
std::vector<double> average_of_context(const variant & v, const std::vector<float> & mean, int64_t n) {
    std::vector<double> sum = average(v, mean, n);
    int count = 1;
    for (int64_t length = n/2; length >= 512; length /= 2, count++) {
        const auto part = average(v, mean, length);
        for (size_t i = 0; i < sum.size(); i++) {
            sum[i] += part[i];
        }
    }
    for (double & s : sum) {
        s /= count;
    }
    return sum;
}

struct writer {
    std::string bytes;

    template <typename T> void put(const T & x) { bytes.append((const char *) &x, sizeof(x)); }

    void floats(const std::vector<float> & x) { bytes.append((const char *) x.data(), x.size()*sizeof(float)); }
};

// A calibration of one layer with these means.
std::string calibration(const variant & v, const std::vector<float> & step, const std::vector<float> & mean) {
    const uint32_t head = v.head, n_pairs = v.n_dims/2;
    writer body;
    body.put<uint64_t>(1);    // model
    body.put<uint64_t>(1000); // tokens
    body.put<uint32_t>(1);    // layers
    body.bytes += "test" + std::string(60, '\0');
    for (uint32_t x : { 0u, (uint32_t) HEADS, (uint32_t) HEADS, head, n_pairs, (uint32_t) v.mode, (uint32_t) v.n_dims, (uint32_t) v.n_ctx_orig }) {
        body.put(x);
    }
    for (float x : { v.freq_base, v.freq_scale, v.ext_factor, v.attn_factor, 32.0f, 1.0f }) {
        body.put(x);
    }
    body.put<uint32_t>(v.factors);
    for (uint32_t i = 0; i < n_pairs; i++) {
        const bool interleaved = v.mode == GGML_ROPE_TYPE_NORMAL;
        const uint32_t a = interleaved ? 2*i : i;
        const uint32_t b = interleaved ? a + 1 : i + n_pairs;
        body.put(a);
        body.put(b);
        body.put(step[a*head + a]);
        body.put(step[a*head + b]);
    }
    body.floats(mean);
    body.floats(std::vector<float>(2*HEADS*head + 2*HEADS*n_pairs, 1.0f));
    uint64_t hash = 0xcbf29ce484222325;
    for (unsigned char c : body.bytes) {
        hash = (hash ^ c)*0x100000001b3;
    }
    writer file;
    file.bytes = "KVFCALIB";
    file.put<uint32_t>(1);
    file.put(hash);
    return file.bytes + body.bytes;
}

// |a - b| / |mean|
double distance(const std::vector<float> & a, const std::vector<double> & b, const std::vector<float> & mean) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) {
        apart += (a[i] - b[i])*(a[i] - b[i]);
        size  += (double) mean[i]*mean[i];
    }
    return std::sqrt(apart/size);
}

void run(const variant & v, unsigned long long seed) {
    const struct kvf_api * api = ggml_kvforge_api();
    std::vector<float> mean(HEADS*v.head);
    for (float & x : mean) {
        x = gaussian(&seed);
    }
    ggml_context_ptr ctx = memory(4*HEADS*v.head*sizeof(float));
    const ggml_tensor * op = rope(ctx.get(), v, ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, v.head, HEADS, 1));
    const auto step = llama_kvforge_rope_matrix(op, 1);
    const std::string file = calibration(v, step, mean);

    kvf_calibration about;
    const int32_t read = api->calibration_read(file.data(), file.size(), &about);
    if (!check(read == KVF_OK && about.n_layers == 1, v.name, __FILE__, __LINE__)) {
        fprintf(stderr, "%s: %s\n", v.name, api->status_text(read));
        return;
    }
    for (int64_t n : { 1, 2, 777, 1024, 8192 }) {
        std::vector<float> centre(mean.size());
        const int32_t status = api->static_centre(file.data(), file.size(), 0, step.data(), n, centre.data());
        const auto expected = average_of_context(v, mean, n);
        const double off = distance(centre, expected, mean);
        printf("%-22s %5d positions: off by %.2g of the mean key\n", v.name, (int) n, off);
        check(status == KVF_OK && off < 1e-3, v.name, __FILE__, __LINE__);
        // what a check of another context, or of no turning at all, would see
        if (n == 8192) {
            CHECK(distance(mean, expected, mean) > 0.1);
            CHECK(api->static_centre(file.data(), file.size(), 0, step.data(), n/2, centre.data()) == KVF_OK);
            CHECK(distance(centre, expected, mean) > 3e-3);
        }
    }
    // the pairs of a graph that is not the calibrated one's
    variant other = v;
    other.mode = v.mode == GGML_ROPE_TYPE_NORMAL ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    const ggml_tensor * wrong = rope(ctx.get(), other, ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, v.head, HEADS, 1));
    std::vector<float> centre(mean.size());
    CHECK(api->static_centre(file.data(), file.size(), 0, llama_kvforge_rope_matrix(wrong, 1).data(), 8, centre.data()) == KVF_OTHER_TURNS);
}

} // namespace

int main() {
    ggml_backend_load_all();
    unsigned long long seed = 1;
    for (const variant & v : VARIANTS) {
        run(v, seed++);
    }
    return report();
}
