// Runs a text through a model and writes the queries, keys and values of every
// layer to stdout as they enter attention, and how RoPE made them. This program
// only looks; `kvforge calibrate` and `kvforge capture` read what it writes.
//
// Usage: llama-kvforge-probe -m MODEL -f TEXT -n TOKENS -c CHUNK
//
// Little endian: "KVFPROB1", then records of seven u32 (kind, layer, ne0, ne1, ne2,
// first position, 0), a u64 (bytes of the payload), and the payload.

#include "llama-kvforge.h"
#include "llama-kvforge-keys.h"

#include "llama-ext.h"
#include "ggml-backend.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

namespace {

enum kind : uint32_t { MODEL = 0, ROPE = 1, Q = 2, K = 3, V = 4, SCALE = 5, LEFT_ALONE = 6, END = 7 };

// where the RoPE of a layer is looked at a second time, far from where it is taken from
const int32_t CHECK_POS = 777;

struct shape {
    uint32_t ne[3] = { 0, 0, 0 };
    uint32_t pos   = 0;
};

void put(const void * data, size_t n) {
    if (fwrite(data, 1, n, stdout) != n) {
        throw std::runtime_error("nobody reads what this program writes");
    }
}

void record(kind what, uint32_t layer, const shape & s, const void * payload, size_t n) {
    const uint32_t head[7] = { what, layer, s.ne[0], s.ne[1], s.ne[2], s.pos, 0 };
    const uint64_t bytes = n;
    put(head, sizeof(head));
    put(&bytes, sizeof(bytes));
    put(payload, n);
}

struct heads {
    int64_t k = 0;
    int64_t v = 0;
};

// what the callback knows
struct looker {
    std::map<int32_t, heads> sizes;     // of each layer, from its attention
    int32_t                  first = 0; // position of the first token of the batch being computed
    std::set<int32_t>        queried;   // layers whose queries of this batch are written: later layers may read the same keys
    std::set<int32_t>        seen;      // layers whose RoPE is written
    std::set<int32_t>        left;      // layers that are left alone
    std::string              problem;   // what went wrong; computing goes on without looking
};

// the layer whose attention this is, by the K that it reads
int32_t attention_layer(const ggml_tensor * t) {
    return t->op == GGML_OP_FLASH_ATTN_EXT ? llama_kvforge_layer_of(t->src[1], 'k') : -1;
}

void write_rope(const llama_kvforge_keys & way, int64_t head) {
    struct {
        uint32_t mode, n_dims, n_ctx_orig;
        float    freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
        uint32_t has_factors, check_pos, zero;
    } facts = { UINT32_MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    std::vector<uint8_t> payload(sizeof(facts));
    shape s;
    s.ne[0] = head;
    if (way.rope) {
        const int32_t * p = way.rope->op_params;
        facts.mode       = p[2];
        facts.n_dims     = p[1];
        facts.n_ctx_orig = p[4];
        memcpy(&facts.freq_base, p + 5, 6*sizeof(float));
        facts.has_factors = way.rope->src[2] != nullptr;
        facts.check_pos   = CHECK_POS;
        for (int32_t pos : { 1, CHECK_POS }) {
            const auto matrix = llama_kvforge_rope_matrix(way.rope, pos);
            const auto * data = (const uint8_t *) matrix.data();
            payload.insert(payload.end(), data, data + matrix.size()*sizeof(float));
        }
    }
    memcpy(payload.data(), &facts, sizeof(facts));
    record(ROPE, way.il, s, payload.data(), payload.size());
}

// The values of a tensor [head size, tokens, heads] or [head size, heads, tokens]
// in the order head size, heads, tokens.
void write_values(kind what, int32_t il, const ggml_tensor * t, bool heads_last, int32_t first) {
    if (t->type != GGML_TYPE_F32) {
        throw std::runtime_error(std::string("values of type ") + ggml_type_name(t->type) + ", expected f32");
    }
    std::vector<uint8_t> bytes(ggml_nbytes(t));
    ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
    const int64_t n_heads  = t->ne[heads_last ? 2 : 1];
    const int64_t n_tokens = t->ne[heads_last ? 1 : 2];
    const size_t  per_head  = t->nb[heads_last ? 2 : 1];
    const size_t  per_token = t->nb[heads_last ? 1 : 2];
    std::vector<float> values(t->ne[0]*n_heads*n_tokens);
    float * out = values.data();
    for (int64_t token = 0; token < n_tokens; token++) {
        for (int64_t head = 0; head < n_heads; head++, out += t->ne[0]) {
            memcpy(out, bytes.data() + token*per_token + head*per_head, t->ne[0]*sizeof(float));
        }
    }
    shape s = { { (uint32_t) t->ne[0], (uint32_t) n_heads, (uint32_t) n_tokens }, (uint32_t) first };
    record(what, il, s, values.data(), values.size()*sizeof(float));
}

// the rows that a SET_ROWS stores, with heads told apart
void write_rows(kind what, int32_t il, const ggml_tensor * rows, int64_t head, int32_t first) {
    ggml_tensor split = *rows;
    split.ne[0] = head;
    split.ne[1] = rows->ne[0]/head;
    split.ne[2] = rows->ne[1];
    split.nb[1] = head*sizeof(float);
    split.nb[2] = rows->nb[1];
    write_values(what, il, &split, false, first);
}

// Why keys that this SET_ROWS stores tell nothing of layer `way.il`; "" if they do.
std::string why_not(const looker & state, const llama_kvforge_keys & way) {
    const auto size = state.sizes.find(way.il);
    if (!way.why_not.empty()) {
        return way.why_not;
    }
    if (size == state.sizes.end() || size->second.k == 0 || way.write->src[0]->ne[0] % size->second.k != 0) {
        return "its keys are not those of one attention";
    }
    if (way.rope && way.rope->ne[0] != size->second.k) {
        return "RoPE turns vectors of another size than a head's";
    }
    return "";
}

void look(looker & state, ggml_tensor * t) {
    if (const int32_t il = attention_layer(t); il >= 0) {
        if (!state.left.count(il) && state.queried.insert(il).second) {
            write_values(Q, il, t->src[0], true, state.first);
        }
        return;
    }
    if (const int32_t il = llama_kvforge_layer_of(t->src[2], 'k'); il >= 0) {
        const auto way = llama_kvforge_way_of(t);
        const std::string reason = why_not(state, way);
        if (!reason.empty()) {
            if (state.left.insert(il).second) {
                record(LEFT_ALONE, il, {}, reason.data(), reason.size());
            }
            return;
        }
        const int64_t head = state.sizes.at(il).k;
        if (state.seen.insert(il).second) {
            write_rope(way, head);
        }
        write_rows(K, il, t->src[0], head, state.first);
    } else if (const int32_t il = llama_kvforge_layer_of(t->src[2], 'v'); il >= 0 && !state.left.count(il)) {
        const auto size = state.sizes.find(il);
        if (size != state.sizes.end() && size->second.v > 0 && t->src[0]->ne[0] % size->second.v == 0) {
            write_rows(V, il, t->src[0], size->second.v, state.first);
        }
    }
}

bool on_node(ggml_tensor * t, bool ask, void * data) {
    auto & state = *(looker *) data;
    const bool wanted = attention_layer(t) >= 0 || (t->op == GGML_OP_SET_ROWS &&
        (llama_kvforge_layer_of(t->src[2], 'k') >= 0 || llama_kvforge_layer_of(t->src[2], 'v') >= 0));
    if (ask) {
        return wanted;
    }
    if (wanted && state.problem.empty()) {
        try {
            look(state, t);
        } catch (const std::exception & e) {
            state.problem = e.what();
        }
    }
    return true;
}

struct options {
    std::string model, text;
    int tokens = 2048;
    int chunk  = 512;
};

options parse(int argc, char ** argv) {
    options o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if      (name == "-m") { o.model  = argv[i + 1]; }
        else if (name == "-f") { o.text   = argv[i + 1]; }
        else if (name == "-n") { o.tokens = atoi(argv[i + 1]); }
        else if (name == "-c") { o.chunk  = atoi(argv[i + 1]); }
        else { throw std::runtime_error("unknown option " + name); }
    }
    if (argc % 2 == 0 || o.model.empty() || o.text.empty() || o.tokens < 1 || o.chunk < 8) {
        throw std::runtime_error("usage: llama-kvforge-probe -m MODEL -f TEXT [-n TOKENS] [-c CHUNK, at least 8]");
    }
    return o;
}

// The beginning of a text, `n` tokens or a little more.
std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & path, int n_tokens) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error(path + " cannot be read");
    }
    std::string s(std::min<size_t>(n_tokens, 1 << 24)*64, 0); // longer tokens than that are rare
    file.read(&s[0], s.size());
    s.resize(file.gcount());
    std::vector<llama_token> tokens(s.size() + 1);
    const int32_t n = llama_tokenize(vocab, s.data(), s.size(), tokens.data(), tokens.size(), false, false);
    tokens.resize(std::max(n, 0));
    if (tokens.size() < 8) {
        throw std::runtime_error(path + " has " + std::to_string(tokens.size()) + " tokens, at least 8 are needed");
    }
    return tokens;
}

