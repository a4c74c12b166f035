//! Threads and tasks without which the process cannot work: a panic in one of them ends the
//! process.
//!
//! A panic is a bug. In the work for one connection or query, a panic ends only this connection or
//! query, because the surrounding code catches the panic. But without its writer, or without the
//! thread that seals heads, a process would accept connections and never answer a write. The thread
//! that panicked may also have left its data in an invalid state. All acknowledged writes are
//! durable, and a restart is quick, so the process ends at once. It does no cleanup, because a
//! cleanup could wait for the thread that is gone. systemd, or another supervisor, starts the
//! process again.

use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread whose panic ends the process.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let own = name.to_owned();
    Builder::new().name(name.into()).spawn(move || run(&own, work))
}

/// Runs `work`. If `work` panics, the process ends.
pub fn run<T>(name: &str, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| end(name))
}

/// Ends the process because the thread or task `name` has panicked.
pub fn end(name: &str) -> ! {
    // If this write fails, there is no other way to report the panic.
    let _ = writeln!(
        io::stderr(),
        "hark: {name} failed (a bug; what it said is above), and nothing works without it: the process \
         ends. What was acknowledged is safe"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::sync::Arc;

    use hark_codec::record::{self, LabelPosition, Record, RecordHeader};

    use crate::effects::{Effects, Rules};
    use crate::store::Write;
    use crate::store::memory::MemoryStore;
    use crate::writer::{Writer, WriterOptions};

    struct Broken;

    impl Rules for Broken {
        fn forbids(&self, _: u32) -> bool {
            false
        }

        fn effects(&self, _: &Record<'_>, _: &mut Effects) {
            panic!("a bug")
        }
    }

    /// Runs `test` alone in a new process that has the environment variable [`INNER`].
    fn in_a_process_of_its_own(test: &str) -> std::process::Output {
        let this = std::env::current_exe().expect("has a path");
        let mut child = Command::new(this);
        child.args(["--exact", test, "--nocapture"]).env(INNER, "1");
        child.output().expect("runs")
    }

    const INNER: &str = "HARK_TEST_INNER";

    #[test]
    fn a_writer_that_panics_ends_the_process() {
        if std::env::var_os(INNER).is_none() {
            let child =
                in_a_process_of_its_own("vital::tests::a_writer_that_panics_ends_the_process");
            let said = String::from_utf8_lossy(&child.stderr).into_owned();
            assert_eq!(child.status.signal(), Some(6), "{said}");
            assert!(said.contains("hark-writer failed"), "{said}");
            return;
        }
        let writer = Writer::start(
            Arc::new(MemoryStore::new(Broken)),
            WriterOptions::default(),
            Box::new(()),
        );
        let head = RecordHeader { id: [1; 32], time: 1, author: None, kind: 1, expires: None };
        let mut bytes = Vec::new();
        record::write(&mut bytes, &head, b"", std::iter::empty::<(u8, LabelPosition<'_>)>());
        let outcome = writer.write(Write::Put(bytes.into()));
        eprintln!("the process goes on: {outcome:?}, {:?}", writer.counters().stopped.get());
    }
}
