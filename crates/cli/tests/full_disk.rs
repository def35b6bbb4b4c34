//! A disk without room, as the kernel says it: a quota on it is used up (`EDQUOT`), or it is full (`ENOSPC`). Put in by `strace`.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use slackline_bench::live::get;

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
    start_without_room("EDQUOT");
}

#[test]
fn full_disk_at_the_first_start_is_waited_out_until_there_is_room() {
    start_without_room("ENOSPC");
}

fn start_without_room(error: &str) {
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
    // The first five tries of each thread find no room, the later ones do: the site itself opens its table first.
    let inject = format!("inject=fallocate:error={error}:when=1..5");
    let traced = ["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate", "-e", &inject];
    let words = ["serve", "--json", "--config", path.to_str().expect("a path of this test")];
    let mut server = Server::start_traced(&traced, &words);
    server.connect = server.said["address"].as_str().expect("it listens").to_owned();

    let site = |server: &Server| server.run(&["status", "--json"]).json()["sites"][0].clone();
    let told = eventually("it is full", || site(&server), |site| site["up"] == true);
    assert_eq!((&told["ready"], &told["because"]), (&false.into(), &"storage_full".into()), "{told}");
    let http: SocketAddr = server.said["http"].as_str().expect("an address").parse().expect("an address");
    let health = get(http, "/healthz").expect("it is served");
    let full = "{\"live\":true,\"ready\":false,\"because\":\"storage_full\",\"waiting_for\":[]}\n";
    assert!(health.starts_with("HTTP/1.1 503") && health.ends_with(full), "{health}");
    let text = server.run(&["status"]).stdout;
    assert!(text.contains("storage_full"), "{text}");

    eventually("there is room", || site(&server), |site| site["ready"] == true);
    assert!(get(http, "/healthz").expect("it is served").starts_with("HTTP/1.1 200"));
    let created = server.run(&["quota", "create", "gpus", "--limit", "10"]);
    assert_eq!(created.status, 0, "{created:?}");
    server.kill();
}
