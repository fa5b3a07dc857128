// Centred keys, through libllama: the softmax does not see the constant, a state
// carries it, an empty cache takes it over, a shift turns whole keys, and what
// does not fit is refused with a reason and changes nothing.
//
// Usage: centre MODEL CALIBRATION FOREIGN_CALIBRATION FOLDER

#include "keys.h"
#include "type_by_name.h"

#include "ggml-backend.h"

#define ROUND "The harbour master wrote down each ship, its cargo and its captain. "
static const char TEXT[] = ROUND "Seven of them came from the north. " ROUND "Nobody had seen the eighth";

static const char * foreign;

static struct llama_context * open_centred(const struct subject * subject, uint32_t sequences, const char * path) {
    struct llama_context * ctx = open_for(subject, sequences);
    expect(llama_kvforge_set_calibration(ctx, path) && llama_kvforge_centre_id(ctx) != 0, "%s keys are centred", ggml_type_name(subject->type_k));
    return ctx;
}

static struct run run_of(struct llama_context * ctx, const struct subject * subject) {
    feed_prompt(ctx, subject, 0, 0);
    return continue_prompt(ctx, subject);
}

// --- what attention sees ------------------------------------------------------
//
// Logits are no measure: weights are multiplied with rounded activations, and any
// change of rounding moves them. The first layer's attention is one: its queries
// and keys are the same numbers in every run.

enum { HEADS = 64, HEAD_SIZE = 512 };

// Scores of the last token's queries against all keys before, and their softmax.
struct attention {
    int   n_heads, n_keys, head_size;
    float query[HEADS][HEAD_SIZE];
    float score[HEADS][CELLS];
    float weight[HEADS][CELLS];
};

// Copies the first `n` values of each head of the last query's row of `t`, to rows of `stride`.
static void copy_rows(const struct ggml_tensor * t, int n, float * out, int stride) {
    for (int64_t head = 0; head < t->ne[2]; head++) {
        const size_t at = head * t->nb[2] + (t->ne[1] - 1) * t->nb[1];
        ggml_backend_tensor_get(t, out + head * stride, at, n * sizeof(float));
    }
}

static bool look(struct ggml_tensor * t, bool ask, void * data) {
    struct attention * seen = data;
    const bool scores = strcmp(t->name, "kq-0") == 0, weights = strcmp(t->name, "kq_soft_max-0") == 0;
    if (ask || !(scores || weights)) {
        return scores || weights || !ask;
    }
    if (t->type != GGML_TYPE_F32 || t->ne[2] > HEADS || t->ne[0] < seen->n_keys) {
        give_up("the scores of the first layer are not what they were");
    }
    seen->n_heads = (int) t->ne[2];
    copy_rows(t, seen->n_keys, scores ? seen->score[0] : seen->weight[0], CELLS);
    if (scores) {
        const struct ggml_tensor * q = t->src[1];
        seen->head_size = (int) q->ne[0];
        if (q->type != GGML_TYPE_F32 || q->ne[0] > HEAD_SIZE) {
            give_up("the queries of the first layer are not what they were");
        }
        copy_rows(q, seen->head_size, seen->query[0], HEAD_SIZE);
    }
    return true;
}

// A context with fp32 keys whose first layer is watched.
static struct llama_context * open_watched(const struct subject * subject, const char * path, struct attention * seen) {
    struct subject exact = *subject;
    exact.type_k = exact.type_v = GGML_TYPE_F32;
    memset(seen, 0, sizeof(*seen));
    seen->n_keys = subject->n_prompt;
    struct llama_context_params params = settings(&exact);
    params.flash_attn_type   = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cb_eval           = look;
    params.cb_eval_user_data = seen;
    struct llama_context * ctx = open_with(&exact, params);
    if (path) {
        expect(llama_kvforge_set_calibration(ctx, path), "fp32 keys are centred");
    }
    return ctx;
}

// Evaluates the last token of the prompt, whose queries are the ones looked at.
static void last_token(struct llama_context * ctx, const struct subject * subject) {
    feed(ctx, subject->prompt + subject->n_prompt - 1, 1, subject->n_prompt - 1, 0);
}

