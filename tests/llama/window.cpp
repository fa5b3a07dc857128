// The window of a cache of our types, through libllama: every query of the first layer is
// held against a softmax in double precision over what it must read: exact f16 copies of
// the keys and values of its newest positions, and for all others what the bytes of the
// cache decode to. Whatever is done to the cache in between, this test keeps its own
// account of who may be read exact.
//
// Usage: window MODEL TYPE_K TYPE_V

extern "C" {
#include "check.h"
#include "type_by_name.h"
}
#include "ggml-kvforge.h"
#include "ggml-backend.h"
#include "llama-kvforge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int CELLS = 1024;
constexpr int BATCH = 128; // tokens that go through a graph together

[[noreturn]] void give_up(const char * what) {
    fprintf(stderr, "cannot go on: %s\n", what);
    exit(2);
}

void expect(bool holds, const std::string & text) {
    printf("%s %s\n", holds ? "ok  " : "FAIL", text.c_str());
    fflush(stdout);
    check(holds, text.c_str(), __FILE__, __LINE__);
}

// A token that is in the cache.
struct token {
    int64_t            cell; // over all streams
    llama_pos          pos;
    std::set<llama_seq_id> seqs;
    std::vector<float> k, v;  // as stored, rounded to f16
    bool               exact; // there is a copy of it
};

struct query {
    llama_pos    pos;
    llama_seq_id seq;
};

struct world {
    ggml_type type_k, type_v;
    int n_window, n_first, n_swa;

    std::vector<token> tokens;
    std::vector<query> queue;  // of the batch that is decoded: as its tokens come
    size_t             done = 0;
    const ggml_tensor * cache_k = nullptr;
    const ggml_tensor * cache_v = nullptr;
    std::vector<float> k_now, v_now; // of the ubatch
    std::vector<int64_t> cells;

    // what was found: the largest difference, of what is expected and of what a cache
    // without a window gives, relative to the largest output
    double worst = 0, without = 0;
    size_t n_rows = 0;
};

std::vector<float> decoded(ggml_type type, const void * bytes, int64_t n) {
    std::vector<float> x(n);
    ggml_get_type_traits(type)->to_float(bytes, x.data(), n);
    return x;
}

std::vector<float> rounded(const float * x, int64_t n) {
    std::vector<ggml_fp16_t> half(n);
    std::vector<float> y(n);
    ggml_fp32_to_fp16_row(x, half.data(), n);
    ggml_fp16_to_fp32_row(half.data(), y.data(), n);
    return y;
}

// What is stored in the first layer, [values of a cell, tokens].
void stored(world & w, const ggml_tensor * node) {
    const bool keys = node->view_src == w.cache_k;
    const ggml_tensor * cur = node->src[0];
    const ggml_tensor * rows = node->src[1];
    auto & now = keys ? w.k_now : w.v_now;
    now.clear();
    w.cells.clear();
    for (int64_t i = 0; i < cur->ne[1]; i++) {
        const float * x = (const float *) ((const char *) cur->data + i*cur->nb[1]);
        now.insert(now.end(), x, x + cur->ne[0]);
        w.cells.push_back(((const int64_t *) rows->data)[i]);
    }
}

