// kvforge.h in a C++ program: it compiles, links and finds the same library.

#include "kvforge.h"

#include <cstdio>
#include <cstring>

int main() {
    struct kvf_format_info info;
    const struct kvf_api * api = kvf_api(KVF_API_VERSION);
    if (!api || api->format_info(0, &info) != KVF_OK || api->struct_size != sizeof(struct kvf_api)) {
        return 1;
    }
    const char * name = api->kernel_name(info.id, KVF_OP_ATTEND, KVF_ISA_SCALAR);
    const bool right = name && std::strncmp(name, info.name, std::strlen(info.name)) == 0;
    std::printf("%d checks passed, %d checks failed\n", right, !right);
    return !right;
}
