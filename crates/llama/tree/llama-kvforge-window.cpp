#include "llama-kvforge-access.h"
#include "ggml-kvforge.h"

#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <stdexcept>

using window_t = llama_kvforge_window;

namespace {

// Slots of a stream beyond the windows of its sequences: so many tokens can be written
// before attention has read the oldest of a window, and taken back again without leaving a
// gap in it.
constexpr uint32_t SLACK = 16;

// Many sequences that share a small cache share this part of its size, the newest tokens of
// each first: the ring stays small beside the cache.
constexpr uint32_t SHARED_PART = 16;

bool is_ours(const llama_kv_cache & cache) {
    return ggml_kvforge_is(cache.type_k()) || (access_to::values(cache, 0) && ggml_kvforge_is(cache.type_v()));
}

std::vector<llama_kv_cache *> caches_of(llama_memory_i * memory) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return { hybrid->get_mem_attn() };
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return caches_of(hybrid->get_mem_attn());
    }
    if (auto * windowed = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return { windowed->get_base(), windowed->get_swa() };
    }
    if (auto * cache = dynamic_cast<llama_kv_cache *>(memory)) {
        return { cache };
    }
    return {};
}

// the same of what a graph is built from
std::vector<const llama_kv_cache_context *> contexts_of(const llama_memory_context_i * memory) {
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_context *>(memory)) {
        return { hybrid->get_attn() };
    }
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa_context *>(memory)) {
        return contexts_of(hybrid->get_attn());
    }
    if (const auto * windowed = dynamic_cast<const llama_kv_cache_iswa_context *>(memory)) {
        return { windowed->get_base(), windowed->get_swa() };
    }
    if (const auto * cache = dynamic_cast<const llama_kv_cache_context *>(memory)) {
        return { cache };
    }
    return {};
}

bool holds(const window_t::slot & slot, const llama_kv_cells & cells) {
    return slot.taken != 0 && slot.taken == cells.kvforge_taken(slot.cell)
        && !cells.is_empty(slot.cell) && cells.pos_get(slot.cell) == slot.pos;
}

// --- what goes where ------------------------------------------------------------

// How far the tokens of a stream are from being read: positions behind the query of their
// sequence that asks for the oldest ones.
struct distances {
    const llama_kv_cells & cells;
    uint32_t n_first;
    std::vector<std::pair<llama_seq_id, llama_pos>> asking; // by sequence: the position

    int32_t of(uint32_t cell, llama_pos pos) const {
        int32_t least = INT_MAX;
        for (const auto & [seq, asks] : asking) {
            if (cells.seq_has(cell, seq)) {
                least = std::min(least, pos < (llama_pos) n_first ? -1 : asks - pos);
            }
        }
        return least;
    }
};

struct token { uint32_t index; uint32_t cell; llama_pos pos; };

// Slots for tokens of one stream: [i] is that of tokens[i], or UINT32_MAX. If they come
// first, nothing may go that a query of theirs reads.
std::vector<uint32_t> place(const window_t & w, const std::vector<window_t::slot> & slots, const std::vector<token> & tokens,
        const distances & far, bool first) {
    std::vector<std::pair<int32_t, uint32_t>> free; // the farthest first
    for (uint32_t i = 0; i < slots.size(); i++) {
        free.push_back({ holds(slots[i], far.cells) ? far.of(slots[i].cell, slots[i].pos) : INT_MAX, i });
    }
    std::stable_sort(free.begin(), free.end(), [](const auto & a, const auto & b) { return a.first > b.first; });

    std::vector<std::pair<int32_t, uint32_t>> wanted; // the nearest first
    for (uint32_t i = 0; i < tokens.size(); i++) {
        wanted.push_back({ far.of(tokens[i].cell, tokens[i].pos), i });
    }
    std::stable_sort(wanted.begin(), wanted.end());

    std::vector<uint32_t> placed(tokens.size(), UINT32_MAX);
    for (size_t i = 0; i < std::min(free.size(), wanted.size()); i++) {
        if (first ? free[i].first < (int32_t) w.n : free[i].first <= wanted[i].first) {
            break;
        }
        placed[wanted[i].second] = free[i].second;
    }
    return placed;
}

// --- inputs of a graph ------------------------------------------------------------

class window_input : public llm_graph_input_i {
public:
    window_input(llama_kv_cache & cache, const ggml_tensor * whole) : cache(cache), whole(whole) {}

    llama_kv_cache &    cache;
    const ggml_tensor * whole; // the mask that attention would have without a window

    bool     first     = false;
    uint32_t n_written = 0;

