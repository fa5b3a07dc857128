#include "llama-kvforge-access.h"
#include "llama-kvforge-keys.h"
#include "ggml-kvforge.h"

#include "llama-arch.h"
#include "llama-ext.h"
#include "llama-impl.h"
#include "llama-io.h"
#include "llama-model.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

using centre_t = llama_kvforge_centre;

namespace {

// FNV-1a, 64 bits
struct fnv {
    uint64_t h = 0xcbf29ce484222325;

    void add(const void * data, size_t n) {
        for (size_t i = 0; i < n; i++) {
            h = (h ^ ((const uint8_t *) data)[i]) * 0x100000001b3;
        }
    }

    void add(const std::string & text) { add(text.c_str(), text.size() + 1); }
};

uint64_t id_of(const centre_t & centre, const llama_kv_cache & cache) {
    fnv id;
    for (size_t ikv = 0; ikv < centre.layers.size(); ikv++) {
        const auto & values = centre.layers[ikv].values;
        if (!values.empty()) {
            const int32_t il = access_to::model_layer(cache, ikv);
            id.add(&il, sizeof(il));
            id.add(values.data(), values.size()*sizeof(float));
        }
    }
    return id.h == fnv().h ? 0 : id.h;
}

// Puts the constants where the keys lie.
void upload(centre_t & centre, const llama_kv_cache & cache) {
    std::map<ggml_backend_buffer_type_t, std::vector<size_t>> places;
    for (size_t ikv = 0; ikv < centre.layers.size(); ikv++) {
        if (!centre.layers[ikv].values.empty()) {
            places[ggml_backend_buffer_get_type(access_to::keys(cache, ikv)->buffer)].push_back(ikv);
        }
    }
    for (const auto & [buft, layers] : places) {
        ggml_context_ptr ctx { ggml_init({ layers.size()*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true }) };
        for (size_t ikv : layers) {
            auto & layer = centre.layers[ikv];
            const int64_t head = access_to::head_size(cache, ikv);
            layer.tensor = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, head, layer.values.size()/head);
            ggml_format_name(layer.tensor, "kvforge_centre_l%d", access_to::model_layer(cache, ikv));
        }
        ggml_backend_buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft) };
        if (!buffer) {
            throw std::runtime_error("no memory for the centres of the keys");
        }
        for (size_t ikv : layers) {
            const auto & layer = centre.layers[ikv];
            ggml_backend_tensor_set(layer.tensor, layer.values.data(), 0, layer.values.size()*sizeof(float));
        }
        centre.buffers.emplace_back(std::move(ctx), std::move(buffer));
    }
}

void use(llama_kv_cache & cache, std::shared_ptr<const centre_t> centre) {
    access_to::of(cache).centre = centre->id != 0 ? std::move(centre) : nullptr;
}

std::string read_file(const char * path) {
    std::error_code ec;
    if (std::filesystem::exists(path, ec) && !std::filesystem::is_regular_file(path, ec)) {
        throw std::runtime_error("it is no file");
    }
    const std::unique_ptr<FILE, int (*)(FILE *)> file { fopen(path, "rb"), fclose };
    if (!file) {
        throw std::runtime_error(std::string("it cannot be opened: ") + strerror(errno));
    }
    // larger than that of any model, and nobody's memory
    const size_t most = 64u << 20;
    std::string bytes;
    char part[1 << 16];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), file.get())) > 0 && bytes.size() <= most) {
        bytes.append(part, n);
    }
    if (ferror(file.get()) || bytes.size() > most) {
        throw std::runtime_error("it cannot be read, or is far too long for a calibration");
    }
    return bytes;
}

// A file of `kvforge calibrate`, read by the kernels' own reader.
struct calibration {
    std::string bytes;
    kvf_calibration about = {};
    std::map<int32_t, std::pair<uint32_t, kvf_calibrated_layer>> layers; // by the model's number: index in the file

    const struct kvf_api * api = ggml_kvforge_api();

    explicit calibration(const char * path) : bytes(read_file(path)) {
        check(api->calibration_read(bytes.data(), bytes.size(), &about));
    }

    // once it is known to be this model's: each layer is looked up in the whole file
    void read_layers() {
        for (uint32_t i = 0; i < about.n_layers; i++) {
            kvf_calibrated_layer layer;
            check(api->calibration_layer(bytes.data(), bytes.size(), i, &layer));
            layers[(int32_t) layer.layer] = { i, layer };
        }
    }

