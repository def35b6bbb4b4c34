//! Compiles the protocol definitions with a compiler in Rust, so that nothing but a Rust toolchain is needed.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet, field_descriptor_proto};
use tonic_prost_build::Config;

fn main() -> Result<(), Box<dyn error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let files = ["slackline/v1/slackline.proto", "slackline/internal/v1/peer.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // What gRPC reflection hands out: the public interface alone.
    let public = protox::compile(&files[..1], ["proto"])?;
    fs::write(out.join("slackline_v1.bin"), public.encode_to_vec())?;
    fs::write(out.join("messages.rs"), messages(&descriptors))?;

    // What is rare and large does not make what is frequent larger.
    let rare = [".slackline.v1.Operation.transaction", ".slackline.v1.Outcome.result.aborted"];
    let config = rare.iter().fold(tonic_prost_build::configure(), |config, path| config.boxed(path));
    // Values are shared with what core holds: they are encoded without a copy before.
    let config = config.bytes(".slackline.v1.Value").bytes(".slackline.v1.Derived");
    // What is large is looked at before it is decoded, by its name in the table of messages.
    let mut named = Config::new();
    named.enable_type_names();
    config.codec_path("crate::codec::Counting").compile_fds_with_config(descriptors, named)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}

/// The messages in the order of their names, each with its fields that hold messages, and how many it has in all, as a Rust table.
fn messages(descriptors: &FileDescriptorSet) -> String {
    let in_file = |file: &FileDescriptorProto| {
        let package = file.package().to_owned();
        file.message_type.clone().into_iter().map(move |message| (format!("{package}.{}", message.name()), message))
    };
    let mut messages: Vec<(String, DescriptorProto)> = descriptors.file.iter().flat_map(in_file).collect();
    messages.sort_by(|(one, _), (other, _)| one.cmp(other));

    let place = |name: &str| {
        let found = messages.binary_search_by(|(other, _)| other.as_str().cmp(name.trim_start_matches('.')));
        found.expect("no message stands within another one")
    };
    let mut table = String::from("&[\n");
    for (name, message) in &messages {
        let held = message.field.iter().filter(|field| field.r#type() == field_descriptor_proto::Type::Message);
        let held: Vec<(i32, usize)> = held.map(|field| (field.number(), place(field.type_name()))).collect();
        table += &format!("    Described {{ name: {name:?}, fields: {}, holds: &{held:?} }},\n", message.field.len());
    }
    table + "]\n"
}
