# kvforge in ggml: the Rust kernels become ONE object file, and that object
# goes into ggml-base, once. ggml-cpu and every other backend reach the kernels
# through the table that ggml-base exports (ggml_kvforge_api), so it makes no
# difference how ggml itself is linked: shared, static, or with backends that
# are loaded at run time.
#
# The object has no Rust runtime in it (no_std, panic=abort) and, thanks to fat
# LTO, no visible symbol but kvf_*: it can live in a process that already
# contains Rust. rustc is called directly, not through cargo, because there are
# no dependencies to resolve and ninja then knows exactly what to rebuild.
#
#   -DKVFORGE_OBJECT=file   a prebuilt object, for machines without rustc
#   -DKVFORGE_RUST_TARGET=t the rustc target when cross-compiling

# in the cache, because src/ calls a function of this file as well
set(KVFORGE_DIR ${CMAKE_CURRENT_LIST_DIR} CACHE INTERNAL "kvforge: its folder in this tree")
set(KVFORGE_OBJECT "" CACHE FILEPATH "kvforge: prebuilt kernel object (empty: compile it with rustc)")
set(KVFORGE_RUST_TARGET "" CACHE STRING "kvforge: rustc target triple (empty: the host)")

function(kvforge_build_object out)
    find_program(KVFORGE_RUSTC rustc HINTS $ENV{HOME}/.cargo/bin)
    if (NOT KVFORGE_RUSTC)
        message(FATAL_ERROR "kvforge: rustc was not found. Install Rust 1.95 or newer "
            "(rustup, or your system's packages), or pass -DKVFORGE_OBJECT=<kernel object built elsewhere>.")
    endif()

    set(flags --edition 2024 -C opt-level=3 -C panic=abort -C codegen-units=1 --cap-lints allow)
    if (KVFORGE_RUST_TARGET)
        list(APPEND flags --target ${KVFORGE_RUST_TARGET})
    endif()
    set(lib_dir ${CMAKE_CURRENT_BINARY_DIR}/kvforge)
    file(MAKE_DIRECTORY ${lib_dir})

    # each crate sees the ones before it
    set(externs "")
    set(rlibs "")
    foreach (crate formats calibration cpu capi)
        file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${KVFORGE_DIR}/rust/${crate}/src/*)
        set(rlib ${lib_dir}/libkvforge_${crate}.rlib)
        add_custom_command(
            OUTPUT  ${rlib}
            COMMAND ${KVFORGE_RUSTC} ${flags} --crate-name kvforge_${crate} --crate-type rlib ${externs}
                    -L dependency=${lib_dir} -o ${rlib} ${KVFORGE_DIR}/rust/${crate}/src/lib.rs
            DEPENDS ${sources} ${rlibs}
            COMMENT "kvforge: compiling the ${crate} crate"
            VERBATIM)
        list(APPEND externs --extern kvforge_${crate}=${rlib})
        list(APPEND rlibs ${rlib})
    endforeach()

    set(leaf   ${KVFORGE_DIR}/rust/link/src/lib.rs)
    set(object ${lib_dir}/kvforge${CMAKE_C_OUTPUT_EXTENSION})
    add_custom_command(
        OUTPUT  ${object}
        # rustc only merges the crates into one object when it is asked for the
        # archive as well; the archive itself is not used
        COMMAND ${KVFORGE_RUSTC} ${flags} -C lto=fat --crate-name kvforge --crate-type staticlib ${externs}
                -L dependency=${lib_dir} --emit=obj=${object},link=${lib_dir}/libkvforge.a ${leaf}
        DEPENDS ${leaf} ${rlibs}
        COMMENT "kvforge: linking the kernels into one object"
        VERBATIM)
    set(${out} ${object} PARENT_SCOPE)
endfunction()

# puts the kernels and the glue that exports them into ggml-base
function(kvforge_add_to_base target)
    set(object ${KVFORGE_OBJECT})
    if (NOT object)
        kvforge_build_object(object)
    elseif (NOT EXISTS ${object})
        message(FATAL_ERROR "kvforge: KVFORGE_OBJECT=${object} does not exist.")
    endif()
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${target} PRIVATE
        ${object}
        ${KVFORGE_DIR}/ggml-kvforge.c
        ${KVFORGE_DIR}/ggml-kvforge-ops.c
        ${KVFORGE_DIR}/ggml-kvforge-cache.cpp
        ${KVFORGE_DIR}/ggml-kvforge.h
        ${KVFORGE_DIR}/kvforge.h)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${KVFORGE_DIR}>)
endfunction()

# puts the operations into a CPU backend; with GGML_CPU_ALL_VARIANTS there are
# several, and the same kernels serve all of them
function(kvforge_add_to_cpu target)
    target_sources(${target} PRIVATE
        ${KVFORGE_DIR}/ggml-kvforge-cpu.cpp
        ${KVFORGE_DIR}/ggml-kvforge-score.cpp
        ${KVFORGE_DIR}/ggml-kvforge-work.h)
endfunction()

# puts what llama.h gains into libllama, and beside it the program that looks at a
# model's keys
function(kvforge_add_to_llama target)
    set(sources ${KVFORGE_DIR}/llama-kvforge-centre.cpp ${KVFORGE_DIR}/llama-kvforge-keys.cpp
        ${KVFORGE_DIR}/llama-kvforge-window.cpp ${KVFORGE_DIR}/llama-kvforge-window-graph.cpp)
    target_sources(${target} PRIVATE ${sources} ${KVFORGE_DIR}/llama-kvforge.h)
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    if (LLAMA_BUILD_TOOLS)
        add_executable(llama-kvforge-probe ${KVFORGE_DIR}/llama-kvforge-probe.cpp)
        target_include_directories(llama-kvforge-probe PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
        target_link_libraries(llama-kvforge-probe PRIVATE ${target})
        target_compile_features(llama-kvforge-probe PRIVATE cxx_std_17)
    endif()
endfunction()
