// Centred keys, through libllama: the softmax does not see the constant, a state
// carries it, an empty cache takes it over, a shift turns whole keys, and what
// does not fit is refused with a reason and changes nothing.
//
// Usage: centre MODEL CALIBRATION FOREIGN_CALIBRATION FOLDER

#include "run.h"
#include "state_files.h"
#include "type_by_name.h"

#include "llama-kvforge.h"

#define ROUND "The harbour master wrote down each ship, its cargo and its captain. "
static const char TEXT[] = ROUND "Seven of them came from the north. " ROUND "Nobody had seen the eighth";

// How far sums that are rounded in another way may move a logit of a cache in fp32.
static const double ROUNDING = 0.02;

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

// Keys in fp32 lose nothing by being centred or not.
static void unseen(struct subject subject, const char * path) {
    subject.type_k = subject.type_v = GGML_TYPE_F32;
    struct llama_context * ctx = open_for(&subject, 1);
    const struct run expected = run_of(ctx, &subject);
    expect(llama_kvforge_centre_id(ctx) == 0, "without a calibration there is no centre");
    llama_free(ctx);

    ctx = open_centred(&subject, 1, path);
    const struct run centred = run_of(ctx, &subject);
    const double moved = distance(&centred, &expected);
    expect(alike(&centred, &expected) == TOKENS && moved < ROUNDING, "the softmax does not see the centre: logits moved by %.3g", moved);
    expect(moved > 0, "control: the centre is there: sums are rounded in another way");

    // half of the keys with another constant than the rest: what must never be
    llama_memory_clear(llama_get_memory(ctx), true);
    const int half = subject.n_prompt / 2;
    feed(ctx, subject.prompt, half, 0, 0);
    struct bytes state = { NULL, llama_state_seq_get_size(ctx, 0) };
    state.at = malloc(state.n);
    CHECK(llama_state_seq_get_data(ctx, state.at, state.n, 0) == state.n);
    llama_free(ctx);
    ctx = open_for(&subject, 1);
    CHECK(llama_state_seq_set_data(ctx, state.at, state.n, 0) > 0);
    const uint64_t taken = llama_kvforge_centre_id(ctx);
    expect(taken != 0, "an empty cache takes over the centre of a state");
    feed(ctx, subject.prompt + half, subject.n_prompt - 1 - half, half, 0);
    const struct run adopted = continue_prompt(ctx, &subject);
    expect(alike(&adopted, &expected) == TOKENS && distance(&adopted, &expected) < ROUNDING, "and goes on with it: logits moved by %.3g",
        distance(&adopted, &expected));
    llama_free(ctx);
    free(state.at);
}

// Positions moved on and back, in fp32: a key is turned whole.
static void shifted(struct subject subject, const char * path, enum ggml_type type_k, double bound) {
    enum { BY = 64 };
    subject.type_k = type_k;
    subject.type_v = GGML_TYPE_F32;
    struct run runs[2];
    for (int centred = 0; centred < 2; centred++) {
        struct llama_context * ctx = centred ? open_centred(&subject, 1, path) : open_for(&subject, 1);
        feed_prompt(ctx, &subject, BY, 0);
        llama_memory_seq_add(llama_get_memory(ctx), 0, 0, -1, -BY);
        runs[centred] = continue_prompt(ctx, &subject);
        llama_free(ctx);
    }
    expect(alike(&runs[0], &runs[1]) == TOKENS && distance(&runs[0], &runs[1]) < bound, "%s keys shifted by %d: logits moved by %.3g",
        ggml_type_name(type_k), BY, distance(&runs[0], &runs[1]));
}

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

    unseen(subject, path);
    shifted(subject, path, GGML_TYPE_F32, ROUNDING);
    shifted(subject, path, GGML_TYPE_F16, 0.2);
    shifted(subject, path, GGML_TYPE_Q8_0, 1.0);
    states(&subject, path, argv[4]);
    subject.type_k = subject.type_v = GGML_TYPE_Q4_0; // a stock type, behind the graph's rotation
    states(&subject, path, argv[4]);
    refusals(&subject, path, argv[4]);

    llama_model_free(subject.model);
    llama_backend_free();
    return report();
}
