//! Makes the address of a store fit for logs, for messages and for `hark config --show`: any text
//! that may be a password, or a part of a password, is replaced by `***`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Parameters with values that are no secret.
const PLAIN: [&str; 21] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "port",
    "replication",
    "sslcert",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "timezone",
    "user",
];
/// Parameters of which only the name is shown. The name of an unknown parameter is hidden as well,
/// because a password that is not quoted correctly looks like several parameters.
const SECRET: [&str; 5] = ["options", "passfile", "password", "sslkey", "sslpassword"];
const HIDDEN: &str = "***";

/// Whether this is the address of a database: a URL, or parameters of libpq such as `host=…
/// dbname=…`.
pub fn is_database(address: &str) -> bool {
    address.starts_with("postgres://")
        || address.starts_with("postgresql://")
        || is_key_value(address)
}

/// Whether the address is a list of parameters for libpq. If a directory has such a name, its path
/// must begin with `./`.
pub(crate) fn is_key_value(address: &str) -> bool {
    address.split_once('=').is_some_and(|(name, _)| {
        let name = name.trim();
        PLAIN.contains(&name) || SECRET.contains(&name)
    })
}

/// Whether the address may contain a password.
pub(crate) fn has_secret(address: &str) -> bool {
    let plain = percent_decode_str(address).decode_utf8_lossy();
    let shown = shown(address);
    SECRET.iter().any(|name| plain.contains(name))
        || shown.contains("***@")
        || shown.ends_with("://***")
}

/// Whether a URL has an unescaped @ inside the password. A parser would end the password there, and
/// would look up the rest of the password as a host.
pub(crate) fn is_torn(address: &str) -> bool {
    let Some((_, rest)) = address.split_once("://") else { return false };
    let (base, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    base.matches('@').count() > 1 || !base.contains('@') && parameters.contains('@')
}

/// Returns the address without its secrets. If the text is not the address of a database, it is
/// returned unchanged.
pub fn shown(address: &str) -> Cow<'_, str> {
    if let Some((scheme, rest)) = address.split_once("://") {
        return format!("{scheme}://{}", url(rest).as_deref().unwrap_or(HIDDEN)).into();
    }
    if is_key_value(address) {
        return key_value(address).into();
    }
    let lower = address.to_ascii_lowercase();
    if ["password", "passwd"].iter().any(|word| lower.contains(word)) {
        return HIDDEN.into();
    }
    address.into()
}

/// Returns the text behind `://` without its secrets; `None` if all of it may be secret.
fn url(rest: &str) -> Option<String> {
    let (base, parameters) = match rest.split_once('?') {
        // The text on both sides of the `?` may be parts of a password.
        Some((_, parameters)) if parameters.contains('@') => return None,
        Some((base, parameters)) => (base, Some(parameters)),
        None => (rest, None),
    };
    let mut out = String::new();
    let hosts = match base.rsplit_once('@') {
        Some((user_info, hosts)) => {
            let (user, password) =
                user_info.split_once(':').map_or((user_info, false), |(user, _)| (user, true));
            let is_name =
                user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
            out.push_str(if is_name { user } else { HIDDEN });
            out.push_str(if password { ":***@" } else { "@" });
            hosts
        }
        None => base,
    };
    let authority = hosts.split('/').next().unwrap_or_default();
    if !authority.split(',').all(has_port_or_none) {
        return None;
    }
    out.push_str(hosts);
    if let Some(parameters) = parameters {
        let parameters: Vec<_> = parameters.split('&').map(parameter).collect();
        out.push('?');
        out.push_str(&parameters.join("&"));
    }
    Some(out)
}

/// Whether the host is followed by a port or by nothing. Any other text may be a password.
fn has_port_or_none(host: &str) -> bool {
    let behind = match host.strip_prefix('[') {
        Some(host) => host.split_once(']').map_or("?", |(_, behind)| behind),
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    match behind.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => behind.is_empty(),
    }
}

fn parameter(pair: &str) -> Cow<'_, str> {
    let name = pair.split('=').next().unwrap_or_default();
    if PLAIN.contains(&name) {
        pair.into()
    } else if SECRET.contains(&name) {
        format!("{name}={HIDDEN}").into()
    } else {
        HIDDEN.into()
    }
}

/// Returns the parameters for libpq without their secrets, up to the first text that libpq cannot
/// read.
fn key_value(address: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), address.trim_start());
    while !rest.is_empty() {
        let Some((name, behind)) = rest.split_once('=') else {
            out.push(HIDDEN.to_owned());
            break;
        };
        let (name, behind) = (name.trim_end(), behind.trim_start());
        let end = value_end(behind).filter(|_| !name.contains(char::is_whitespace));
        let Some(end) = end else {
            out.push(HIDDEN.to_owned());
            break;
        };
        let (value, behind) = behind.split_at(end);
        out.push(if PLAIN.contains(&name) {
            format!("{name}={value}")
        } else if SECRET.contains(&name) {
            format!("{name}={HIDDEN}")
        } else {
            HIDDEN.to_owned()
        });
        rest = behind.trim_start();
    }
    out.join(" ")
}