// One row of attention in double precision.
std::vector<double> attention(const world & w, const ggml_tensor * node, const query & q, const float * x, int64_t head, bool with_window) {
    const int64_t head_k = node->src[1]->ne[0], head_v = node->src[2]->ne[0];
    const int64_t kv = head / (node->src[0]->ne[2] / node->src[1]->ne[2]);
    float scale;
    memcpy(&scale, node->op_params, sizeof(scale));
    std::vector<double> scores, out(head_v, 0.0);
    std::vector<std::vector<float>> values;
    double most = -INFINITY;
    for (const token & t : w.tokens) {
        if (!t.seqs.count(q.seq) || t.pos > q.pos || (w.n_swa > 0 && q.pos - t.pos >= w.n_swa)) {
            continue;
        }
        const bool exact = with_window && t.exact && (q.pos - t.pos < w.n_window || t.pos < w.n_first);
        const auto part = [&](const std::vector<float> & own, const ggml_tensor * cache, ggml_type type, int64_t n) {
            if (exact) {
                return std::vector<float>(own.begin() + kv*n, own.begin() + (kv + 1)*n);
            }
            const char * row = (const char *) cache->data + t.cell*cache->nb[1] + ggml_row_size(type, kv*n);
            return decoded(type, row, n);
        };
        const auto key = part(t.k, w.cache_k, w.type_k, head_k);
        double dot = 0;
        for (int64_t i = 0; i < head_k; i++) {
            dot += (double) x[i]*key[i];
        }
        scores.push_back(dot*scale);
        values.push_back(part(t.v, w.cache_v, w.type_v, head_v));
        most = std::max(most, scores.back());
    }
    double sum = 0;
    for (size_t t = 0; t < scores.size(); t++) {
        const double weight = exp(scores[t] - most);
        sum += weight;
        for (int64_t i = 0; i < head_v; i++) {
            out[i] += weight*values[t][i];
        }
    }
    for (double & o : out) {
        o /= sum;
    }
    return out;
}

void attended(world & w, const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const int64_t n = q->ne[1]*q->ne[3];
    const int64_t n_k = w.cache_k->ne[0], n_v = w.cache_v->ne[0];
    // now the ubatch is in the cache
    for (int64_t i = 0; i < n; i++) {
        const query & own = w.queue.at(w.done + i);
        w.tokens.push_back({ w.cells[i], own.pos, { own.seq }, rounded(&w.k_now[i*n_k], n_k), rounded(&w.v_now[i*n_v], n_v), true });
    }
    for (int64_t i = 0; i < n; i++) {
        // not all of them: double precision takes its time
        if (n > 8 && i % 7 != 3 && i != 0 && i != n - 1) {
            continue;
        }
        const int64_t at = i % q->ne[1], stream = i / q->ne[1];
        double scale = 0, worst = 0, without = 0;
        for (int64_t head = 0; head < q->ne[2]; head++) {
            const auto * x   = (const float *) ((const char *) q->data + at*q->nb[1] + head*q->nb[2] + stream*q->nb[3]);
            const auto * out = (const float *) ((const char *) node->data + head*node->nb[1] + at*node->nb[2] + stream*node->nb[3]);
            const auto right  = attention(w, node, w.queue[w.done + i], x, head, true);
            const auto coarse = attention(w, node, w.queue[w.done + i], x, head, false);
            for (size_t j = 0; j < right.size(); j++) {
                scale   = std::max(scale, fabs(right[j]));
                worst   = std::max(worst, std::isfinite(out[j]) ? fabs(out[j] - right[j]) : INFINITY);
                without = std::max(without, fabs(coarse[j] - right[j]));
            }
        }
        w.worst   = std::max(w.worst, worst/scale);
        w.without = std::max(w.without, without/scale);
        w.n_rows++;
    }
    w.done += n;
}

// The first layer's stores and its attention.
bool look(ggml_tensor * t, bool ask, void * data) {
    world & w = *(world *) data;
    const auto is_first = [](const ggml_tensor * cache, const char * end) {
        const std::string name = cache ? cache->name : "";
        return name.rfind("cache_", 0) == 0 && name.size() > strlen(end) && name.compare(name.size() - strlen(end), std::string::npos, end) == 0;
    };
    const bool keys      = t->op == GGML_OP_SET_ROWS && is_first(t->view_src, "k_l0");
    const bool values    = t->op == GGML_OP_SET_ROWS && is_first(t->view_src, "v_l0");
    const bool attention = t->op == GGML_OP_FLASH_ATTN_EXT && is_first(t->src[1]->view_src, "k_l0");
    if (ask) {
        return keys || values || attention;
    }
    if (keys || values) {
        (keys ? w.cache_k : w.cache_v) = t->view_src;
        stored(w, t);
    } else if (attention) {
        attended(w, t);
    }
    return true;
}

struct session {
    world w;
    llama_context * ctx;
    std::vector<llama_token> text;