// The same weights; and scores that differ by one constant for each query.
static void expect_unseen(const struct attention * centred, const struct attention * plain, const char * what) {
    double apart = 0, uneven = 0, constant = 0, size = 0;
    for (int head = 0; head < plain->n_heads; head++) {
        double mean = 0;
        for (int key = 0; key < plain->n_keys; key++) {
            mean += ((double) centred->score[head][key] - plain->score[head][key]) / plain->n_keys;
            apart = fmax(apart, fabs((double) centred->weight[head][key] - plain->weight[head][key]));
            size  = fmax(size, fabs((double) plain->score[head][key]));
        }
        constant = fmax(constant, fabs(mean));
        for (int key = 0; key < plain->n_keys; key++) {
            uneven = fmax(uneven, fabs((double) centred->score[head][key] - plain->score[head][key] - mean));
        }
    }
    expect(plain->n_heads > 0 && apart < 1e-6, "%s: weights apart by %.2g", what, apart);
    expect(uneven < 3e-6 * size, "%s: scores (up to %.3g) differ by a constant, but for %.2g", what, size, uneven);
    expect(constant > 1e-2 * size, "control: %s: that constant is up to %.3g", what, constant);
}

// What the scores lack is what the header says: queries times constants.
static void expect_lack(struct llama_context * ctx, const struct attention * centred, const struct attention * plain) {
    size_t n = 0;
    const float * centre = llama_kvforge_centre_of(ctx, 0, &n);
    expect(centre && n > 0 && n % centred->head_size == 0, "layer 0 has %zu constants", n);
    const int n_kv_heads = (int) (n / centred->head_size);
    double off = 0, size = 0;
    for (int head = 0; head < plain->n_heads; head++) {
        const float * c = centre + head / (plain->n_heads / n_kv_heads) * centred->head_size;
        double lack = 0;
        for (int i = 0; i < centred->head_size; i++) {
            lack += (double) centred->query[head][i] * c[i];
        }
        for (int key = 0; key < plain->n_keys; key++) {
            off  = fmax(off, fabs(centred->score[head][key] + lack - plain->score[head][key]));
            size = fmax(size, fabs((double) plain->score[head][key]));
        }
    }
    expect(off < 3e-6 * size, "scores and the query times the constants are the true scores (up to %.3g), but for %.2g", size, off);
    expect(!llama_kvforge_centre_of(ctx, 1 << 20, &n) && n == 0, "a layer that is not there has none");
}

static void unseen(const struct subject * subject, const char * path) {
    static struct attention plain, centred;
    struct llama_context * ctx = open_watched(subject, NULL, &plain);
    expect(llama_kvforge_centre_id(ctx) == 0, "without a calibration there is no centre");
    feed_prompt(ctx, subject, 0, 0);
    last_token(ctx, subject);
    llama_free(ctx);

    ctx = open_watched(subject, path, &centred);
    feed_prompt(ctx, subject, 0, 0);
    last_token(ctx, subject);
    expect_unseen(&centred, &plain, "centred");
    expect_lack(ctx, &centred, &plain);
    llama_memory_clear(llama_get_memory(ctx), true);

    // the first half from a state, by a cache that knows no calibration
    const int half = subject->n_prompt / 2;
    feed(ctx, subject->prompt, half, 0, 0);
    struct bytes state = sequence_state(ctx);
    llama_free(ctx);
    ctx = open_watched(subject, NULL, &centred);
    expect(llama_state_seq_set_data(ctx, state.at, state.n, 0) > 0 && llama_kvforge_centre_id(ctx) != 0, "an empty cache takes over the centre of a state");
    feed(ctx, subject->prompt + half, subject->n_prompt - 1 - half, half, 0);
    last_token(ctx, subject);
    expect_unseen(&centred, &plain, "taken over from a state");
    llama_free(ctx);
    free(state.at);
}