    void check(int32_t status) const {
        if (status != KVF_OK) {
            throw std::runtime_error(api->status_text(status));
        }
    }

    // [kv heads][head size], after RoPE; empty if the layer is not calibrated
    std::vector<float> centre(const llama_kvforge_keys & way, int64_t head, int64_t n_head_kv, uint64_t n_positions) const {
        const auto found = layers.find(way.il);
        if (found == layers.end()) {
            return {};
        }
        const auto & [index, layer] = found->second;
        if (layer.head_dim != head || layer.n_head_kv != n_head_kv) {
            throw std::runtime_error("layer " + std::to_string(way.il) + " has " + std::to_string(layer.n_head_kv) + " heads of " +
                std::to_string(layer.head_dim) + " values in it, the model's has " + std::to_string(n_head_kv) + " of " + std::to_string(head));
        }
        std::vector<float> step;
        if (way.rope) {
            if (way.rope->ne[0] != head) {
                throw std::runtime_error("RoPE of layer " + std::to_string(way.il) + " turns vectors of another size than a head's");
            }
            step = llama_kvforge_rope_matrix(way.rope, 1);
        }
        std::vector<float> centre(head*n_head_kv);
        check(api->static_centre(bytes.data(), bytes.size(), index, way.rope ? step.data() : nullptr, n_positions, centre.data()));
        return centre;
    }
};

// The constants go through what the graph does to keys between RoPE and the cache.
void rotate(std::vector<float> & values, const float * h, int64_t n) {
    std::vector<float> in(n);
    for (float * x = values.data(); x < values.data() + values.size(); x += n) {
        std::copy(x, x + n, in.begin());
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) {
                sum += (double) h[i*n + j]*in[j];
            }
            x[i] = (float) sum;
        }
    }
}

// Why the attention of this model would see a constant; "" if it would not.
std::string sees_constants(const llama_model & model) {
    if (model.hparams.attn_soft_cap || model.arch == LLM_ARCH_GROK) {
        return "this model caps its attention scores, which a constant in them would change";
    }
    for (const auto & layer : model.layers) {
        if (layer.attn_sinks) {
            return "this model weighs scores against sinks, which a constant in them would change";
        }
    }
    return "";
}

void set_calibration(llama_context & ctx, const char * path) {
    const llama_model & model = ctx.get_model();
    calibration file(path);
    const std::string name(file.about.name, strnlen(file.about.name, sizeof(file.about.name)));
    if (file.about.model != llama_kvforge_model_id(&model)) {
        throw std::runtime_error("it was made for another model, '" + name + "': make one for this model with `kvforge calibrate`");
    }
    file.read_layers();
    const std::string seen = sees_constants(model);
    if (!seen.empty()) {
        throw std::runtime_error(seen + ": use the cache without a calibration");
    }
    if (model.split_mode() == LLAMA_SPLIT_MODE_TENSOR) {
        throw std::runtime_error("keys that are split over devices cannot be centred yet: use another --split-mode, or no calibration");
    }
    if (!ctx.get_memory()) {
        throw std::runtime_error("this model has no cache");
    }
    const auto caches = plain_caches_of(ctx.get_memory());
    if (caches.empty()) {
        throw std::runtime_error("this model keeps something other than plain keys (compressed or recurrent), which is left as it is: use it without a calibration");
    }
    for (const auto * cache : caches) {
        if (access_to::borrows(*cache)) {
            throw std::runtime_error("this context reads the keys of another one: give that one the calibration");
        }
        if (access_to::n_used(*cache) > 0) {
            throw std::runtime_error("the cache already holds keys: set the calibration before the first token");
        }
    }

    std::map<int32_t, llama_kvforge_keys> ways;
    const uint32_t n_seqs = llama_n_seq_max(&ctx);
    ggml_cgraph * gf = llama_graph_reserve(&ctx, n_seqs, n_seqs, n_seqs);
    access_to::build_graphs_anew(ctx); // for the real sizes, with what is set here
    if (!gf) {
        throw std::runtime_error("the model's graph could not be built");
    }
    for (auto & way : llama_kvforge_find_keys(gf)) {
        auto & known = ways[way.il];
        if (known.il >= 0) {
            way.why_not = "two sets of keys are stored for it";
        }
        known = std::move(way);
    }

    // everything is worked out before anything is set
    const uint64_t n_positions = llama_n_ctx_seq(&ctx);
    std::vector<std::shared_ptr<centre_t>> centres;
    size_t n_centred = 0;
    size_t n_layers  = 0;
    for (const auto * cache : caches) {
        auto centre = std::make_shared<centre_t>();
        centre->layers.resize(access_to::n_layers(*cache));
        n_layers += centre->layers.size();
        for (size_t ikv = 0; ikv < centre->layers.size(); ikv++) {
            const int32_t il  = access_to::model_layer(*cache, ikv);
            const auto    way = ways.find(il);
            if (way == ways.end() || !way->second.why_not.empty()) {
                LLAMA_LOG_WARN("kvforge: keys of layer %d are stored as they are: %s\n", il,
                    way == ways.end() ? "this graph does not store any" : way->second.why_not.c_str());
                continue;
            }
            const int64_t head = access_to::head_size(*cache, ikv);
            auto & values = centre->layers[ikv].values;
            values = file.centre(way->second, head, access_to::keys(*cache, ikv)->ne[0]/head, n_positions);
            if (values.empty()) {
                LLAMA_LOG_WARN("kvforge: keys of layer %d are stored as they are: the calibration does not have it\n", il);
                continue;
            }
            if (const int64_t n = way->second.hadamard) {
                rotate(values, access_to::hadamard(*cache, n), n);
            }
            n_centred++;
        }
        centre->id = id_of(*centre, *cache);
        upload(*centre, *cache);
        centres.push_back(std::move(centre));
    }
    if (n_centred == 0) {
        throw std::runtime_error("it fits no layer of this model: make one with `kvforge calibrate`");
    }
    for (size_t i = 0; i < caches.size(); i++) {
        use(*caches[i], centres[i]);
    }
    LLAMA_LOG_INFO("kvforge: keys centred in %zu of %zu layers for %" PRIu64 " positions, centre %016" PRIx64 " (%s, %s, %" PRIu64 " tokens)\n",
        n_centred, n_layers, n_positions, llama_kvforge_centre_id(&ctx), path, name.c_str(), (uint64_t) file.about.n_tokens);
}

} // namespace