    session(llama_model * model, const std::vector<llama_token> & text, ggml_type type_k, ggml_type type_v, int n_window, int n_first,
            uint32_t n_seqs = 1, bool unified = true) : text(text) {
        w = {};
        w.type_k = type_k;
        w.type_v = type_v;
        w.n_window = n_window < 0 ? LLAMA_KVFORGE_WINDOW : n_window;
        w.n_first  = n_first < 0 ? LLAMA_KVFORGE_FIRST : n_first;
        w.n_swa    = llama_model_n_swa(model);
        llama_context_params params = llama_context_default_params();
        params.n_ctx           = CELLS*n_seqs;
        params.n_batch         = CELLS;
        params.n_ubatch        = BATCH;
        params.n_threads       = params.n_threads_batch = 2;
        params.n_seq_max       = n_seqs;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.type_k          = type_k;
        params.type_v          = type_v;
        params.swa_full        = false;
        params.kv_unified      = unified;
        params.cb_eval           = look;
        params.cb_eval_user_data = &w;
        ctx = llama_init_from_model(model, params);
        if (!ctx) {
            give_up("no context with these types of cache");
        }
        if (n_window >= 0 && !llama_kvforge_set_window(ctx, n_window, n_first)) {
            give_up("the window cannot be set");
        }
    }
    session(const session &) = delete;
    ~session() { llama_free(ctx); }

    // so many tokens of each sequence, from a position on
    void feed(const std::vector<query> & from, int n) {
        llama_batch batch = llama_batch_init(n*from.size(), 0, 1);
        w.queue.clear();
        w.done = 0;
        for (const auto & [pos, seq] : from) {
            for (int i = 0; i < n; i++) {
                const int at = batch.n_tokens++;
                batch.token[at]     = text[(pos + i + 17*seq) % text.size()];
                batch.pos[at]       = pos + i;
                batch.n_seq_id[at]  = 1;
                batch.seq_id[at][0] = seq;
                batch.logits[at]    = i == n - 1;
                w.queue.push_back({ pos + i, seq });
            }
        }
        if (llama_decode(ctx, batch) != 0 || w.done != w.queue.size()) {
            give_up("llama_decode failed, or attention of the first layer was not seen");
        }
        llama_batch_free(batch);
    }

    void feed_in(llama_pos pos, int n, int step) {
        for (int i = 0; i < n; i += step) {
            feed({ { pos + i, 0 } }, std::min(step, n - i));
        }
    }

    // takes tokens out of the account as the cache does
    void remove(llama_seq_id seq, llama_pos from, llama_pos to) {
        if (!llama_memory_seq_rm(llama_get_memory(ctx), seq, from, to)) {
            give_up("tokens cannot be removed");
        }
        std::vector<token> kept;
        for (token & t : w.tokens) {
            if (t.pos >= from && (to < 0 || t.pos < to)) {
                t.seqs.erase(seq);
            }
            if (!t.seqs.empty()) {
                kept.push_back(t);
            }
        }
        w.tokens = kept;
    }

    void forget_copies() {
        for (token & t : w.tokens) {
            t.exact = false;
        }
    }

    // compares what has been seen since the last time
    void judge(const std::string & what, bool window = true) {
        char found[200];
        snprintf(found, sizeof(found), "%s: %zu queries, off by at most %.1e of the output; read from the cache alone: %.1e",
            what.c_str(), w.n_rows, w.worst, w.without);
        expect(w.n_rows > 0 && w.worst < 1e-5 && (window ? w.without > 20*w.worst : w.without == 0), found);
        w.worst = w.without = 0;
        w.n_rows = 0;
    }
};