    ggml_tensor * mask   = nullptr; // of the cache, [n_kv, tokens, 1, streams]
    ggml_tensor * exact  = nullptr; // of the copies, [slots, then the ubatch's own tokens; tokens, 1, streams]
    ggml_tensor * rows   = nullptr; // where tokens are written
    ggml_tensor * tokens = nullptr; // which ones; null: all of them

    std::vector<const ggml_tensor *> read; // keys of caches that have their copies in this graph

    // behind the input that sets the whole mask: a graph sets them in the order in which
    // they came into it
    void set_input(const llama_ubatch * ubatch) override {
        const window_t & w = access_to::of(cache).window;
        const auto & now = w.now;

        // what is read exact moves from one mask into the other, whatever it is
        memcpy(mask->data, whole->data, ggml_nbytes(mask));
        const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
        auto * from = (ggml_fp16_t *) mask->data;
        auto * to   = (ggml_fp16_t *) exact->data;
        std::fill(to, to + ggml_nelements(exact), hidden);
        for (size_t s = 0; s < now.copies.size(); s++) {
            for (uint32_t i = 0; i < now.n_tokens; i++, from += mask->ne[0], to += exact->ne[0]) {
                const llama_pos pos = ubatch->pos[s*now.n_tokens + i];
                for (const auto & copy : now.copies[s]) {
                    if (pos - copy.pos < (llama_pos) w.n || copy.pos < (llama_pos) w.n_first) {
                        to[copy.column] = from[copy.cell];
                        from[copy.cell] = hidden;
                    }
                }
            }
        }
        if (rows) {
            ggml_backend_tensor_set(rows, now.rows.data(), 0, ggml_nbytes(rows));
        }
        if (tokens) {
            ggml_backend_tensor_set(tokens, now.tokens.data(), 0, ggml_nbytes(tokens));
        }
    }

    bool can_reuse(const llm_graph_params &) override {
        const window_t & w = access_to::of(cache).window;
        const auto & now = w.now;
        return mask->ne[0] == now.n_kv && mask->ne[1] == now.n_tokens && mask->ne[3] == (int64_t) now.copies.size()
            && exact->ne[0] == w.n_slots + (first ? 0 : now.n_tokens)
            && first == now.first && n_written == now.tokens.size();
    }
};

ggml_tensor * input(ggml_tensor * t, const char * name) {
    ggml_set_input(t);
    ggml_set_name(t, name);
    return t;
}

window_input & input_of(llm_graph_result & res, ggml_context * ctx, ggml_cgraph * gf, const llama_kv_cache_context & context, ggml_tensor * mask) {
    llama_kv_cache & cache = access_to::cache_of(context);
    for (const auto & known : res.inputs) {
        auto * own = dynamic_cast<window_input *>(known.get());
        if (own && &own->cache == &cache && own->whole == mask) {
            return *own;
        }
    }
    const window_t & w = access_to::of(cache).window;
    auto made = std::make_unique<window_input>(cache, mask);
    ggml_build_forward_expand(gf, mask); // it gets memory although no operation may read it
    const int64_t n_tokens = mask->ne[1];
    const int64_t n_all    = mask->ne[1]*mask->ne[3];
    if (access_to::reserves(context)) {
        made->first     = n_tokens <= SLACK;
        made->n_written = made->first ? n_all : std::min<int64_t>(n_all, w.n_slots*mask->ne[3]);
    } else {
        made->first     = w.now.first;
        made->n_written = w.now.tokens.size();
    }
    made->mask  = input(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, mask->ne[0], n_tokens, 1, mask->ne[3]), "kvforge_window_cache_mask");
    made->exact = input(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, w.n_slots + (made->first ? 0 : n_tokens), n_tokens, 1, mask->ne[3]), "kvforge_window_mask");
    if (made->n_written > 0) {
        made->rows = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I64, made->n_written), "kvforge_window_rows");
        if (!made->first) {
            made->tokens = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, made->n_written), "kvforge_window_tokens");
        }
    }
    return static_cast<window_input &>(*res.add_input(std::move(made)));
}

// the tokens that the graph stores in this part of the cache, [values of a cell, tokens]; null: none
ggml_tensor * stored(ggml_cgraph * gf, const ggml_tensor * cache) {
    for (int i = ggml_graph_n_nodes(gf) - 1; i >= 0; i--) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS && node->view_src == cache) {
            return node->src[0];
        }
    }
    return nullptr;
}

// --- memory -----------------------------------------------------------------------