// Evaluated elsewhere and moved back: a shift turns whole keys.
static void shifted(const struct subject * subject, const char * path) {
    enum { BY = 64 };
    static struct attention plain, centred;
    struct llama_context * ctx = open_watched(subject, NULL, &plain);
    feed_prompt(ctx, subject, 0, 0);
    last_token(ctx, subject);
    llama_free(ctx);

    ctx = open_watched(subject, path, &centred);
    feed_prompt(ctx, subject, BY, 0);
    llama_memory_seq_add(llama_get_memory(ctx), 0, 0, -1, -BY);
    last_token(ctx, subject);
    double apart = 0;
    for (int head = 0; head < plain.n_heads; head++) {
        for (int key = 0; key < plain.n_keys; key++) {
            apart = fmax(apart, fabs((double) centred.weight[head][key] - plain.weight[head][key]));
        }
    }
    expect(apart < 1e-5, "shifted by %d: weights apart by %.2g", BY, apart);
    llama_free(ctx);
}

// --- states -------------------------------------------------------------------

static void save_sequence(const struct subject * subject, const char * path, const char * file, struct run * run) {
    struct llama_context * ctx = path ? open_centred(subject, 2, path) : open_for(subject, 2);
    feed_prompt(ctx, subject, 0, 0);
    expect(llama_state_seq_save_file(ctx, file, 0, subject->prompt, subject->n_prompt) > 0, "a sequence is saved");
    *run = continue_prompt(ctx, subject);
    llama_free(ctx);
}

// Loads a sequence into a cache that already holds another one.
static void loaded_beside(const struct subject * subject, const char * path, const char * file, bool fits, const char * what) {
    struct llama_context * ctx = path ? open_centred(subject, 2, path) : open_for(subject, 2);
    const uint64_t own = llama_kvforge_centre_id(ctx);
    feed(ctx, subject->prompt, 5, 0, 1);
    errors[0] = 0;
    const bool loaded = load_sequence(ctx, file, 0);
    const bool said = strstr(errors, "centred in another way") != NULL;
    expect(loaded == fits && said == !fits, "%s is %s", what, fits ? "loaded" : "refused, with the reason");
    expect(llama_kvforge_centre_id(ctx) == own, "and the cache keeps its centre");
    expect(fits || llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == -1, "and nothing is left of what was refused");
    llama_free(ctx);
}

static void states(const struct subject * subject, const char * path, const char * folder) {
    char with[4096], without[4096];
    snprintf(with, sizeof(with), "%s", state_path(folder, "centred"));
    snprintf(without, sizeof(without), "%s", state_path(folder, "as-they-are"));
    struct run centred, plain;
    save_sequence(subject, path, with, &centred);
    save_sequence(subject, NULL, without, &plain);

    struct llama_context * ctx = open_for(subject, 1);
    expect(load_sequence(ctx, with, 0) && llama_kvforge_centre_id(ctx) != 0, "a centred state is taken over by an empty cache without a centre");
    const struct run again = continue_prompt(ctx, subject);
    expect_identical(&again, &centred, "from the centred state");
    llama_free(ctx);

    ctx = open_centred(subject, 1, path);
    expect(load_sequence(ctx, without, 0) && llama_kvforge_centre_id(ctx) == 0, "a state as it is, by an empty cache with one");
    const struct run bare = continue_prompt(ctx, subject);
    expect_identical(&bare, &plain, "from the state as it is");
    llama_free(ctx);

    loaded_beside(subject, path, with,    true,  "a state with the same centre");
    loaded_beside(subject, NULL, without, true,  "a state without one, where there is none,");
    loaded_beside(subject, NULL, with,    false, "a centred state, where there is none,");
    loaded_beside(subject, path, without, false, "a state without one, where there is one,");

    // one value of a constant, broken
    struct bytes bytes = read_bytes(with);
    size_t mark = 0;
    while (mark + 12 < bytes.n && memcmp(bytes.at + mark, "kfvc", 4) != 0) {
        mark++;
    }
    memset(bytes.at + mark + 8, 0xff, 4);
    write_bytes(with, bytes.at, bytes.n);
    free(bytes.at);
    ctx = open_for(subject, 1);
    errors[0] = 0;
    expect(!load_sequence(ctx, with, 0) && strstr(errors, "not a number") && llama_kvforge_centre_id(ctx) == 0, "a constant that is not a number is refused");
    llama_free(ctx);
}

