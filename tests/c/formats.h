// What the programs share: the formats that the library says it has, and memory.
#pragma once

#include "check.h"
#include "kvforge.h"

#include <stdbool.h>
#include <string.h>

static struct kvf_format_info formats[16];
static uint32_t n_formats;

// A head size that fits every format.
enum { DIM = 128 };

static const uint32_t isas[] = { KVF_ISA_SCALAR, KVF_ISA_AVX2 };
enum { N_ISAS = sizeof(isas) / sizeof(*isas) };

static inline void * aligned_memory(size_t size) {
    void * memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!memory) {
        abort();
    }
    memset(memory, 0, size);
    return memory;
}

static inline void fill(float * x, size_t n, unsigned long long seed) {
    for (size_t i = 0; i < n; i++) {
        x[i] = gaussian(&seed);
    }
}

static inline bool untouched(const void * memory, size_t n, unsigned char with) {
    const unsigned char * bytes = memory;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != with) {
            return false;
        }
    }
    return true;
}

// Asks for all formats; true if that went well.
static inline bool load_formats(void) {
    while (n_formats < 16 && kvf_format_info(n_formats, &formats[n_formats]) == KVF_OK) {
        n_formats++;
    }
    return n_formats > 0 && n_formats < 16;
}

// where a kernel counts that is asked for by `isa`: its name says which one serves
static inline uint64_t counted(const struct kvf_format_info * f, uint32_t op, uint32_t isa, uint32_t slot) {
    const char * name = kvf_kernel_name(f->id, op, isa);
    return kvf_counter(f->id, op, strstr(name, "/scalar") ? KVF_ISA_SCALAR : isa, slot);
}

// Whether this machine has it; what is left out is said once a format.
static inline bool has_isa(const struct kvf_format_info * f, uint32_t isa) {
    if (kvf_isa_resolve(isa) != 0) {
        return true;
    }
    printf("not run: %s: this machine has no %s\n", f->name, kvf_isa_name(isa));
    return false;
}
