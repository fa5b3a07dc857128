// What ggml calls a type.
#pragma once

#include "ggml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline enum ggml_type type_by_name(const char * name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char * found = ggml_type_name((enum ggml_type) type);
        if (found && strcmp(found, name) == 0) {
            return (enum ggml_type) type;
        }
    }
    fprintf(stderr, "this ggml has no type %s\n", name);
    exit(2);
}
