//! `/healthz` and `hark healthz` report the current state without a write or a query.

use hark_testkit::postgres::Cluster;
use hark_testkit::program::Finished;
use hark_testkit::server::Server;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;

use super::support::{Place, command, hark, hark_with, health, wait_for_health};

/// Runs `hark healthz`.
fn asked(server: &Server) -> Finished {
    hark(&["healthz", "--at", &server.address])
}

/// Asks the relay for events, and returns the first answer after the challenge.
fn answer_to_question(server: &Server) -> serde_json::Value {
    let mut socket = Socket::connect(&server.address);
    socket.send_text(r#"["REQ","s",{"kinds":[1]}]"#);
    loop {
        let answer = socket.json();
        if answer[0] != "AUTH" {
            return answer;
        }
    }
}

/// Whether an answer reports good health. Advice may follow.
fn is_well((status, body): &(u16, String)) -> bool {
    *status == 200 && body.starts_with("ok\n")
}

#[test]
fn a_database_that_stops_and_starts_shows_without_any_traffic() {
    let cluster = Cluster::new();
    let database = cluster.database("health");
    let place = Place::new("health");
    let store = ["--store", &database.url];
    let server = place.serve_with(&store);
    assert!(is_well(&health(&server.address)));
    assert!(asked(&server).text().starts_with("ok\n"));
    for round in 0..2 {
        cluster.stop();
        let body = wait_for_health(&server.address, 503);
        assert!(body.contains("the database is away"), "{round}: {body}");
        let run = asked(&server);
        assert!(run.code == 1 && run.stdout.contains("the database is away"), "{run:?}");
        cluster.start();
        assert!(wait_for_health(&server.address, 200).starts_with("ok\n"), "{round}");
    }
    // The server must also notice a database that hangs, which closes no connections.
    cluster.pause();
    let body = wait_for_health(&server.address, 503);
    assert!(body.contains("the database did not answer within 10 s"), "{body}");
    let closed = answer_to_question(&server);
    assert_eq!(closed[0], "CLOSED");
    let late = |why: &str| why.starts_with("error: the database did not answer within ");
    assert!(closed[2].as_str().is_some_and(late), "{closed}");
    cluster.resume();
    assert!(wait_for_health(&server.address, 200).starts_with("ok\n"));
    until("questions are answered", || answer_to_question(&server)[0] == "EOSE");
    // A server on a database has its own statistics and reloads its configuration.
    let stats = place.hark(&[&["stats", "--json"][..], &store].concat()).json();
    assert_eq!(stats["server_running"], true);
    assert_eq!(stats["server"]["config"]["refused"], serde_json::Value::Null);
    assert!(place.hark(&["reload"]).text().contains("nothing has changed"));
    // A second server leaves the socket to the first server.
    let mut second = place.serve_with(&store);
    second.wait_for_log("another server answers on ");
    assert_eq!(second.terminate().0, 0);
    assert_eq!(place.hark(&["reload"]).code, 0);
    assert_eq!(server.terminate().0, 0);
    assert!(!place.data().join("control.sock").exists());
}

#[test]
fn a_mirror_that_is_stuck_shows_until_it_is_not_or_need_not() {
    let place = Place::new("health-mirror");
    let settings = |stuck_after_s: u32| {
        // Nothing listens on port 1.
        let text = format!(
            "[mirror]\nstore = \"postgres://me@127.0.0.1:1/none\"\nstuck_after_s = {stuck_after_s}\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let config = settings(1);
    let server = place.serve_with(&["--config", &config]);
    let body = wait_for_health(&server.address, 503);
    assert!(body.contains("the mirror has made no progress for "), "{body}");
    let stats = place.hark(&["stats", "--json"]).json();
    assert!(stats["server"]["mirror"]["idle_ms"].as_u64().unwrap() >= 1_000, "{stats}");
    // Events are still stored, and the statistics report no trouble.
    assert_eq!(stats["server"]["trouble"], serde_json::Value::Null);
    settings(0);
    place.hark(&["reload"]).text();
    assert!(is_well(&health(&server.address)));
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn nobody_who_answers_is_not_well() {
    let run = hark(&["healthz", "--at", "127.0.0.1:1"]);
    assert!(run.code == 1 && run.stderr.contains("does not answer /healthz"), "{run:?}");
    // Without `--at`, the address comes from the configuration.
    let variables = [("HARK_SERVER_METRICS_LISTEN", "127.0.0.1:1")];
    let run = hark_with(&["healthz"], &variables, b"");
    assert!(run.code == 1 && run.stderr.contains("the server at 127.0.0.1:1 "), "{run:?}");
}

#[test]
fn a_password_comes_from_where_postgres_programs_look_for_it() {
    let cluster = Cluster::new();
    let database = cluster.database("password");
    let name = &database.name;
    database.sql(&format!(
        "CREATE ROLE hark LOGIN PASSWORD 's3:cret'; ALTER DATABASE {name} OWNER TO hark"
    ));
    cluster.file(
        "pg_hba.conf",
        "host all hark 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n",
    );
    let place = Place::new("password");
    let url = database.url.replace("postgres@", "hark@");
    let file = place.file("pgpass", format!("127.0.0.1:*:{name}:hark:s3\\:cret\n").as_bytes());
    let count = |variables: &[(&str, &str)], url: &str| {
        let mut command = command(&["--store", url, "migrate", "up"]);
        for name in ["PGPASSWORD", "PGPASSFILE"] {
            command.env_remove(name);
        }
        command.env("HOME", place.path("")).envs(variables.iter().copied());
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The database server applies its new settings some time after the signal.
    until("a password is asked for", || !count(&[], &url).0);
    assert!(count(&[], &url).1.contains("password missing"));
    assert!(!count(&[("PGPASSWORD", "wrong")], &url).0);
    assert!(count(&[("PGPASSWORD", "s3:cret")], &url).0);
    mode(0o640);
    let (is_done, said) = count(&[("PGPASSFILE", &file)], &url);
    let told = format!("the password file {file} is passed over");
    assert!(!is_done && said.contains(&told) && said.contains("chmod 600"), "{said}");
    mode(0o600);
    assert!(count(&[("PGPASSFILE", &file)], &url).0);
    let named = format!("{url}?passfile={}", file.replace('/', "%2F"));
    assert!(count(&[], &named).0);
    std::fs::rename(&file, place.path(".pgpass")).unwrap();
    assert!(count(&[], &url).0);
}
