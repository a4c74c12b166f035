//! Takeovers that are disturbed at each step, on either side.

use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hark_archive::{Id, Store as _};
use hark_testkit::http::get;
use hark_testkit::nostr::publish;
use hark_testkit::program::Process;
use hark_testkit::wait::{until, until_ok};
use hark_testkit::websocket::Socket;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::between::{Between, Said};
use super::{check, event, finds, place, reader, send_text};
use crate::served::Place;
use crate::served::hark;

/// Timeouts as short as a loaded machine allows.
const QUICK: &str = "[limits]\ntakeover_wait_ms = 1000\ndrain_timeout_ms = 500\n";
/// A limit above the time that a server may take to end after a signal.
const END: Duration = Duration::from_secs(30);

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is there");
}

/// Starts a server that will take over, and does not wait for its output.
fn takes_over(place: &Place) -> Process {
    let mut command = place.serving(&["--unlimited", "--takeover"]);
    command.stdout(Stdio::null()).spawn().expect("runs")
}

/// Publishes an event, and returns its id. `None` without an OK.
fn kept(address: &str, content: &str) -> Option<Id> {
    let mut socket = Socket::try_connect(address).ok()?;
    let (message, id) = event(true, content);
    socket.writer().send_text(&message).ok()?;
    let text = String::from_utf8(socket.receive()?).expect("is text");
    (text.starts_with("[\"OK\"") && text.contains(",true,")).then_some(id)
}

/// Waits until the server stores an event, and returns its id. `None` if the server has ended.
fn serves_or_ends(child: &mut Child, address: &str) -> Option<Id> {
    let mut tries = 0;
    until_ok(|| {
        tries += 1;
        let found = kept(address, &format!("is there one? {tries}"));
        let has_ended = child.try_wait().expect("is there").is_some();
        if found.is_some() || has_ended { Ok(found) } else { Err("it neither serves nor ends") }
    })
}

/// Waits until `/healthz` answers with this status, and returns the text of the answer.
fn healthy(address: &str, status: u16) -> String {
    until_ok(|| {
        let reply = get(address, "/healthz");
        if reply.status == status { Ok(reply.text()) } else { Err(reply.text()) }
    })
}

/// The process that the test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Old,
    New,
}

/// The step at which the process is ended: while this message is held back. `None` means after the
/// last message.
type Step = Option<Said>;

/// Ends one of two servers at a step, while clients publish. Returns whether the other server
/// served afterwards.
fn disturbed(step: Step, who: Who, how: Signal) -> bool {
    let name = format!("steps-{step:?}-{who:?}-{}", how.as_raw());
    let place = place(&name.replace(['(', ')'], ""), QUICK);
    let mut old = place.start();
    let address = old.address.clone();
    let acknowledged = Mutex::new(Vec::new());
    let served = std::thread::scope(|scope| {
        let acknowledged = &acknowledged;
        let socket = Socket::connect(&address);
        let loading = scope.spawn(move || {
            let mut numbers = 0..20_000;
            let next = || {
                std::thread::sleep(Duration::from_micros(300));
                numbers.next().map(|n: u32| event(true, &format!("load {n}")).0)
            };
            publish(socket, 64, next, |id, verdict| {
                if verdict.starts_with(b"\",true") {
                    acknowledged.lock().expect("no panic").push(id);
                }
            });
        });
        let between = Between::come(&place.data());
        let mut new = takes_over(&place);
        let paused = between.hold(step.unwrap_or(Said::Started));
        let paused = if step.is_some() {
            Some(paused)
        } else {
            paused.pass();
            // The signal must come after the start, when the new process is the server.
            healthy(&address, 200);
            None
        };
        let ended = if who == Who::Old { &mut old.process } else { &mut new };
        signal(ended, how);
        let ends_itself = ended.wait_for_end(END).is_some();
        if !ends_itself {
            println!("{name}: it does not end");
        }
        if let Some(paused) = paused {
            // Messages sent before the process ended still arrive. Unsent messages do not.
            if who == Who::New && step != Some(Said::Started) {
                paused.lose();
            } else {
                paused.pass();
            }
        }
        let other = if who == Who::Old { &mut new } else { &mut old.process };
        let found = serves_or_ends(other, &address);
        let served = found.is_some();
        acknowledged.lock().expect("no panic").extend(found);
        for n in 0..if served { 20 } else { 0 } {
            let id = kept(&address, &format!("after {n}")).expect("it goes on serving");
            acknowledged.lock().expect("no panic").push(id);
        }
        drop((old, new));
        loading.join().expect("no panic");
        assert!(ends_itself, "{name}: it was asked to end");
        served
    });
    let server = place.start();
    check(&place, &acknowledged.into_inner().expect("no panic"));
    drop(server);
    served
}