/// Returns the end of a value, which may contain quotes and backslashes; `None` if the value has no
/// end.
fn value_end(text: &str) -> Option<usize> {
    let is_quoted = text.starts_with('\'');
    let mut chars = text.char_indices().skip(usize::from(is_quoted));
    while let Some((at, letter)) = chars.next() {
        match letter {
            '\\' => {
                chars.next();
            }
            '\'' if is_quoted => {
                let behind = &text[at + 1..];
                let is_whole = behind.is_empty() || behind.starts_with(char::is_whitespace);
                return is_whole.then_some(at + 1);
            }
            letter if !is_quoted && letter.is_whitespace() => return Some(at),
            _ => {}
        }
    }
    (!is_quoted).then_some(text.len())
}

#[cfg(test)]
mod tests {
    use hark_testkit::random::Random;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    use super::*;
    use crate::DatabaseAddress;

    #[test]
    fn what_is_no_secret_stays_readable() {
        for (address, expected) in [
            ("embedded", "embedded"),
            ("/var/lib/a=b", "/var/lib/a=b"),
            ("postgres://host/hark", "postgres://host/hark"),
            ("postgres:///hark?host=/run/postgresql", "postgres:///hark?host=/run/postgresql"),
            ("postgres://me@[::1]:5433,b:1/hark", "postgres://me@[::1]:5433,b:1/hark"),
            ("postgres://me:se:cr@et@host:5432/hark", "postgres://me:***@host:5432/hark"),
            (
                "postgres://me@host/d?password=x&sslmode=require&sslkey=/k.pem",
                "postgres://me@host/d?password=***&sslmode=require&sslkey=***",
            ),
            (
                "host=h user = me password = 'a \\' b' dbname=d",
                "host=h user=me password=*** dbname=d",
            ),
            ("host=h password=a b dbname=d", "host=h password=*** ***"),
        ] {
            assert_eq!(shown(address), expected);
        }
    }

    /// Returns a password and the random words in it, which occur nowhere else. Between the words
    /// are characters that must be escaped.
    fn secret(random: &mut Random) -> (String, Vec<String>) {
        const BETWEEN: [&str; 14] =
            ["@", ":", "/", "?", "#", "&", "%", "=", " ", "'", "\\", "\"", "@?", "&a="];
        let words: Vec<String> =
            (0..=random.below(3)).map(|_| format!("{:08x}", random.bits() as u32)).collect();
        let mut secret = String::new();
        for word in &words {
            secret.push_str(if secret.is_empty() { "" } else { random.pick::<&str>(&BETWEEN) });
            secret.push_str(word);
        }
        (secret, words)
    }

    /// Returns a random address that contains `secret`, escaped correctly or not.
    fn address(random: &mut Random, secret: &str) -> String {
        let encoded = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
        let in_url = if random.once_in(2) { encoded.as_str() } else { secret };
        let escaped = secret.replace('\\', "\\\\").replace('\'', "\\'");
        let quoted = format!("'{escaped}'");
        let bare = escaped.replace(' ', "\\ ");
        let in_list = *random.pick(&[quoted.as_str(), bare.as_str(), secret]);
        let name = *random.pick(&["password", "sslpassword", "passfile"]);
        let host = *random.pick(&["host", "host:5432", "[::1]:5432", "a:1,b:2"]);
        let scheme = *random.pick(&["postgres", "postgresql", "mysql"]);
        match random.below(8) {
            0 => format!("{scheme}://me:{in_url}@{host}/base"),
            1 => format!("{scheme}://me:{in_url}@{host}/base?sslmode=disable&connect_timeout=1"),
            2 => format!("{scheme}://me@{host}/base?{name}={in_url}"),
            3 => format!("{scheme}://{host}/base?{name}={in_url}&sslmode=disable"),
            4 => format!("{scheme}:///base?host=/run&user=me&{name}={in_url}"),
            5 => format!("host=h user=me {name}={in_list} dbname=base"),
            6 => format!("{name} = {in_list}"),
            _ => format!("{scheme}://me:{in_url}@{host}?{name}={in_url}"),
        }
    }

    #[test]
    fn no_part_of_a_password_is_shown_however_it_is_written() {
        let mut random = Random::new(17);
        for _ in 0..20_000 {
            let (secret, words) = secret(&mut random);
            let address = address(&mut random, &secret);
            let text_of_error = match DatabaseAddress::read(&address) {
                Ok(read) => read.hosts().collect(),
                Err(error) => error.to_string(),
            };
            for text in [&*shown(&address), &text_of_error] {
                let leak = words.iter().find(|word| text.contains(*word));
                assert!(leak.is_none(), "{address} is shown as {text}");
            }
        }
    }
}