window_t make(const llama_kv_cache & cache, uint32_t n, uint32_t n_first) {
    window_t w;
    const uint32_t n_streams = cache.get_n_stream();
    const uint32_t n_seqs    = n_streams == 1 ? cache.get_n_seq_max() : 1;
    w.n       = std::min(n, cache.get_size());
    w.n_first = std::min(n_first, cache.get_size());
    if (w.n == 0 && w.n_first == 0) {
        return w;
    }
    const uint32_t n_each = w.n + w.n_first;
    w.n_slots = std::min<uint64_t>((uint64_t) n_seqs*n_each, std::max(n_each, cache.get_size()/SHARED_PART)) + SLACK;
    w.slots.assign(n_streams, std::vector<window_t::slot>(w.n_slots));
    w.layers.resize(access_to::n_layers(cache));

    std::map<ggml_backend_buffer_type_t, std::vector<size_t>> places;
    for (size_t ikv = 0; ikv < w.layers.size(); ikv++) {
        if (access_to::values(cache, ikv)) { // else they are part of the keys
            places[ggml_backend_buffer_get_type(access_to::keys(cache, ikv)->buffer)].push_back(ikv);
        }
    }
    for (const auto & [buft, layers] : places) {
        ggml_context_ptr ctx { ggml_init({ 2*layers.size()*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true }) };
        for (size_t ikv : layers) {
            auto & layer = w.layers[ikv];
            layer.k = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, access_to::keys  (cache, ikv)->ne[0], w.n_slots, n_streams);
            layer.v = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, access_to::values(cache, ikv)->ne[0], w.n_slots, n_streams);
            ggml_format_name(layer.k, "kvforge_window_k_l%d", access_to::model_layer(cache, ikv));
            ggml_format_name(layer.v, "kvforge_window_v_l%d", access_to::model_layer(cache, ikv));
        }
        ggml_backend_buffer_ptr buffer { access_to::measures(cache)
            ? ggml_backend_buft_alloc_buffer(buft, 0) : ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft) };
        if (!buffer) {
            throw std::runtime_error("no memory for the exact copies of a window");
        }
        if (access_to::measures(cache)) {
            for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
                t->buffer = buffer.get();
            }
        }
        ggml_backend_buffer_clear(buffer.get(), 0); // what is hidden must still be numbers
        w.buffers.emplace_back(std::move(ctx), std::move(buffer));
    }
    return w;
}

void set_window(llama_memory_i * memory, int32_t n_window, int32_t n_first) {
    const auto caches = caches_of(memory);
    std::vector<std::pair<llama_kv_cache *, window_t>> made;
    size_t bytes = 0, cached = 0;
    for (auto * cache : caches) {
        if (access_to::n_layers(*cache) == 0 || !is_ours(*cache) || access_to::borrows(*cache)) {
            continue;
        }
        if (access_to::values_transposed(*cache)) {
            LLAMA_LOG_WARN("kvforge: no window without flash attention: all tokens are read from the cache\n");
            return;
        }
        const window_t & old = access_to::of(*cache).window;
        made.emplace_back(cache, make(*cache, n_window < 0 ? old.n : n_window, n_first < 0 ? old.n_first : n_first));
        bytes  += made.back().second.bytes();
        cached += access_to::bytes(*cache);
    }
    if (made.empty()) {
        LLAMA_LOG_INFO("kvforge: no window: this cache is %s\n", caches.empty() ? "not one of plain keys and values" : "of none of kvforge's types");
        return;
    }
    if (bytes > 0) {
        LLAMA_LOG_INFO("kvforge: window of %u tokens, and the first %u, of every sequence: %.2f MiB of exact copies beside %.2f MiB of cache\n",
            made[0].second.n, made[0].second.n_first, bytes/1024.0/1024.0, cached/1024.0/1024.0);
    } else {
        LLAMA_LOG_INFO("kvforge: no window: all tokens are read from the cache\n");
    }
    for (auto & [cache, window] : made) {
        access_to::of(*cache).window = std::move(window);
    }
}

} // namespace

size_t llama_kvforge_window::bytes() const {
    size_t n = 0;
    for (const auto & layer : layers) {
        n += layer.k ? ggml_nbytes(layer.k) + ggml_nbytes(layer.v) : 0;
    }
    return n;
}

