//! A quota on the disk that is used up, as the kernel says it (`EDQUOT`), put in by `strace`.

use std::process::{Command, Stdio};

use crate::eventually;
use crate::process::{Server, free_ports};

/// Whether processes can be traced here.
fn can_trace() -> bool {
    let mut traced = Command::new("strace");
    traced
        .args(["-qq", "-e", "trace=fallocate", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn used_up_quota_at_the_first_start_is_a_full_disk_until_there_is_room() {
    if !can_trace() {
        eprintln!("LEFT OUT: strace is not there, or may not trace; nothing was tested");
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let (path, port) = (folder.path().join("site.toml"), free_ports(1)[0]);
    let text = format!(
        "cluster = \"test\"\nregions = [\"us\"]\nregion = \"us\"\ndata = {:?}\nlisten = \"127.0.0.1:{port}\"\n\
         http = \"127.0.0.1:0\"\nsites = [{{ region = \"us\", address = \"127.0.0.1:{port}\" }}]\n",
        folder.path().join("data")
    );
    std::fs::write(&path, text).expect("written");
    // The first four tries of each thread find no room, the later ones do: the site itself opens its table first.
    let inject = "inject=fallocate:error=EDQUOT:when=1..4";
    let traced = ["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate", "-e", inject];
    let words = ["serve", "--json", "--config", path.to_str().expect("a path of this test")];
    let mut server = Server::start_traced(&traced, &words);
    server.connect = server.said["address"].as_str().expect("it listens").to_owned();

    let site = |server: &Server| server.run(&["status", "--json"]).json()["sites"][0].clone();
    let told = eventually("it is full", || site(&server), |site| site["up"] == true);
    assert_eq!((&told["ready"], &told["because"]), (&false.into(), &"storage_full".into()), "{told}");
    let text = server.run(&["status"]).stdout;
    assert!(text.contains("storage_full"), "{text}");

    eventually("there is room", || site(&server), |site| site["ready"] == true);
    let created = server.run(&["quota", "create", "gpus", "--limit", "10"]);
    assert_eq!(created.status, 0, "{created:?}");
    server.kill();
}
