// Which keys of which architectures can be centred, read off the graph of a small
// random model of each (`test-llama-archs -o FOLDER` writes them). Says so line by
// line; fails if RoPE that leads to a cache is not a turning of pairs.
//
// Usage: archs MODEL...

#include "check.h"

#include "ggml-backend.h"
#include "ggml-kvforge.h"
#include "llama-kvforge-keys.h"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

LLAMA_API struct ggml_cgraph * llama_graph_reserve(struct llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs);

// How far the angles of position 1, times `pos`, are from what RoPE does at `pos`.
static double apart_at(const ggml_tensor * rope, int pos) {
    const auto step = llama_kvforge_rope_matrix(rope, 1);
    const auto then = llama_kvforge_rope_matrix(rope, pos);
    const int64_t n = rope->ne[0];
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i;
        for (int64_t other = 0; other < n; other++) {
            if (other != i && (j == i || std::fabs(step[i*n + other]) > std::fabs(step[i*n + j]))) {
                j = other;
            }
        }
        const double c = step[i*n + i], s = step[i*n + j];
        const double scale = std::hypot(c, s), angle = std::atan2(s, c)*pos;
        const bool turned = std::fabs(s) > 1e-9;
        worst = std::fmax(worst, std::fabs(then[i*n + i] - (turned ? scale*std::cos(angle) : c)));
        worst = std::fmax(worst, std::fabs(then[i*n + j] - (turned ? scale*std::sin(angle) : 0)));
    }
    return worst;
}

static void of_model(const char * path) {
    llama_model_params mp = llama_model_default_params();
    llama_model * model = llama_model_load_from_file(path, mp);
    if (!model) {
        printf("%s: cannot be loaded\n", path);
        return;
    }
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    llama_context * ctx = llama_init_from_model(model, cp);
    char architecture[64] = "?";
    llama_model_meta_val_str(model, "general.architecture", architecture, sizeof(architecture));
    if (!ctx) {
        printf("%s: no context\n", architecture);
        llama_model_free(model);
        return;
    }
    int n_rope = 0, n_plain = 0;
    std::map<std::string, int> left;
    ggml_cgraph * gf = llama_get_memory(ctx) ? llama_graph_reserve(ctx, 1, 1, 1) : nullptr;
    for (int i = 0; gf && i < ggml_graph_n_nodes(gf); i++) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op != GGML_OP_SET_ROWS || llama_kvforge_layer_of(node->src[2], 'k') < 0) {
            continue;
        }
        const auto way = llama_kvforge_way_of(node);
        if (!way.why_not.empty()) {
            left[way.why_not]++;
        } else if (!way.rope) {
            n_plain++;
        } else {
            n_rope++;
            const double apart = apart_at(way.rope, 777);
            if (!check(apart < 1e-2, architecture, __FILE__, __LINE__)) {
                fprintf(stderr, "%s, layer %d: RoPE at 777 is off by %g\n", architecture, way.il, apart);
            }
        }
    }
    printf("%s: %d layers with RoPE, %d without", architecture, n_rope, n_plain);
    for (const auto & [reason, n] : left) {
        printf("; %d left alone: %s", n, reason.c_str());
    }
    printf(n_rope + n_plain + (int) left.size() == 0 ? ": no keys in a cache\n" : "\n");
    fflush(stdout);
    llama_free(ctx);
    llama_model_free(model);
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    ggml_backend_load_all();
    for (int i = 1; i < argc; i++) {
        of_model(argv[i]);
    }
    return report();
}
