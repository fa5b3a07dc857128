// What attention to few keys, chosen by a sketch, does to a whole model.
//
// The prompt, all but the last TAIL tokens of N_CTX, is attended to in full. Then every
// CHOICE runs the last TAIL tokens once, as if they were decoded, and in every layer and
// head each of these queries attends to the newest 32 keys, to the first 4, and to the k
// others that the selector ranks highest, with exact scores. Compared with the same tokens
// over all keys: divergence of the next-token distribution, and the same top token.
// Printed, too: how many of the true top k were chosen, and KL(P_S || P) = -ln(mass) of the
// attention rows, both over rows that have more than k keys to choose from.
//
// A CHOICE is SELECTOR@K, or SELECTOR@own: all keys, with scores of what the selector keeps
// of them, so that the newest 32 and the first 4 are exact and nothing is chosen.
// SELECTOR is `exact`, `newest`, `plain2` (2-bit Lloyd-Max codes after a rotation of 128
// values, one fp16 scale: 34 bytes), or a type's name. Keys are centred before they are coded: by the mean of what the cache
// holds after N_CTX tokens of CALIBRATION, which should be another text.
//
// It needs a tree with our types in it, whose graph it watches through llama.cpp's
// evaluation callback; it changes nothing there. KVFORGE_ENCODER=reference asks for the
// reference encoders. With $TREE the tree, all in one line:
//
//   g++ -std=c++17 -O3 -march=native -fopenmp -I $TREE/include -I $TREE/ggml/include topk.cpp -o topk
//       -L $TREE/build-kvforge/bin -Wl,-rpath,$TREE/build-kvforge/bin -lllama -lggml -lggml-cpu -lggml-base
//   ./topk MODEL.gguf TEXT CALIBRATION N_CTX TAIL exact@64 qjl1_256@64 tbq4_0@own
#include "ggml-cpu.h"
#include "ggml.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

using Floats = std::vector<float>;

static constexpr int NEWEST = 32;
static constexpr int FIRST  = 4;
static constexpr int BLOCK  = 128; // of qjl1_256 and of plain2

struct Choice {
    std::string name;
    int         k      = 0; // 0: own scores of all keys
    bool        newest = false;
    bool        plain2 = false;
    ggml_type   type   = GGML_TYPE_COUNT; // none: exact
};

static Choice parse_choice(const std::string & text) {
    const size_t at = text.find('@');
    if (at == std::string::npos) {
        throw std::runtime_error(text + ": expected SELECTOR@K or SELECTOR@own");
    }
    const std::string selector = text.substr(0, at), count = text.substr(at + 1);
    Choice            c;
    c.name = text;
    if (count != "own" && (c.k = std::atoi(count.c_str())) <= 0) {
        throw std::runtime_error(text + ": expected a number above 0 or `own` after the @");
    }
    c.newest = selector == "newest";
    c.plain2 = selector == "plain2";
    if (c.newest && c.k == 0) {
        throw std::runtime_error(text + ": age is no score");
    }
    if (c.newest || c.plain2 || selector == "exact") {
        return c;
    }
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char * name = ggml_type_name((ggml_type) t);
        if (name && selector == name && ggml_get_type_traits_cpu((ggml_type) t)->from_float) {
            c.type = (ggml_type) t;
            return c;
        }
    }
    throw std::runtime_error(text + ": expected exact, newest, plain2 or a type of this tree that encodes");
}

// Signed Walsh-Hadamard rotation of BLOCK values, or its inverse. Any fixed signs will do.
static void rotate(float * x, bool inverse) {
    const auto signs = [x] {
        uint32_t state = 1;
        for (int i = 0; i < BLOCK; i++) {
            state = state * 1664525u + 1013904223u;
            x[i]  = state >> 31 ? -x[i] : x[i];
        }
    };
    if (!inverse) {
        signs();
    }
    for (int half = 1; half < BLOCK; half *= 2) {
        for (int i = 0; i < BLOCK; i += 2 * half) {
            for (int j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j]        = a + b;
                x[j + half] = a - b;
            }
        }
    }
    for (int i = 0; i < BLOCK; i++) {
        x[i] /= std::sqrt((float) BLOCK);
    }
    if (inverse) {
        signs();
    }
}

static void plain2(float * x) {
    rotate(x, false);
    float square = 0, rc = 0, cc = 0;
    for (int i = 0; i < BLOCK; i++) {
        square += x[i] * x[i];
    }
    const float rms = std::sqrt(square / BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        const float c = std::copysign(std::fabs(x[i]) < 0.98160f * rms ? 0.45278f : 1.51042f, x[i]);
        rc += x[i] * c;
        cc += c * c;
        x[i] = c;
    }
    const float scale = ggml_fp16_to_fp32(ggml_fp32_to_fp16(rc / cc));
    for (int i = 0; i < BLOCK; i++) {
        x[i] *= scale;
    }
    rotate(x, true);
}

