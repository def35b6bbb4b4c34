//! Compiles the protocol definitions with a compiler in Rust, so that nothing but a Rust toolchain is needed.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let files = ["slackline/v1/slackline.proto", "slackline/internal/v1/peer.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // What gRPC reflection hands out: the public interface alone.
    let public = protox::compile(&files[..1], ["proto"])?;
    fs::write(out.join("slackline_v1.bin"), public.encode_to_vec())?;
    // What is rare and large does not make what is frequent larger.
    let rare = [".slackline.v1.Operation.transaction", ".slackline.v1.Outcome.result.aborted"];
    let config = rare.iter().fold(tonic_prost_build::configure(), |config, path| config.boxed(path));
    // Values are shared with what core holds: they are encoded without a copy before.
    config.bytes(".slackline.v1.Value").bytes(".slackline.v1.Derived").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