// Cut off after its first stream, or its first of two caches, which by then have what
// they need to take over the constants: nothing is taken over, and what was built
// before still computes.
static void cut_off(const struct subject * subject, const char * path) {
    struct llama_context_params params = settings(subject);
    params.n_seq_max  = 2;
    params.kv_unified = false;
    struct llama_context * from = open_with(subject, params);
    CHECK(llama_kvforge_set_calibration(from, path));
    feed_prompt(from, subject, 0, 0);
    feed_prompt(from, subject, 0, 1);
    struct bytes state = { NULL, llama_state_get_size(from) };
    state.at = malloc(state.n);
    CHECK(llama_state_get_data(from, state.at, state.n) == state.n);
    llama_free(from);

    struct llama_context * ctx = open_with(subject, params);
    feed_prompt(ctx, subject, 0, 0);
    const struct run expected = continue_prompt(ctx, subject);
    for (int tenths = 3; tenths < 10; tenths += 2) {
        const bool set = llama_state_set_data(ctx, state.at, state.n / 10 * tenths) != 0;
        expect(!set && llama_kvforge_centre_id(ctx) == 0, "%d tenths of a state are refused, and no constant is taken over", tenths);
        llama_memory_clear(llama_get_memory(ctx), true);
        feed_prompt(ctx, subject, 0, 0);
        const struct run run = continue_prompt(ctx, subject);
        expect_identical(&run, &expected, "after a state that is cut off");
    }
    CHECK(llama_state_set_data(ctx, state.at, state.n) == state.n);
    expect(llama_kvforge_centre_id(ctx) != 0, "the whole of it is taken over");
    llama_free(ctx);
    free(state.at);
}

static void refused(struct llama_context * ctx, const char * path, const char * reason, const char * what) {
    errors[0] = 0;
    const uint64_t before = llama_kvforge_centre_id(ctx);
    const bool set = llama_kvforge_set_calibration(ctx, path);
    expect(!set && strstr(errors, path) && strstr(errors, reason) && llama_kvforge_centre_id(ctx) == before, "refused: %s", what);
}

static void refusals(const struct subject * subject, const char * path, const char * folder) {
    char damaged[4096];
    snprintf(damaged, sizeof(damaged), "%s/damaged.kvcal", folder);
    struct bytes bytes = read_bytes(path);

    struct llama_context * ctx = open_for(subject, 1);
    const struct run expected = run_of(ctx, subject);
    refused(ctx, path, "already holds keys", "a cache that holds keys");
    llama_memory_clear(llama_get_memory(ctx), true);
    refused(ctx, foreign, "another model", "the calibration of another model");
    refused(ctx, "no-such.kvcal", "cannot be opened", "no file");
    write_bytes(damaged, bytes.at, bytes.n / 2);
    refused(ctx, damaged, "", "half a file");
    write_bytes(damaged, bytes.at, 0);
    refused(ctx, damaged, "", "an empty file");
    bytes.at[bytes.n - 1] ^= 1;
    write_bytes(damaged, bytes.at, bytes.n);
    refused(ctx, damaged, "", "one bit turned");
    bytes.at[bytes.n - 1] ^= 1;
    bytes.at[8] = 2;
    write_bytes(damaged, bytes.at, bytes.n);
    refused(ctx, damaged, "version", "a version to come");
    free(bytes.at);

    const struct run run = run_of(ctx, subject);
    expect_identical(&run, &expected, "after refused calibrations");
    llama_free(ctx);
}

int main(int argc, char ** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: centre MODEL CALIBRATION FOREIGN_CALIBRATION FOLDER\n");
        return 2;
    }
    llama_log_set(keep_errors, NULL);
    llama_backend_init();
    ggml_backend_load_all();

    const char * path = argv[2];
    foreign = argv[3];
    struct subject subject = { .type_k = type_by_name("tbq4_0"), .type_v = type_by_name("tbq4_0") };
    subject.model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!subject.model) {
        give_up("the model cannot be loaded");
    }
    subject.n_prompt = llama_tokenize(llama_model_get_vocab(subject.model), TEXT, sizeof(TEXT) - 1, subject.prompt, CELLS, true, false);

    unseen(&subject, path);
    shifted(&subject, path);
    states(&subject, path, argv[4]);
    subject.type_k = subject.type_v = GGML_TYPE_Q4_0; // a stock type, behind the graph's rotation
    states(&subject, path, argv[4]);
    cut_off(&subject, path);
    refusals(&subject, path, argv[4]);

    llama_model_free(subject.model);
    llama_backend_free();
    return report();
}
