//! A real client: wnode, the Whisper node of go-ethereum 1.9.20, the last version with Whisper. If
//! wnode cannot be installed, the test prints a line and ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use hark_testkit::clock::now_s;
use hark_testkit::skipped::skip;
use hark_testkit::wait::until;
use parking_lot::Mutex;

use super::MailNode;
use crate::go_program::go_program;

/// A connected wnode.
struct Wnode {
    child: Child,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
}

impl Wnode {
    fn start(program: &Path, node: &MailNode, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        // -test: passwords and topic are "wwww".
        command.args(["-test", "-boot", &node.enode]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("wnode runs");
        let (input, lines) = (child.stdin.take().expect("piped"), child.stdout.take());
        let output = Arc::<Mutex<String>>::default();
        let written = Arc::clone(&output);
        std::thread::spawn(move || {
            for line in BufReader::new(lines.expect("piped")).lines().map_while(Result::ok) {
                *written.lock() += &(line + "\n");
            }
        });
        let wnode = Self { child, input, output };
        until("wnode is connected", || wnode.has("Filter is configured"));
        wnode
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("wnode reads");
    }

    fn has(&self, text: &str) -> bool {
        self.output.lock().contains(text)
    }
}

impl Drop for Wnode {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn wnode_posts_messages_and_gets_all_back_after_they_expired() {
    let Some(folder) = go_program("wnode") else {
        skip("wnode cannot be installed, which takes Go and its module proxy");
        return;
    };
    let program = folder.join("wnode");
    let node = MailNode::start("wnode", &[("pow_min", "0.2"), ("password", "wwww")]);
    let began = now_s();
    let mut poster = Wnode::start(&program, &node, &["-ttl", "3", "-work", "2"]);
    let stored = |count| node.hashes("{}").len() == count;
    poster.type_line("the first message");
    until("one is stored", || stored(1));
    // The next messages must have a later time, in whole seconds.
    let first = now_s();
    until("a second has passed", || now_s() > first + 1);
    for text in ["the second message", "the third message"] {
        poster.type_line(text);
    }
    until("all are stored", || stored(3));
    drop(poster);
    let sent = now_s();
    until("they have expired", || now_s() > sent + 4);

    let mut reader = Wnode::start(&program, &node, &["-mailclient"]);
    // The answers to the reader's prompts for the start, the end and the topic. They request all
    // messages up to the first.
    for line in [began.to_string(), first.to_string(), String::new()] {
        reader.type_line(&line);
    }
    until("the first one is back", || reader.has("the first message"));
    for line in [began.to_string(), sent.to_string(), String::new()] {
        reader.type_line(&line);
    }
    until("all are back", || reader.has("the second message") && reader.has("the third message"));
}