bool llama_kvforge_set_calibration(llama_context * ctx, const char * path) {
    try {
        set_calibration(*ctx, path);
        return true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("kvforge: calibration %s: %s\n", path, e.what());
        return false;
    }
}

uint64_t llama_kvforge_centre_id(const llama_context * ctx) {
    fnv id;
    bool any = false;
    for (auto * cache : plain_caches_of(ctx->get_memory())) {
        const auto & centre = access_to::of(*cache).centre;
        const uint64_t part = centre ? centre->id : 0;
        any = any || part != 0;
        id.add(&part, sizeof(part));
    }
    return any ? id.h : 0;
}

const float * llama_kvforge_centre_of(const llama_context * ctx, int32_t il, size_t * n) {
    for (auto * cache : plain_caches_of(ctx->get_memory())) {
        const auto & centre = access_to::of(*cache).centre;
        for (size_t ikv = 0; centre && ikv < centre->layers.size(); ikv++) {
            const auto & values = centre->layers[ikv].values;
            if (access_to::model_layer(*cache, ikv) == il && !values.empty()) {
                *n = values.size();
                return values.data();
            }
        }
    }
    *n = 0;
    return nullptr;
}

uint64_t llama_kvforge_model_id(const llama_model * model) {
    const auto ends_with = [](const std::string & text, const std::string & end) {
        return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
    };
    // in one order, whatever the file's
    const std::map<std::string, const ggml_tensor *> all(model->tensors_by_name.begin(), model->tensors_by_name.end());
    std::map<std::string, const ggml_tensor *> kept;
    for (const auto & [name, t] : all) {
        if (t->type == GGML_TYPE_F32 && ggml_n_dims(t) == 1 && (ends_with(name, "norm.weight") || ends_with(name, ".bias"))) {
            kept[name] = t;
        }
    }
    fnv id;
    id.add(llm_arch_name(model->arch));
    for (const auto & [name, t] : all) {
        id.add(name);
        id.add(t->ne, sizeof(t->ne));
    }
    std::vector<uint8_t> data;
    for (const auto & [name, t] : kept) {
        data.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, data.data(), 0, data.size());
        id.add(name);
        id.add(data.data(), data.size());
    }
    return id.h;
}

// --- graphs -------------------------------------------------------------------