#[test]
fn whichever_is_ended_at_whichever_step_one_serves_and_nothing_is_lost() {
    let steps = [Said::Takeover, Said::Handed, Said::Ready, Said::Go, Said::Started];
    let steps = || steps.into_iter().map(Some).chain([None]);
    let ways = [Signal::TERM, Signal::KILL];
    let cases: Vec<_> = steps()
        .flat_map(|step| [Who::Old, Who::New].map(|who| (step, who)))
        .flat_map(|(step, who)| ways.map(|how| (step, who, how)))
        .collect();
    let (next, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (step, who, how) = *case;
                    let must = match who {
                        // If the old process ends at TAKEOVER, the new process need not serve, as
                        // it has received nothing yet.
                        Who::Old => step != Some(Said::Takeover),
                        Who::New => step.is_some_and(|step| step != Said::Started),
                    };
                    // A failed case is printed, and the other cases run as well.
                    let went_on = std::panic::catch_unwind(|| disturbed(step, who, how));
                    served.fetch_add(usize::from(matches!(went_on, Ok(true))), Ordering::Relaxed);
                    if !went_on.is_ok_and(|went_on| went_on || !must) {
                        failed.lock().expect("no panic").push(*case);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "something is lost, or nobody serves: {failed:?}");
    println!("{} cases; in {} the other one served", cases.len(), served.into_inner());
}

/// Tests a new server that hangs once it has the right to write, so that the old server cannot know
/// whether the new server will write.
fn hangs(comes_back: bool) {
    let place = place(if comes_back { "hangs" } else { "hangs-and-ends" }, QUICK);
    let mut old = place.start();
    let address = old.address.clone();
    let mut socket = Socket::connect(&address);
    let mut ids = vec![send_text(&mut socket, true, "before")];
    let between = Between::come(&place.data());
    let new = takes_over(&place);
    let paused = between.hold(Said::Started);
    signal(&new, Signal::STOP);
    let (message, refused) = event(true, "refused");
    socket.send_text(&message);
    let answer = socket.json();
    let reason = answer[3].as_str().expect("a reason");
    let pid = format!("process {} ", new.id());
    assert!(answer[2] == json!(false) && reason.contains(&pid), "{answer}");
    let said = healthy(&address, 503);
    assert!(said.contains(&pid) && said.contains("has not come to write"), "{said}");
    // Queries are answered during the whole time.
    finds(&mut socket, &ids[0]);
    if comes_back {
        signal(&new, Signal::CONT);
        paused.pass();
    } else {
        signal(&new, Signal::KILL);
        paused.lose();
    }
    healthy(&address, 200);
    ids.push(send_text(&mut socket, true, "after"));
    finds(&mut socket, &ids[1]);
    check(&place, &ids);
    assert!(!reader(&place).knows(&refused).expect("answers"), "it was refused");
    drop(socket);
    if comes_back {
        assert!(old.wait().expect("ends").success());
    }
}

#[test]
fn who_takes_over_and_hangs_is_waited_for_and_healthz_says_so() {
    std::thread::scope(|scope| {
        scope.spawn(|| hangs(true));
        scope.spawn(|| hangs(false));
    });
}

#[test]
fn who_comes_back_too_late_does_not_write() {
    let place = place("comes-late", QUICK);
    let mut old = place.start();
    let between = Between::come(&place.data());
    let mut late = takes_over(&place);
    let paused = between.hold(Said::Go);
    let mut socket = Socket::connect(&old.address);
    // The event waits for its OK until the old server continues.
    let mut ids = vec![send_text(&mut socket, true, "the old one went on")];
    between.go();
    let new = place.take_over();
    ids.push(send_text(&mut socket, true, "through the new one"));
    paused.pass();
    assert!(late.wait_for_end(END).is_some(), "what was offered to it is not offered any more");
    ids.push(send_text(&mut socket, true, "and still"));
    drop(socket);
    assert!(old.wait().expect("ends").success());
    ids.push(kept(&new.address, "and after that").expect("is kept"));
    check(&place, &ids);
}

#[test]
fn a_takeover_that_fails_after_maintenance_has_failed_changes_nothing() {
    let place = place("maintenance-failed", QUICK);
    let server = place.start();
    // Directories with the names of the next segments make sealing fail.
    let segments = place.data().join("nostr/seg");
    let names: Vec<_> = (1..50).map(|n| segments.join(format!("{n:08}.seg"))).collect();
    for name in &names {
        std::fs::create_dir(name).expect("is made");
    }
    let (mut numbers, mut ids) = (0..1_600, Vec::new());
    let next = || numbers.next().map(|n| event(true, &format!("{n}")).0);
    publish(Socket::connect(&server.address), 64, next, |id, _| ids.push(id));
    until("maintenance fails", || {
        let page = get(&server.address, "/metrics").ok();
        page.contains("hark_store_maintenance_failing 1\n")
    });
    // A new server that cannot listen on its address.
    let mut command = hark(&place.data());
    command.args(["serve", "--takeover", "--listen", "192.0.2.77:1"]);
    assert!(!command.output().expect("runs").status.success());
    ids.push(kept(&server.address, "goes on").expect("it goes on"));
    healthy(&server.address, 200);
    for name in &names {
        std::fs::remove_dir(name).expect("is empty");
    }
    check(&place, &ids);
}