void llama_kvforge_window_apply(llama_kv_cache & cache, const std::vector<llama_seq_id> & strm,
        const std::vector<std::vector<uint32_t>> & idxs, const llama_ubatch & ubatch, uint32_t n_kv) {
    window_t & w = access_to::of(cache).window;
    if (w.n_slots == 0) {
        return;
    }
    window_t::plan now;
    now.n_kv     = n_kv;
    now.n_tokens = ubatch.n_tokens/strm.size();

    // by stream: its tokens, and who asks for which ones
    std::vector<std::vector<token>> tokens(strm.size());
    std::vector<distances> during, later;
    for (size_t s = 0; s < strm.size(); s++) {
        const llama_kv_cells & cells = access_to::streams(cache)[strm[s]];
        later.push_back({ cells, w.n_first, {} });
        for (llama_seq_id seq = 0; seq < LLAMA_MAX_SEQ; seq++) {
            if (cells.seq_pos_max(seq) >= 0) {
                later[s].asking.push_back({ seq, cells.seq_pos_max(seq) + 1 });
            }
        }
        during.push_back(later[s]);
        for (uint32_t i = 0; i < now.n_tokens; i++) {
            const uint32_t index = s*now.n_tokens + i;
            tokens[s].push_back({ index, idxs[s][i], ubatch.pos[index] });
            for (auto & [seq, asks] : during[s].asking) {
                if (cells.seq_has(idxs[s][i], seq)) {
                    asks = std::min(asks, ubatch.pos[index]);
                }
            }
        }
    }

    std::vector<std::vector<uint32_t>> placed(strm.size());
    for (size_t s = 0; s < strm.size() && now.first; s++) {
        placed[s] = place(w, w.slots[strm[s]], tokens[s], during[s], true);
        now.first = std::count(placed[s].begin(), placed[s].end(), UINT32_MAX) == 0;
    }
    for (size_t s = 0; s < strm.size(); s++) {
        const llama_kv_cells & cells = later[s].cells;
        auto & slots = w.slots[strm[s]];
        auto & copies = now.copies.emplace_back();
        const auto read_slots = [&] {
            for (uint32_t i = 0; i < slots.size(); i++) {
                if (holds(slots[i], cells)) {
                    copies.push_back({ i, slots[i].cell, slots[i].pos });
                }
            }
        };
        if (!now.first) {
            placed[s] = place(w, slots, tokens[s], later[s], false);
            read_slots(); // before they are written
            for (uint32_t i = 0; i < now.n_tokens; i++) {
                copies.push_back({ w.n_slots + i, tokens[s][i].cell, tokens[s][i].pos });
            }
        }
        for (uint32_t i = 0; i < now.n_tokens; i++) {
            const uint32_t to = placed[s][i];
            if (to != UINT32_MAX) {
                slots[to] = { tokens[s][i].cell, cells.kvforge_taken(tokens[s][i].cell), tokens[s][i].pos };
                now.tokens.push_back(tokens[s][i].index);
                now.rows.push_back((int64_t) strm[s]*w.n_slots + to);
            }
        }
        if (now.first) {
            read_slots();
        }
    }
    w.now = std::move(now);
}

void llama_kvforge_window_attach(llm_graph_result & res, ggml_context * ctx, ggml_cgraph * gf,
        const llama_memory_context_i * memory, ggml_tensor * attention) {
    const ggml_tensor * k    = attention->src[1];
    const ggml_tensor * v    = attention->src[2];
    ggml_tensor *       mask = attention->src[3];
    if (!k->view_src || !v->view_src || !mask || mask->op != GGML_OP_NONE || mask->type != GGML_TYPE_F16) {
        return;
    }
    for (const auto * context : contexts_of(memory)) {
        llama_kv_cache & cache = access_to::cache_of(*context);
        const window_t & w = access_to::of(cache).window;
        size_t ikv = 0;
        while (ikv < w.layers.size() && access_to::keys(cache, ikv) != k->view_src) {
            ikv++;
        }
        if (ikv == w.layers.size() || access_to::values(cache, ikv) != v->view_src) {
            continue;
        }
        ggml_tensor * k_cur = stored(gf, k->view_src);
        ggml_tensor * v_cur = stored(gf, v->view_src);
        if (!k_cur || !v_cur) {
            return;
        }
        window_input & in = input_of(res, ctx, gf, *context, mask);
        // a layer that reads keys which another one has stored and read: by now the ring
        // may be one ubatch further
        if (std::count(in.read.begin(), in.read.end(), k->view_src) > 0) {
            return;
        }
        in.read.push_back(k->view_src);

        const auto write = [&](ggml_tensor * ring, ggml_tensor * cur) {
            if (in.rows) {
                cur = in.tokens ? ggml_get_rows(ctx, cur, in.tokens) : cur;
                ggml_build_forward_expand(gf, ggml_set_rows(ctx, ggml_reshape_2d(ctx, ring, ring->ne[0], ring->ne[1]*ring->ne[2]), cur, in.rows));
            }
        };
        // [values of a cell, tokens, streams] as attention reads the cache
        const auto view = [&](ggml_tensor * t, int64_t n_tokens, size_t offset, const ggml_tensor * like) {
            ggml_tensor * heads = ggml_view_4d(ctx, t, like->ne[0], like->ne[2], n_tokens, like->ne[3],
                like->ne[0]*t->nb[0], t->nb[1], n_tokens*t->nb[1], offset);
            return ggml_permute(ctx, heads, 0, 2, 1, 3);
        };
        ggml_tensor * ring_k = w.layers[ikv].k;
        ggml_tensor * ring_v = w.layers[ikv].v;
        const size_t stream = k->view_offs / k->view_src->nb[2];
        if (in.first) {
            write(ring_k, k_cur);
            write(ring_v, v_cur);
        }
        ggml_tensor * k_more = nullptr;
        ggml_tensor * v_more = nullptr;
        if (!in.first) {
            k_more = view(ggml_cast(ctx, k_cur, GGML_TYPE_F16), mask->ne[1], 0, k);
            v_more = view(ggml_cast(ctx, v_cur, GGML_TYPE_F16), mask->ne[1], 0, v);
        }
        attention->src[3] = in.mask;
        ggml_kvforge_flash_attn_add_exact(attention, in.exact,
            view(ring_k, w.n_slots, stream*ring_k->nb[2], k), view(ring_v, w.n_slots, stream*ring_v->nb[2], v), k_more, v_more);
        if (!in.first) {
            ggml_build_forward_expand(gf, attention);
            write(ring_k, k_cur);
            write(ring_v, v_cur);
        }
        return;
    }
}