// What the selector keeps of a key, decoded in place.
static void simulate(const Choice & c, float * key, int n) {
    if (c.plain2) {
        for (int i = 0; i + BLOCK <= n; i += BLOCK) {
            plain2(key + i);
        }
    } else if (c.type != GGML_TYPE_COUNT) {
        std::vector<char> bytes(ggml_row_size(c.type, n));
        ggml_get_type_traits_cpu(c.type)->from_float(key, bytes.data(), n);
        ggml_get_type_traits(c.type)->to_float(bytes.data(), key, n);
    }
}

struct Watch {
    enum { OFF, CALIBRATE, CHOOSE } mode = OFF;
    const Choice *                  choice = nullptr;
    std::map<int, Floats>           centers;    // by layer: [n_kv_heads, head_dim]
    Floats                          exact, own; // scores of the layer at hand, [n_heads, n_queries, n_kv]
    double                          rows = 0, recall = 0, divergence = 0;
};

// Keys of a layer's cache in fp32, [n_kv_heads, n_kv, head_dim].
static Floats keys_of(const ggml_tensor * k) {
    const auto to_float = ggml_get_type_traits(k->type)->to_float;
    const int  n        = k->ne[0];
    Floats     keys(ggml_nelements(k));
    for (int64_t h = 0; h < k->ne[2]; h++) {
        for (int64_t j = 0; j < k->ne[1]; j++) {
            to_float((const char *) k->data + h * k->nb[2] + j * k->nb[1], &keys[(h * k->ne[1] + j) * n], n);
        }
    }
    return keys;
}

static void calibrate(Watch & w, int layer, const ggml_tensor * k) {
    const int    n = k->ne[0], n_kv = k->ne[1];
    const Floats keys  = keys_of(k);
    Floats &     means = w.centers[layer];
    means.assign(k->ne[2] * n, 0);
    for (int64_t row = 0; row < k->ne[2] * n_kv; row++) {
        for (int i = 0; i < n && row % n_kv >= FIRST; i++) {
            means[row / n_kv * n + i] += keys[row * n + i] / (n_kv - FIRST);
        }
    }
}

// Scores as they are, and by what the selector keeps of the keys.
static void score(Watch & w, int layer, const ggml_tensor * kq) {
    const ggml_tensor *k = kq->src[0], *q = kq->src[1];
    const int          n = k->ne[0], n_kv = k->ne[1], n_q = q->ne[1], n_heads = q->ne[2];
    const int          group = n_heads / k->ne[2];
    const int          block = w.choice->plain2 ? BLOCK : w.choice->type == GGML_TYPE_COUNT ? 1 : ggml_blck_size(w.choice->type);
    if (n % block != 0) {
        throw std::runtime_error(w.choice->name + ": expected a head size that is a multiple of " + std::to_string(block) +
                                 ", found " + std::to_string(n));
    }
    Floats         keys  = keys_of(k);
    const Floats & means = w.centers.at(layer);
    #pragma omp parallel for
    for (int row = 0; row < (int) (k->ne[2] * n_kv); row++) {
        float *       key  = &keys[(int64_t) row * n];
        const float * mean = &means[row / n_kv * n];
        for (int i = 0; i < n; i++) {
            key[i] -= mean[i];
        }
        simulate(*w.choice, key, n);
        for (int i = 0; i < n; i++) {
            key[i] += mean[i];
        }
    }
    w.exact.resize(ggml_nelements(kq));
    std::memcpy(w.exact.data(), kq->data, ggml_nbytes(kq));
    w.own.resize(w.exact.size());
    #pragma omp parallel for
    for (int row = 0; row < n_heads * n_q; row++) {
        const int     h     = row / n_q;
        const float * query = (const float *) ((const char *) q->data + h * q->nb[2] + row % n_q * q->nb[1]);
        for (int j = 0; j < n_kv; j++) {
            const float * key     = &keys[((int64_t) (h / group) * n_kv + j) * n];
            float         sums[8] = {};
            for (int i = 0; i + 8 <= n; i += 8) {
                for (int s = 0; s < 8; s++) {
                    sums[s] += query[i + s] * key[i + s];
                }
            }
            w.own[(int64_t) row * n_kv + j] = std::accumulate(sums, sums + 8, 0.0f);
        }
    }
}