ggml_tensor * llama_kvforge_subtract(ggml_context * ctx, ggml_tensor * k_cur, ggml_tensor * centre) {
    return centre ? ggml_sub(ctx, k_cur, centre) : k_cur;
}

ggml_tensor * llama_kvforge_shift_by(ggml_context * ctx, ggml_tensor * tmp, ggml_tensor * centre, size_t first, int sign) {
    if (!centre) {
        return tmp;
    }
    ggml_tensor * part = ggml_view_2d(ctx, centre, tmp->ne[0], centre->ne[1], centre->nb[1], first*sizeof(float));
    return sign > 0 ? ggml_add(ctx, tmp, part) : ggml_sub(ctx, tmp, part);
}

// --- saved states -------------------------------------------------------------

// no type of ggml, so that a program without kvforge refuses the state
static const int32_t CENTRE_MARK = 0x6376666b; // "kfvc"

void llama_kvforge_state_write(llama_io_write_i & io, const llama_kvforge_cache & own, size_t ikv) {
    if (!own.of(ikv)) {
        return;
    }
    const auto & values = own.centre->layers[ikv].values;
    const uint32_t n = values.size();
    io.write(&CENTRE_MARK, sizeof(CENTRE_MARK));
    io.write(&n, sizeof(n));
    io.write(values.data(), n*sizeof(float));
}

bool llama_kvforge_state_read(llama_io_read_i & io, llama_kv_cache & cache, size_t ikv, uint32_t n_cells, int32_t & type) {
    auto & own = access_to::of(cache);
    if (!own.loading) {
        own.loading = std::make_shared<centre_t>();
        own.loading->layers.resize(access_to::n_layers(cache));
    }
    std::vector<float> values;
    if (type == CENTRE_MARK) {
        const uint32_t expected = access_to::keys(cache, ikv)->ne[0];
        uint32_t n;
        io.read(&n, sizeof(n));
        if (n != expected) {
            LLAMA_LOG_ERROR("kvforge: the saved state is damaged: %u values in the centre of a layer, expected %u. Save it again\n", n, expected);
            return false;
        }
        values.resize(n);
        io.read(values.data(), n*sizeof(float));
        io.read(&type, sizeof(type));
        const auto finite = [](float x) { return x - x == 0; };
        if (!std::all_of(values.begin(), values.end(), finite)) {
            LLAMA_LOG_ERROR("kvforge: the saved state is damaged: the centre of a layer is not a number. Save it again\n");
            return false;
        }
    }
    static const std::vector<float> none;
    auto & loaded = own.loading->layers[ikv];
    if (loaded.read) { // in another stream of the same state
        if (loaded.values != values) {
            LLAMA_LOG_ERROR("kvforge: the saved state is damaged: keys of layer %d are centred in two ways. Save it again\n", access_to::model_layer(cache, ikv));
            return false;
        }
        return true;
    }
    if (type != access_to::keys(cache, ikv)->type) {
        return true; // the cache will say so itself
    }
    const auto & used = own.centre ? own.centre->layers[ikv].values : none;
    if (used != values && access_to::n_used(cache) > n_cells) {
        LLAMA_LOG_ERROR("kvforge: the saved state's keys are centred in another way than those of this cache (layer %d). "
            "Load it into an empty cache, or save it again from one with the same calibration and context size\n", access_to::model_layer(cache, ikv));
        return false;
    }
    loaded.values = std::move(values);
    loaded.read   = true;
    return true;
}

void llama_kvforge_state_begin(llama_memory_i * memory) {
    for (auto * cache : plain_caches_of(memory)) {
        access_to::of(*cache).loading = nullptr;
    }
}

bool llama_kvforge_state_end(llama_memory_i * memory) {
    bool changed = false;
    for (auto * cache : plain_caches_of(memory)) {
        auto & own = access_to::of(*cache);
        const auto loaded = std::move(own.loading);
        if (!loaded) {
            continue; // the state had no keys for it
        }
        loaded->id = id_of(*loaded, *cache);
        const uint64_t before = own.centre ? own.centre->id : 0;
        if (loaded->id == before) {
            continue;
        }
        LLAMA_LOG_WARN("kvforge: this cache was empty and takes over how the loaded state's keys are centred (%016" PRIx64 ", before: %016" PRIx64 ")\n",
            loaded->id, before);
        upload(*loaded, *cache);
        use(*cache, loaded);
        changed = true;
    }
    return changed;
}
