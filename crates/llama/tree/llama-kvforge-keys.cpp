#include "llama-kvforge-keys.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

int32_t llama_kvforge_layer_of(const ggml_tensor * t, char side) {
    while (t->view_src) {
        t = t->view_src;
    }
    const char start[] = { 'c', 'a', 'c', 'h', 'e', '_', side, '_', 'l', 0 };
    const size_t n = strlen(start);
    if (strncmp(t->name, start, n) != 0 || t->name[n] < '0' || t->name[n] > '9') {
        return -1;
    }
    return atoi(t->name + n);
}

llama_kvforge_keys llama_kvforge_way_of(const ggml_tensor * set_rows) {
    llama_kvforge_keys way;
    way.il    = llama_kvforge_layer_of(set_rows->src[2], 'k');
    way.write = set_rows;

    // Going back from the cache to whatever multiplied with the weights. What lies
    // between RoPE and the cache must be linear and known; without RoPE, the mean of
    // what comes out is a constant, whatever made it.
    const char * between = nullptr; // the last operation that RoPE must not come before
    for (const ggml_tensor * t = set_rows->src[0]; t; t = t->src[0]) {
        switch (t->op) {
            case GGML_OP_VIEW:
            case GGML_OP_RESHAPE:
            case GGML_OP_PERMUTE:
            case GGML_OP_TRANSPOSE:
            case GGML_OP_CONT:
                if (ggml_nelements(t) != ggml_nelements(t->src[0])) {
                    between = "a part of a larger tensor is taken";
                }
                break;
            case GGML_OP_SUB:
                if (strncmp(t->src[1]->name, "kvforge_centre", 14) != 0) {
                    between = "something is subtracted";
                }
                break;
            case GGML_OP_SCALE:
            case GGML_OP_MUL:
            case GGML_OP_ADD:
            case GGML_OP_CLAMP:
            case GGML_OP_NORM:
            case GGML_OP_RMS_NORM:
            case GGML_OP_L2_NORM:
                between = ggml_op_desc(t);
                break;
            case GGML_OP_MUL_MAT:
                if (strncmp(t->src[0]->name, "attn_inp_k_rot", 14) == 0) {
                    way.hadamard = t->src[0]->ne[0];
                    t = t->src[1]; // its view, whose source the loop takes next
                    continue;
                }
                return way;
            case GGML_OP_ROPE:
                way.rope = t;
                if (between) {
                    way.why_not = std::string("between RoPE and the cache there is more: ") + between;
                }
                return way;
            default:
                way.why_not = std::string("its keys come from an operation that is not known here: ") + ggml_op_desc(t);
                return way;
        }
    }
    way.why_not = "its keys are not computed in this graph";
    return way;
}

std::vector<llama_kvforge_keys> llama_kvforge_find_keys(ggml_cgraph * gf) {
    std::vector<llama_kvforge_keys> ways;
    for (int i = 0; i < ggml_graph_n_nodes(gf); i++) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS && llama_kvforge_layer_of(node->src[2], 'k') >= 0) {
            ways.push_back(llama_kvforge_way_of(node));
        }
    }
    return ways;
}

std::vector<float> llama_kvforge_rope_matrix(const ggml_tensor * rope, int32_t pos) {
    const int64_t n    = rope->ne[0];
    const int     mode = rope->op_params[2];
    const auto *  ff   = rope->src[2];

    ggml_context_ptr ctx { ggml_init({
        /*.mem_size   =*/ 2*n*n*sizeof(float) + (ff ? ggml_nbytes(ff) : 0) + 16*ggml_tensor_overhead() + ggml_graph_overhead(),
        /*.mem_buffer =*/ nullptr,
        /*.no_alloc   =*/ false,
    }) };
    ggml_backend_ptr cpu { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    if (!ctx || !cpu) {
        throw std::runtime_error("there is no CPU backend to compute RoPE with");
    }

    // every unit vector is a head of one token
    ggml_tensor * unit = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, n, n, 1);
    memset(unit->data, 0, ggml_nbytes(unit));
    for (int64_t i = 0; i < n; i++) {
        ((float *) unit->data)[i*n + i] = 1.0f;
    }

    ggml_tensor * factors = nullptr;
    if (ff) {
        factors = ggml_dup_tensor(ctx.get(), ff);
        if (ff->buffer || ff->view_src) {
            ggml_backend_tensor_get(ff, factors->data, 0, ggml_nbytes(ff));
        } else {
            memcpy(factors->data, ff->data, ggml_nbytes(ff));
        }
    }

    // the four positions of a token of text in M-RoPE
    const bool multi = mode & GGML_ROPE_TYPE_MROPE;
    ggml_tensor * at = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, multi ? 4 : 1);
    for (int i = 0; i < at->ne[0]; i++) {
        ((int32_t *) at->data)[i] = i < 3 ? pos : 0;
    }

    int sections[GGML_MROPE_SECTIONS];
    memcpy(sections, rope->op_params + 11, sizeof(sections));
    ggml_tensor * image = multi ?
        ggml_rope_multi(ctx.get(), unit, at, factors, rope->op_params[1], sections, mode, 0, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f) :
        ggml_rope_ext  (ctx.get(), unit, at, factors, rope->op_params[1],           mode, 0, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    memcpy(image->op_params, rope->op_params, sizeof(image->op_params));

    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, image);
    if (ggml_backend_graph_compute(cpu.get(), gf) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("RoPE could not be computed");
    }
    const float * data = (const float *) image->data;
    return std::vector<float>(data, data + n*n);
}
