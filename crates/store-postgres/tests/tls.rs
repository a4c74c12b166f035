//! Connections to the database have the protection that the URL requires, and nothing is sent to a
//! server with the wrong identity.

use std::path::PathBuf;

use hark_archive::{RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{DatabaseOpenError, PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns a certificate for `addresses`, and its key. Both are PEM.
    fn sign(&self, addresses: &[&str], name: &str) -> (String, String) {
        let addresses: Vec<String> = addresses.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(addresses).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }
}

/// Writes a file of this test, and returns its path.
fn file(name: &str, text: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tls");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

fn open(url: &str) -> Result<PostgresStore, DatabaseOpenError> {
    PostgresStore::open(url, "nostr", Box::new(NostrRules), &PostgresOptions::default())
}

#[test]
fn the_way_to_the_database_is_protected_as_its_url_asks_for() {
    let (ours, other) = (Authority::new(), Authority::new());
    let root = file("root.pem", &ours.pem());
    let foreign = file("foreign.pem", &other.pem());
    let cluster = Cluster::new();
    let database = cluster.database("tls");
    let url = |parameters: &str| format!("{}?{parameters}", database.url);

    // The server has no TLS, so only a client that does not require TLS can connect.
    assert!(open(&url("sslmode=require")).err().unwrap().to_string().contains("TLS"));
    drop(open(&database.url).unwrap());

    let serve = |(certificate, key): (String, String)| {
        cluster.file("server.crt", &certificate);
        cluster.file("server.key", &key);
        cluster.file("postgresql.auto.conf", "ssl = on\nssl_ca_file = 'clients.crt'\n");
    };
    cluster.file("clients.crt", &ours.pem());
    serve(ours.sign(&["127.0.0.1", "localhost"], "database"));
    let protected = || {
        // All connections of the store are checked, including the connection that listens.
        let sql = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                   WHERE a.application_name = 'hark'";
        database.sql(sql) == "t"
    };
    let full = format!("sslmode=verify-full&sslrootcert={root}");
    let authority = format!("sslmode=verify-ca&sslrootcert={root}");
    let implied = format!("sslmode=require&sslrootcert={root}");
    for parameters in ["", "sslmode=prefer", "sslmode=require", &implied, &authority, &full] {
        let store = open(&url(parameters)).unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let head = RecordHeader { id: [1; 32], time: 1, author: None, kind: 1, expires: None };
        store.commit(&[Write::Put(encode(&head, &[]))]).unwrap();
        assert!(protected(), "{parameters}");
    }
    let plain = open(&url("sslmode=disable")).unwrap();
    assert!(!protected());
    drop(plain);

    // Certificates of another authority, or for another server.
    let refused = |parameters: &str| {
        let error =
            open(&url(parameters)).err().unwrap_or_else(|| panic!("{parameters}")).to_string();
        assert!(error.contains("certificate is not accepted"), "{parameters}: {error}");
        error
    };
    for mode in ["verify-full", "verify-ca", "require"] {
        let error = refused(&format!("sslmode={mode}&sslrootcert={foreign}"));
        assert!(error.contains("sslrootcert=FILE"), "{error}");
    }
    serve(ours.sign(&["database.example"], "database"));
    refused(&full);
    drop(open(&url(&authority)).unwrap());

    // The server requires a client certificate.
    cluster.sql("postgres", "CREATE ROLE secured SUPERUSER LOGIN");
    cluster.file("pg_hba.conf", "hostssl all secured all cert\nhost all all all trust\n");
    let secured = database.url.replace("postgres@", "secured@");
    assert!(open(&secured).is_err());
    let (certificate, key) = ours.sign(&[], "secured");
    let (certificate, key) = (file("client.pem", &certificate), file("client.key", &key));
    drop(open(&format!("{secured}?sslcert={certificate}&sslkey={key}")).unwrap());
}