void llama_kvforge_window_copy(llama_kv_cache & cache, uint32_t from, uint32_t to) {
    window_t & w = access_to::of(cache).window;
    if (w.n_slots == 0) {
        return;
    }
    for (const auto & [ctx, buffer] : w.buffers) {
        for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
            std::vector<uint8_t> bytes(t->nb[2]);
            ggml_backend_tensor_get(t, bytes.data(), from*t->nb[2], bytes.size());
            ggml_backend_tensor_set(t, bytes.data(), to*t->nb[2], bytes.size());
        }
    }
    const auto & streams = access_to::streams(cache);
    for (uint32_t i = 0; i < w.n_slots; i++) {
        const auto & slot = w.slots[from][i];
        w.slots[to][i] = { slot.cell, holds(slot, streams[from]) ? streams[to].kvforge_taken(slot.cell) : 0, slot.pos };
    }
}

void llama_kvforge_begin(llama_memory_i * memory, ggml_type type_k, ggml_type type_v) {
    if (!memory || !(ggml_kvforge_is(type_k) || ggml_kvforge_is(type_v)) || dynamic_cast<llama_memory_recurrent *>(memory)) {
        return;
    }
    if (caches_of(memory).empty()) {
        throw std::runtime_error(std::string("kvforge: cache types ") + ggml_type_name(type_k) + "/" + ggml_type_name(type_v) +
            " are not for this model, which looks its keys up in ways of its own (sparse attention): choose another type");
    }
    set_window(memory, LLAMA_KVFORGE_WINDOW, 0);
}

bool llama_kvforge_set_window(llama_context * ctx, int32_t n_window, int32_t n_first) {
    try {
        ctx->synchronize(); // the ring may still be read
        set_window(ctx->get_memory(), n_window, n_first);
        access_to::build_graphs_anew(*ctx);
        return true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("kvforge: window of %d tokens: %s\n", n_window, e.what());
        return false;
    }
}

uint32_t llama_kvforge_window_used(const llama_context * ctx, llama_seq_id seq) {
    uint32_t most = 0;
    for (const auto * cache : caches_of(ctx->get_memory())) {
        const window_t & w = access_to::of(*cache).window;
        for (size_t s = 0; s < w.slots.size(); s++) {
            const auto & cells = access_to::streams(*cache)[s];
            most = std::max<uint32_t>(most, std::count_if(w.slots[s].begin(), w.slots[s].end(), [&](const window_t::slot & slot) {
                return holds(slot, cells) && cells.seq_has(slot.cell, seq);
            }));
        }
    }
    return most;
}

void llama_kvforge_window_drop(llama_context * ctx) {
    for (auto * cache : caches_of(ctx->get_memory())) {
        for (auto & slots : access_to::of(*cache).window.slots) {
            std::fill(slots.begin(), slots.end(), window_t::slot());
        }
    }
}