// Makes the exact weights of one row, zero where a key is not `seen`, those of the choice.
// False if there was nothing to choose; else what was found of the true top k, and -ln(mass).
static bool choose(const Choice & c, float * weights, const std::vector<int> & seen, const float * exact,
                   const float * own, float scale, double & recall, double & divergence) {
    const auto is_kept = [&](size_t i) { return i < FIRST || i + NEWEST >= seen.size(); };
    if (c.k == 0) {
        std::vector<double> scores;
        for (size_t i = 0; i < seen.size(); i++) {
            scores.push_back(scale * (double) (is_kept(i) ? exact : own)[seen[i]]);
        }
        const double max = *std::max_element(scores.begin(), scores.end());
        double       sum = 0;
        for (double & s : scores) {
            sum += s = std::exp(s - max);
        }
        for (size_t i = 0; i < seen.size(); i++) {
            weights[seen[i]] = scores[i] / sum;
        }
        return false;
    }
    std::vector<int> kept, others;
    for (size_t i = 0; i < seen.size(); i++) {
        (is_kept(i) ? kept : others).push_back(seen[i]);
    }
    if ((int) others.size() <= c.k) {
        return false;
    }
    // of equals, the newer
    const auto top = [&](const float * by) {
        std::vector<int> order = others;
        std::nth_element(order.begin(), order.begin() + c.k, order.end(), [by](int a, int b) {
            return by && by[a] != by[b] ? by[a] > by[b] : a > b;
        });
        order.resize(c.k);
        std::sort(order.begin(), order.end());
        return order;
    };
    const std::vector<int> truth = top(exact), chosen = top(c.newest ? nullptr : own);
    std::vector<int>       both;
    std::set_intersection(truth.begin(), truth.end(), chosen.begin(), chosen.end(), std::back_inserter(both));
    kept.insert(kept.end(), chosen.begin(), chosen.end());
    double mass = 0;
    Floats left;
    for (int j : kept) {
        mass += weights[j];
        left.push_back(weights[j]);
    }
    for (int j : seen) {
        weights[j] = 0;
    }
    for (size_t i = 0; i < kept.size(); i++) {
        weights[kept[i]] = left[i] / mass;
    }
    recall     = (double) both.size() / c.k;
    divergence = -std::log(std::min(mass, 1.0));
    return true;
}

static void choose_all(Watch & w, ggml_tensor * soft_max) {
    const ggml_tensor * mask = soft_max->src[1];
    float               scale;
    std::memcpy(&scale, soft_max->op_params, sizeof scale);
    const int  n_kv = soft_max->ne[0], n_q = soft_max->ne[1];
    const auto is_seen = [mask](int query, int j) {
        const char * at = (const char *) mask->data + query * mask->nb[1] + j * mask->nb[0];
        return (mask->type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(*(const ggml_fp16_t *) at) : *(const float *) at) == 0;
    };
    double rows = 0, recall = 0, divergence = 0;
    #pragma omp parallel for reduction(+ : rows, recall, divergence)
    for (int row = 0; row < (int) soft_max->ne[2] * n_q; row++) {
        std::vector<int> seen;
        for (int j = 0; j < n_kv; j++) {
            if (is_seen(row % n_q, j)) {
                seen.push_back(j);
            }
        }
        const int64_t at = (int64_t) row * n_kv;
        double        r = 0, d = 0;
        if (choose(*w.choice, (float *) soft_max->data + at, seen, &w.exact[at], &w.own[at], scale, r, d)) {
            rows++;
            recall += r;
            divergence += d;
        }
    }
    w.rows += rows;
    w.recall += recall;
    w.divergence += divergence;
}

static bool on_node(ggml_tensor * t, bool ask, void * user) {
    Watch &    w        = *(Watch *) user;
    const bool scores   = std::strncmp(t->name, "kq-", 3) == 0;
    const bool soft_max = std::strncmp(t->name, "kq_soft_max-", 12) == 0;
    if (w.mode == Watch::OFF || !(scores || soft_max)) {
        return !ask;
    }
    if (ask) {
        return true;
    }
    const int layer = std::atoi(std::strchr(t->name, '-') + 1);
    if (scores && w.mode == Watch::CALIBRATE) {
        calibrate(w, layer, t->src[0]);
    } else if (scores) {
        score(w, layer, t);
    } else if (w.mode == Watch::CHOOSE) {
        choose_all(w, t);
    }
    return true;
}

static std::vector<llama_token> tokens_of(const llama_vocab * vocab, const char * path, int n) {
    std::ifstream     in(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    std::vector<llama_token> tokens(text.size() + 8);
    const int found = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), true, false);
    if (found < n) {
        throw std::runtime_error(std::string(path) + ": expected " + std::to_string(n) + " tokens, found " +
                                 std::to_string(found) + "; give a longer text or a smaller N_CTX");
    }
    tokens.resize(n);
    return tokens;
}