std::string in(const char * what, int n) { return what + std::to_string(n); }

} // namespace

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: window MODEL TYPE_K TYPE_V\n");
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) {
        give_up("the model cannot be loaded");
    }
    const ggml_type type_k = type_by_name(argv[2]), type_v = type_by_name(argv[3]);
    std::string words;
    for (int i = 0; i < 200; i++) {
        words += "In year " + std::to_string(1700 + 7*i) + " a ship of " + std::to_string(i % 13) + " masts came home. ";
    }
    std::vector<llama_token> text(words.size());
    text.resize(llama_tokenize(llama_model_get_vocab(model), words.c_str(), words.size(), text.data(), text.size(), true, false));

    const auto open = [&](int n_window, int n_first, uint32_t n_seqs = 1, bool unified = true) {
        return std::make_unique<session>(model, text, type_k, type_v, n_window, n_first, n_seqs, unified);
    };

    { // whatever the batches, queries of all positions read the same copies
        for (int step : { 1, 5, 17, 33, 100, 300 }) {
            auto s = open(-1, -1);
            s->feed_in(0, 300, step);
            s->judge(in("300 tokens, in batches of ", step));
        }
    }
    for (int n_window : { 1, 8, 200, 2000 }) {
        auto s = open(n_window, 0);
        s->feed_in(0, 250, 90);
        s->feed_in(250, 20, 1);
        s->judge(in("a window of ", n_window));
    }
    {
        auto s = open(0, 0);
        s->feed_in(0, 100, 60);
        s->judge("no window", false);
        s->w.n_first = 4;
        llama_kvforge_set_window(s->ctx, 0, 4); // the ring starts empty
        s->forget_copies();
        s->feed_in(100, 40, 30);
        s->judge("a window set later, of first tokens that are gone", false);
    }
    {
        auto s = open(16, 4);
        s->feed_in(0, 150, 70);
        s->feed_in(150, 30, 1);
        s->judge("the first tokens too");
    }
    { // longer than the window of sliding layers, and than the cells that they keep
        auto s = open(-1, -1);
        s->feed_in(0, 900, 128);
        s->feed_in(900, 20, 1);
        s->judge("900 tokens");
    }
    { // in batches of more than a graph takes: where the last ones go is tried out first
        auto s = open(-1, -1);
        s->feed_in(0, 1000, 500);
        s->judge("1000 tokens, in batches of 500");
    }
    { // the ring is only a better copy
        auto s = open(-1, -1);
        unsigned random = 7;
        for (llama_pos pos = 0; pos < 300; ) {
            random = random*1664525 + 1013904223;
            const int n = 1 + (random >> 24) % 40;
            s->feed({ { pos, 0 } }, n);
            pos += n;
            if ((random >> 16) % 3 == 0) {
                llama_kvforge_window_drop(s->ctx);
                s->forget_copies();
                expect(llama_kvforge_window_used(s->ctx, 0) == 0, "dropped copies are gone");
            }
        }
        s->judge("copies dropped at random");
    }
    { // rollback, as speculative decoding does it
        auto s = open(-1, -1);
        s->feed_in(0, 100, 100);
        for (llama_pos pos = 100; pos < 200; pos += 3) {
            s->feed({ { pos, 0 } }, 15);
            s->remove(0, pos + 3, -1);
        }
        s->judge("drafts of 15 tokens, 12 of them taken back each time");
        s->remove(0, 50, -1); // too far: older copies have gone, but for the first, and new ones come
        for (token & t : s->w.tokens) {
            t.exact = t.pos < s->w.n_first;
        }
        s->feed_in(50, 40, 1);
        s->judge("a prefix used again");
    }
    for (bool unified : { true, false }) {
        const std::string where = unified ? "sequences in one stream" : "a stream for each sequence";
        auto s = open(-1, -1, 3, unified);
        s->feed({ { 0, 0 } }, 110);
        s->feed({ { 0, 1 } }, 70);
        s->feed({ { 0, 2 } }, 40);
        for (int i = 0; i < 20; i++) {
            s->feed({ { 110 + i, 0 } }, 1);
            s->feed({ { 70 + i, 1 }, { 40 + i, 2 } }, 1);
        }
        s->judge(where + ", by turns");
        s->feed({ { 130, 0 } }, 20);
        s->feed({ { 90, 1 }, { 60, 2 } }, 20);
        s->judge(where + ", in larger batches");
        // a copy of a sequence has its exact tokens
        s->remove(1, -1, -1);
        llama_memory_seq_cp(llama_get_memory(s->ctx), 0, 1, -1, -1);
        if (unified) {
            for (token & t : s->w.tokens) {
                if (t.seqs.count(0)) {
                    t.seqs.insert(1);
                }
            }
        } else {
            const int64_t cells = s->w.cache_k->ne[1];
            std::vector<token> more;
            for (token t : s->w.tokens) {
                if (t.seqs.count(0)) {
                    t.cell += cells;
                    t.seqs = { 1 };
                    more.push_back(t);
                }
            }
            s->w.tokens.insert(s->w.tokens.end(), more.begin(), more.end());
        }
        s->feed({ { 150, 1 } }, 10);
        s->feed({ { 150, 0 } }, 5);
        s->judge(where + ", one copied");
    }
    if (llama_memory_can_shift(llama_get_memory(open(0, 0)->ctx))) {
        auto s = open(-1, -1);
        s->feed_in(0, 120, 50);
        s->remove(0, 30, 70);
        llama_memory_seq_add(llama_get_memory(s->ctx), 0, 70, -1, -40);
        for (token & t : s->w.tokens) {
            if (t.pos >= 70) { // turned in the cache, and there alone
                t.pos  -= 40;
                t.exact = false;
            }
        }
        s->feed_in(80, 20, 1);
        s->feed_in(100, 40, 40);
        s->judge("shifted tokens");
    } else {
        printf("not run: shifted tokens: keys of this type cannot be shifted\n");
    }
    { // a state holds the copies, too; into an empty cache, which is filled from its first cell on
        auto s = open(-1, -1);
        s->feed_in(0, 90, 45);
        std::vector<uint8_t> state(llama_state_seq_get_size(s->ctx, 0));
        llama_state_seq_get_data(s->ctx, state.data(), state.size(), 0);
        for (bool dropped : { false, true }) {
            session other(model, text, type_k, type_v, -1, -1);
            if (llama_state_seq_set_data(other.ctx, state.data(), state.size(), 0) != state.size()) {
                give_up("a state cannot be loaded");
            }
            other.w.tokens = s->w.tokens;
            if (dropped) {
                llama_kvforge_window_drop(other.ctx);
                other.forget_copies();
            }
            other.feed_in(90, 20, 1);
            other.feed_in(110, 40, 40);
            other.judge(dropped ? "a loaded state, its copies dropped" : "a loaded state");
        }
        session none(model, text, type_k, type_v, 0, 0);
        none.w.tokens = s->w.tokens;
        const bool loaded = llama_state_seq_set_data(none.ctx, state.data(), state.size(), 0) == state.size();
        none.feed_in(90, 40, 40);
        none.judge("a state loaded where there is no window", false);
        expect(loaded && llama_kvforge_window_used(none.ctx, 0) == 0, "copies of a state are left where there is no window");

        // into a cache that is in use: into cells that others have had
        const uint32_t used = llama_kvforge_window_used(s->ctx, 0);
        const bool again = llama_state_seq_set_data(s->ctx, state.data(), state.size(), 0) == state.size();
        expect(again && used >= LLAMA_KVFORGE_WINDOW && llama_kvforge_window_used(s->ctx, 0) == used, "as many copies as before, loaded again");

        // cut off, and damaged, anywhere in what was added: refused, and nothing is left
        for (size_t cut = 1; cut < 4000; cut = cut*3 + 1) {
            const bool refused = llama_state_seq_set_data(s->ctx, state.data(), state.size() - cut, 0) == 0;
            expect(refused && llama_kvforge_window_used(s->ctx, 0) == 0, "a state that is cut off leaves no copies");
        }
        const uint32_t mark = 0x7776666b;
        const auto at = std::search(state.begin(), state.end(), (const uint8_t *) &mark, (const uint8_t *) (&mark + 1));
        for (size_t offset : { 0, 4, 8 }) { // the mark, how many, which token
            auto damaged = state;
            damaged[at - state.begin() + offset + 3] = 0x7f;
            expect(llama_state_seq_set_data(s->ctx, damaged.data(), damaged.size(), 0) == 0, "a damaged state is refused");
        }
    }
    llama_model_free(model);
    llama_backend_free();
    return report();
}
