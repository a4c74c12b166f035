//! Finds a password that is not in the address: in the variable `PGPASSWORD`, or in a password file
//! as libpq does (PostgreSQL's manual, "The Password File"). So the password need not be in a
//! command line, which every user of the machine can read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Bits of a file's mode that let users other than the owner open the file.
const OPEN_TO_OTHERS: u32 = 0o077;
/// PostgreSQL's default port, for addresses without a port.
const PORT: u16 = 5432;

/// A password file that is not used, because it is not a regular file, or users other than its
/// owner can open it. libpq does not use such a file either.
#[derive(Clone, Debug)]
pub(crate) struct PassedOver(PathBuf);

impl std::fmt::Display for PassedOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the password file {} is passed over: it must be a file that only its owner can open \
             (chmod 600)",
            self.0.display()
        )
    }
}

/// Finds the password for an address that has none. `passfile` is the password file that the
/// address names, if any.
pub(crate) fn find(config: &Config, passfile: Option<&str>) -> Result<Option<Vec<u8>>, PassedOver> {
    if config.get_password().is_some() {
        return Ok(None);
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(password) = variable("PGPASSWORD") {
        return Ok(Some(password.into_encoded_bytes()));
    }
    let named = passfile.map(PathBuf::from).or_else(|| Some(variable("PGPASSFILE")?.into()));
    let at_home = || Some(Path::new(&variable("HOME")?).join(".pgpass"));
    let Some(file) = named.or_else(at_home) else { return Ok(None) };
    let Ok(meta) = fs::metadata(&file) else { return Ok(None) };
    if !meta.is_file() || meta.mode() & OPEN_TO_OTHERS != 0 {
        return Err(PassedOver(file));
    }
    let text = fs::read_to_string(&file).unwrap_or_default();
    Ok(of_lines(&text, config).map(String::into_bytes))
}

/// Tries the hosts of the address in order, and returns the password of the first line that matches
/// a host.
fn of_lines(text: &str, config: &Config) -> Option<String> {
    let user = config.get_user().map(str::to_owned).or_else(|| std::env::var("USER").ok());
    let user = user.unwrap_or_default();
    let database = config.get_dbname().unwrap_or(&user);
    let ports = config.get_ports();
    config.get_hosts().iter().enumerate().find_map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(PORT).to_string();
        let hosts = match host {
            Host::Tcp(name) => vec![name.clone()],
            Host::Unix(folder) => vec![folder.display().to_string(), "localhost".into()],
        };
        text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let [host, line_port, line_database, line_user, password] = fields(line)?;
            let is = |pattern: &str, value: &str| pattern == "*" || pattern == value;
            let matches = hosts.iter().any(|named| is(&host, named))
                && is(&line_port, &port)
                && is(&line_database, database)
                && is(&line_user, &user);
            matches.then_some(password)
        })
    })
}

/// Returns the fields of a line: host, port, database, user and password. A backslash escapes the
/// next character, such as a colon.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields: [String; 5] = Default::default();
    let (mut at, mut letters) = (0, line.chars());
    while let Some(letter) = letters.next() {
        match letter {
            // The password is the whole rest of the line.
            ':' if at < 4 => at += 1,
            '\\' => fields[at].extend(letters.next()),
            letter => fields[at].push(letter),
        }
    }
    (at == 4).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = "# host:port:database:user:password\n\
                    other:5432:hark:me:wrong\n\
                    db:5433:hark:me:of another port\n\
                    short:line\n\
                    db:5432:hark:me:s:3\\:cr\\\\et\n\
                    *:*:*:you:any\n\
                    localhost:*:hark:*:local\n";
        let of = |url: &str| of_lines(text, &url.parse().unwrap());
        assert_eq!(of("postgres://me@db/hark").as_deref(), Some("s:3:cr\\et"));
        assert_eq!(of("postgres://me@db:5433/hark").as_deref(), Some("of another port"));
        assert_eq!(of("postgres://you@elsewhere:7/base").as_deref(), Some("any"));
        assert_eq!(of("postgres://me@elsewhere/hark"), None);
        assert_eq!(of("postgres://me@elsewhere,db/hark").as_deref(), Some("s:3:cr\\et"));
        assert_eq!(
            of("postgres://me@elsewhere:1,db:5433/hark").as_deref(),
            Some("of another port")
        );
        assert_eq!(of("host=/run/postgresql user=me dbname=hark").as_deref(), Some("local"));
    }
}