// Decodes tokens at `from` and after, all in one graph, with the logits of every one if asked.
static void decode(llama_context * ctx, const llama_token * tokens, int from, int n, bool logits) {
    llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens    = n;
    for (int i = 0; i < n; i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = from + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = logits || i == n - 1;
    }
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status != 0) {
        throw std::runtime_error("llama_decode failed: " + std::to_string(status));
    }
}

static double log_sum(const float * x, int n) {
    const float max = *std::max_element(x, x + n);
    double      sum = 0;
    for (int i = 0; i < n; i++) {
        sum += std::exp((double) x[i] - max);
    }
    return max + std::log(sum);
}

static void run(int argc, char ** argv) {
    if (argc < 7) {
        throw std::runtime_error("usage: MODEL.gguf TEXT CALIBRATION N_CTX TAIL CHOICE...");
    }
    const int n_ctx = std::atoi(argv[4]), tail = std::atoi(argv[5]);
    if (n_ctx <= 0 || n_ctx % 256 != 0 || tail <= 0 || tail >= n_ctx) {
        throw std::runtime_error("N_CTX must be a multiple of 256, and TAIL less than that and above 0");
    }
    std::vector<Choice> choices;
    for (int i = 6; i < argc; i++) {
        choices.push_back(parse_choice(argv[i]));
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        throw std::runtime_error(std::string(argv[1]) + ": expected a GGUF model that llama.cpp loads");
    }
    Watch                watch;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = n_ctx;
    params.flash_attn_type   = LLAMA_FLASH_ATTN_TYPE_DISABLED; // the scores have to exist
    params.swa_full          = true;
    params.n_threads         = params.n_threads_batch = 2;
    params.cb_eval           = on_node;
    params.cb_eval_user_data = &watch;
    llama_context * ctx      = llama_init_from_model(model, params);
    if (!ctx) {
        throw std::runtime_error("llama.cpp makes no context of this size");
    }
    const llama_vocab * vocab   = llama_model_get_vocab(model);
    const int           n_vocab = llama_vocab_n_tokens(vocab);
    const auto          text = tokens_of(vocab, argv[2], n_ctx), other = tokens_of(vocab, argv[3], n_ctx);

    watch.mode = Watch::CALIBRATE;
    decode(ctx, other.data(), 0, n_ctx, false);
    llama_memory_clear(llama_get_memory(ctx), true);
    watch.mode       = Watch::OFF;
    const int prompt = n_ctx - tail;
    decode(ctx, text.data(), 0, prompt, false);
    const auto repeat = [&] {
        llama_memory_seq_rm(llama_get_memory(ctx), 0, prompt, -1);
        decode(ctx, text.data() + prompt, prompt, tail, true);
        return llama_get_logits(ctx);
    };
    const float * logits = repeat();
    const Floats  base(logits, logits + (size_t) tail * n_vocab);

    printf("| choice | recall | attention KL | mean KLD | its standard error | same top token |\n|---|---|---|---|---|---|\n");
    watch.mode = Watch::CHOOSE;
    for (const Choice & choice : choices) {
        watch.choice = &choice;
        watch.rows = watch.recall = watch.divergence = 0;
        logits = repeat();
        double sum = 0, squares = 0, same = 0;
        #pragma omp parallel for reduction(+ : sum, squares, same)
        for (int i = 0; i < tail; i++) {
            const float *p = &base[(size_t) i * n_vocab], *q = logits + (size_t) i * n_vocab;
            const double log_p = log_sum(p, n_vocab), log_q = log_sum(q, n_vocab);
            double       kld = 0;
            for (int t = 0; t < n_vocab; t++) {
                kld += std::exp(p[t] - log_p) * ((p[t] - log_p) - (q[t] - log_q));
            }
            sum += kld;
            squares += kld * kld;
            same += std::max_element(p, p + n_vocab) - p == std::max_element(q, q + n_vocab) - q;
        }
        const double mean = sum / tail, error = std::sqrt(std::max(squares / tail - mean * mean, 0.0) / tail);
        if (watch.rows > 0) {
            printf("| %s | %.3f | %.4f ", choice.name.c_str(), watch.recall / watch.rows, watch.divergence / watch.rows);
        } else {
            printf("| %s | - | - ", choice.name.c_str());
        }
        printf("| %.5f | %.5f | %.1f %% |\n", mean, error, 100 * same / tail);
        fflush(stdout);
    }
    llama_free(ctx);
    llama_model_free(model);
}

int main(int argc, char ** argv) {
    try {
        run(argc, argv);
    } catch (const std::exception & e) {
        fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
