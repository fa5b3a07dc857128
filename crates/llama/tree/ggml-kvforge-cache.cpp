// What the cache of llama.cpp asks about our types: which it may use, whether it
// may shift them, and what it writes into saved states.

#include "ggml-kvforge.h"

#include "ggml-impl.h"
#include "gguf.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

namespace {

const ggml_type all_types[] = {
#define TYPE(NAME, ...) GGML_TYPE_##NAME,
    KVFORGE_FORMATS(TYPE)
#undef TYPE
};

enum side { K, V };

const char * name(side s) { return s == K ? "K" : "V"; }

bool holds(ggml_type type, side s) {
    if (!ggml_kvforge_is(type)) {
        return ggml_kvforge_kernel_type(type) != UINT32_MAX;
    }
    const struct kvf_format_info info = ggml_kvforge_info(type);
    return s == K ? info.holds_keys : info.holds_values;
}

// "tbq3_0, tbq4_0 or f16": what a cache can use instead
std::string fitting(side s, int64_t head) {
    std::string names;
    for (ggml_type type : all_types) {
        if (holds(type, s) && head % ggml_blck_size(type) == 0) {
            names += std::string(names.empty() ? "" : ", ") + ggml_type_name(type);
        }
    }
    return names.empty() ? "f16" : names + " or f16";
}

std::string problem_of(side s, ggml_type type, ggml_type other, int64_t head) {
    const std::string start = std::string(name(s)) + " cache type " + ggml_type_name(type);
    if (ggml_kvforge_kernel_type(type) == UINT32_MAX) {
        return start + " cannot be paired with " + ggml_type_name(other) + ": use f16, f32, q8_0 or a kvforge type for both";
    }
    if (!holds(type, s)) {
        return start + " keeps only what scores need: use " + fitting(s, head) + " for " + name(s);
    }
    const int64_t block = ggml_blck_size(type);
    if (head % block != 0) {
        return start + " takes heads whose size is a multiple of " + std::to_string(block) + ", this model's is " +
            std::to_string(head) + ": use " + fitting(s, head) + " for " + name(s);
    }
    return "";
}

// what is wrong with the variables that the kernels read, if anything is
std::string environment_problem() {
    const auto one_of = [](const char * variable, std::initializer_list<const char *> values) -> std::string {
        const char * found = getenv(variable);
        std::string known;
        for (const char * value : values) {
            if (!found || !*found || strcmp(found, value) == 0) {
                return "";
            }
            known += std::string(known.empty() ? "" : ", ") + value;
        }
        return std::string(variable) + "=" + found + " is not known: there are " + known;
    };
    std::string problem = one_of("KVFORGE_ISA", { "auto", "scalar", "avx2" });
    const char * isa = getenv("KVFORGE_ISA");
    if (problem.empty() && isa && strcmp(isa, "avx2") == 0 && !ggml_kvforge_api()->isa_resolve(KVF_ISA_AVX2)) {
        problem = "KVFORGE_ISA=avx2 cannot run on this CPU: use auto or scalar";
    }
    return problem.empty() ? one_of("KVFORGE_ENCODER", { "best", "reference" }) : problem;
}

// A number of the model's that may be missing, or be one for every layer: then -1.
int64_t number(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_UINT32 ? (int64_t) gguf_get_val_u32(file, id) : -1;
}

} // namespace

const char * ggml_kvforge_cache_problem(enum ggml_type type_k, enum ggml_type type_v, int64_t head_k, int64_t head_v) {
    if (!ggml_kvforge_is(type_k) && !ggml_kvforge_is(type_v)) {
        return nullptr;
    }
    static thread_local std::string text;
    text = environment_problem();
    if (text.empty()) {
        text = problem_of(K, type_k, type_v, head_k);
    }
    if (text.empty()) {
        text = problem_of(V, type_v, type_k, head_v);
    }
    return text.empty() ? nullptr : text.c_str();
}

const char * ggml_kvforge_file_problem(const char * path, enum ggml_type type_k, enum ggml_type type_v) {
    if (!ggml_kvforge_is(type_k) && !ggml_kvforge_is(type_v)) {
        return nullptr;
    }
    gguf_context * file = gguf_init_from_file(path, { /*.no_alloc =*/ true, /*.ctx =*/ nullptr });
    if (!file) {
        return nullptr; // the loader will say what is wrong with it
    }
    const char * problem = nullptr;
    const int64_t arch = gguf_find_key(file, "general.architecture");
    if (arch >= 0 && gguf_get_kv_type(file, arch) == GGUF_TYPE_STRING) {
        const std::string of = gguf_get_val_str(file, arch) + std::string(".");
        const int64_t heads  = number(file, of + "attention.head_count");
        const int64_t width  = number(file, of + "embedding_length");
        const int64_t usual  = heads > 0 && width > 0 ? width / heads : -1;
        const int64_t k      = number(file, of + "attention.key_length");
        const int64_t v      = number(file, of + "attention.value_length");
        if ((k > 0 || usual > 0) && (v > 0 || usual > 0)) {
            problem = ggml_kvforge_cache_problem(type_k, type_v, k > 0 ? k : usual, v > 0 ? v : usual);
        }
    }
    gguf_free(file);
    return problem;
}

const char * ggml_kvforge_cache_kernels(enum ggml_type type_k, enum ggml_type type_v) {
    static thread_local std::string text;
    text.clear();
    for (side s : { K, V }) {
        const ggml_type type = s == K ? type_k : type_v;
        if (ggml_kvforge_is(type)) {
            const char * kernel = ggml_kvforge_api()->kernel_name(ggml_kvforge_kernel_type(type), KVF_OP_ATTEND, ggml_kvforge_isa());
            text += std::string(text.empty() ? "" : ", ") + name(s) + ": " + kernel;
        }
    }
    return text.c_str();
}

// A shift decodes keys, rotates and encodes them again. It takes whole blocks, and
// a format that only keeps what scores need would keep less each time.
bool ggml_kvforge_can_shift(enum ggml_type type, int64_t head, int64_t rotated) {
    if (!ggml_kvforge_is(type)) {
        return true;
    }
    const int64_t block = ggml_blck_size(type);
    return holds(type, V) && rotated % block == 0 && head % block == 0;
}

ggml_kvforge_state_tag ggml_kvforge_state_tag_of(enum ggml_type type) {
    const struct kvf_format_info info = ggml_kvforge_info(type);
    ggml_kvforge_state_tag tag = {};
    static_assert(sizeof(tag.name) == sizeof(info.name), "a name fits");
    memcpy(tag.name, info.name, sizeof(tag.name));
    tag.layout = info.layout_hash;
    return tag;
}

bool ggml_kvforge_state_tag_fits(enum ggml_type type, const ggml_kvforge_state_tag * tag) {
    const ggml_kvforge_state_tag own = ggml_kvforge_state_tag_of(type);
    if (memcmp(&own, tag, sizeof(own)) == 0) {
        return true;
    }
    // it may be anything: print what is printable
    std::string found;
    for (size_t i = 0; i < sizeof(tag->name) && tag->name[i] >= ' ' && tag->name[i] <= '~'; i++) {
        found += tag->name[i];
    }
    GGML_LOG_ERROR("kvforge: the saved state holds '%s', layout %016llx; this cache is %s, layout %016llx. "
        "Load it with the program and the cache types that saved it\n",
        found.c_str(), (unsigned long long) tag->layout, own.name, (unsigned long long) own.layout);
    return false;
}