void run(const options & o) {
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    llama_model * model = llama_model_load_from_file(o.model.c_str(), mp);
    if (!model) {
        throw std::runtime_error(o.model + " cannot be loaded");
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const auto tokens = tokenize(vocab, o.text, o.tokens);

    looker state;
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx     = o.chunk;
    cp.n_batch   = o.chunk;
    cp.n_ubatch  = std::min(o.chunk, 512);
    cp.n_seq_max = 1;
    cp.type_k    = GGML_TYPE_F16; // no rotation in the graph, and nothing of ours
    cp.type_v    = GGML_TYPE_F16;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    cp.cb_eval           = on_node;
    cp.cb_eval_user_data = &state;
    cp.n_threads = cp.n_threads_batch = std::max(1u, std::thread::hardware_concurrency());
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) {
        throw std::runtime_error("no context could be made for " + o.model);
    }

    put("KVFPROB1", 8);
    const uint64_t id = llama_kvforge_model_id(model);
    char name[256];
    llama_model_desc(model, name, sizeof(name));
    char general[256];
    if (llama_model_meta_val_str(model, "general.name", general, sizeof(general)) > 0) {
        snprintf(name, sizeof(name), "%s", general);
    }
    std::string about((const char *) &id, sizeof(id));
    about += name;
    record(MODEL, 0, {}, about.data(), about.size());

    ggml_cgraph * gf = llama_graph_reserve(ctx, 1, 1, 1);
    for (int i = 0; gf && i < ggml_graph_n_nodes(gf); i++) {
        const ggml_tensor * t = ggml_graph_node(gf, i);
        if (const int32_t il = attention_layer(t); il >= 0 && !state.sizes.count(il)) {
            state.sizes[il] = { t->src[1]->ne[0], t->src[2]->ne[0] };
            record(SCALE, il, {}, t->op_params, sizeof(float));
        }
    }
    if (state.sizes.empty()) {
        throw std::runtime_error("this model has no attention over a cache of keys");
    }

    // every chunk begins like a text, as in use
    const bool bos = llama_vocab_get_add_bos(vocab);
    const int  n   = std::min<int64_t>(o.tokens, tokens.size());
    for (int at = 0; at < n; ) {
        std::vector<llama_token> chunk;
        if (bos) {
            chunk.push_back(llama_vocab_bos(vocab));
        }
        while (at < n && (int) chunk.size() < o.chunk) {
            chunk.push_back(tokens[at++]);
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        for (int done = 0; done < (int) chunk.size(); done += cp.n_ubatch) {
            const int part = std::min<int>(cp.n_ubatch, chunk.size() - done);
            state.first = done;
            state.queried.clear();
            if (llama_decode(ctx, llama_batch_get_one(chunk.data() + done, part)) != 0) {
                throw std::runtime_error("the model could not be computed");
            }
            if (!state.problem.empty()) {
                throw std::runtime_error(state.problem);
            }
        }
    }
    record(END, 0, {}, "", 0);
    if (fflush(stdout) != 0) {
        throw std::runtime_error("nobody reads what this program writes");
    }
    llama_free(ctx);
    llama_model_free(model);
}

} // namespace

int main(int argc, char ** argv) {
#ifdef _WIN32
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    try {
        run(parse(argc, argv));
        return 0;
    } catch (const std::exception & e) {
        fprintf(stderr, "llama-kvforge-probe: %s\n", e.what());
        return 1;
    }
}
