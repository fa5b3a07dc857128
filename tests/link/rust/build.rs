//! Links ggml from a build folder of a shipped tree: KVFORGE_BUILD names it,
//! KVFORGE_LINK says how (static, shared, or loaded: backends come at run time).

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=KVFORGE_BUILD");
    println!("cargo:rerun-if-env-changed=KVFORGE_LINK");
    let build =
        env::var("KVFORGE_BUILD").expect("KVFORGE_BUILD names the build folder of a shipped tree");
    match env::var("KVFORGE_LINK").as_deref() {
        Ok("static") => {
            println!("cargo:rerun-if-changed={build}/ggml/src/libggml-base.a");
            println!("cargo:rustc-link-search=native={build}/ggml/src");
            for library in ["ggml", "ggml-cpu", "ggml-base"] {
                println!("cargo:rustc-link-lib=static={library}");
            }
            for library in ["stdc++", "gomp"] {
                println!("cargo:rustc-link-lib={library}");
            }
        }
        Ok("shared" | "loaded") => {
            println!("cargo:rustc-link-search=native={build}/bin");
            println!("cargo:rustc-link-arg=-Wl,-rpath,{build}/bin");
            for library in ["ggml", "ggml-base"] {
                println!("cargo:rustc-link-lib=dylib={library}");
            }
        }
        other => panic!("KVFORGE_LINK is {other:?}, but must be static, shared or loaded"),
    }
}
