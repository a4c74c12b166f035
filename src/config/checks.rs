//! Checks of a configuration beyond the syntax of single settings: numbers out of bounds,
//! contradictions, and unusable addresses.

use hark_server::{ListenAddress, Proxies};
use hark_store_postgres::shown;

use super::values::Config;
use super::{keys, log, ranges};
use crate::stores::{AddressForm, StoreAddress, postgres};

/// Returns the faults of a configuration, apart from values of the wrong type. `stores` are the
/// address forms of all kinds of stores, the default first.
pub(super) fn faults(config: &Config, stores: &[AddressForm]) -> Vec<String> {
    let mut faults = ranges::faults(config);
    // Contradictions between limits are checked only if all limits are within bounds, so that no
    // limit is reported twice.
    if !faults.iter().any(|fault| fault.starts_with("[limits]")) {
        faults.extend(config.limits.faults().iter().map(|fault| format!("[limits] {fault}")));
    }
    faults.extend(unusable_stores(config, stores));
    faults.extend(info(config));
    if let Err(fault) = log::filter(&config.log.level) {
        faults.push(format!("[log] `level`: {fault}"));
    }
    if !Proxies::HEADERS.contains(&config.proxies.header.as_str()) {
        let headers = Proxies::HEADERS.join(", ");
        faults.push(format!("[server] `proxy_header` must be one of {headers}"));
    }
    faults.extend(config.tls.faults());
    faults.extend(listening(config));
    faults.extend(config.waku.faults());
    faults.extend(web_without_certificate(config));
    faults
}

/// Returns one line for each secure WebSocket of the Waku node without a certificate.
fn web_without_certificate(config: &Config) -> Vec<String> {
    if config.tls.is_enabled() || !config.waku.serve {
        return Vec::new();
    }
    let secure = config.waku.secure_listeners();
    secure
        .map(|addr| {
            format!(
                "[waku] `listen` has {addr:?}, which needs a certificate: set `certificate` and `key`, or \
                 `acme_domains`, in [tls], or listen on /ws, and let a proxy have the certificate"
            )
        })
        .collect()
}

/// Returns one line for each door with no address or with too many addresses.
fn listening(config: &Config) -> Vec<String> {
    let mut faults = Vec::new();
    if config.listen.is_empty() {
        let examples = ListenAddress::EXAMPLES;
        faults.push(format!("[server] `listen` must be {examples}, but is empty"));
    }
    let doors = [
        ("[server] `listen`", &config.listen),
        ("[waku] `rest`", &config.waku.rest),
        ("[whisper] `rest`", &config.whisper.rest),
    ];
    let max = ListenAddress::OF_DOOR_MAX;
    for (setting, addresses) in doors.into_iter().filter(|(_, addresses)| addresses.len() > max) {
        let count = addresses.len();
        faults.push(format!("{setting} has {count} addresses, at most {max} are possible"));
    }
    faults
}

/// Returns one line for each store that cannot be opened by its address.
fn unusable_stores(config: &Config, forms: &[AddressForm]) -> Vec<String> {
    let others = forms.get(1..).unwrap_or_default();
    let mut faults = Vec::new();
    let mut check = |setting: &str, address: &str, other: &str, forms: &[AddressForm]| {
        let Some(form) = AddressForm::of(forms, address) else {
            let (typed, examples) = (shown(address), AddressForm::examples(forms));
            faults.push(format!("{setting} must be {other} or {examples}, but is {typed:?}"));
            return;
        };
        if let Err(fault) = (form.check)(address) {
            faults.push(format!("{setting}: {fault}"));
        }
    };
    let store = config.store.secret();
    let default = forms.first().filter(|form| (form.fits)(store));
    if default.is_none() {
        check("[archive] `store`", store, "`embedded`", others);
    }
    let mirror = config.mirror.store.as_ref().map(StoreAddress::secret);
    // A mirror in a directory is not checked, since a directory may have any name.
    let mirror =
        mirror.filter(|store| store.contains("://") || AddressForm::of(others, store).is_some());
    if let Some(mirror) = mirror {
        check("[mirror] `store`", mirror, "a directory", others);
    }
    if let Some(replica) = config.postgres.read_url.as_ref().map(StoreAddress::secret) {
        check("[postgres] `read_url`", replica, "empty", &[postgres::FORM]);
    }
    faults
}

/// Returns one line for each fault in the section `[info]`.
fn info(config: &Config) -> Vec<String> {
    let info = &config.info;
    let mut faults = Vec::new();
    let mut must_be_url = |key: &str, url: &str, schemes: &[&str]| {
        if !is_url(url, schemes) {
            let schemes = schemes.join(" or ");
            faults.push(format!("[info] `{key}` must be a URL with {schemes}, but is {url:?}"));
        }
    };
    for (key, url) in info
        .url
        .iter()
        .map(|url| ("url", url))
        .chain(info.other_urls.iter().map(|url| ("other_urls", url)))
    {
        must_be_url(key, url, &["wss://", "ws://"]);
    }
    let pages = [
        ("icon", &info.icon),
        ("banner", &info.banner),
        ("terms_of_service", &info.terms_of_service),
        ("payments_url", &info.payments_url),
        ("client_url", &info.client_url),
    ];
    for (key, url) in pages {
        if let Some(url) = url {
            must_be_url(key, url, &["https://", "http://"]);
        }
    }
    if info.url.is_none() && !info.other_urls.is_empty() {
        faults.push("[info] `other_urls` is set without `url`; set `url` as well".into());
    }
    for (name, key) in [("pubkey", &info.pubkey), ("self", &info.self_key)] {
        if let Some(key) = key
            && let Err(fault) = keys::public_key(key)
        {
            faults.push(format!("[info] `{name}`: {fault}"));
        }
    }
    faults
}

/// Whether `url` has one of these schemes, then a host, and no spaces.
fn is_url(url: &str, schemes: &[&str]) -> bool {
    let rest = schemes.iter().find_map(|scheme| {
        let (head, rest) = url.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with(['/', ':', '?', '#'])
            && !rest.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::address_forms;

    #[test]
    fn a_door_without_an_address_and_with_too_many_are_faults() {
        let listening = |addresses: usize| {
            let address: ListenAddress = "relay.example:7777".parse().unwrap();
            let listen = vec![address; addresses];
            faults(&Config { listen, ..Config::default() }, &address_forms()).join("\n")
        };
        assert!(listening(0).starts_with("[server] `listen` must be an address and port"));
        assert_eq!(listening(1) + &listening(8), "");
        assert_eq!(listening(9), "[server] `listen` has 9 addresses, at most 8 are possible");
    }

    #[test]
    fn addresses_that_lead_nowhere_are_faults() {
        let with = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            faults(&config, &address_forms()).join("\n")
        };
        assert_eq!(with(&|_| {}), "");
        for store in ["mysql://x", "data", "", "postgres://me@h/b?sslmode=none"] {
            let said = with(&|config| config.store = StoreAddress::new(store.into()));
            assert!(said.starts_with("[archive] `store`"), "{store}: {said}");
            let read = StoreAddress::new(store.into());
            let said = with(&|config| config.postgres.read_url = Some(read.clone()));
            assert!(said.starts_with("[postgres] `read_url`"), "{store}: {said}");
        }
        let secret = with(&|config| config.store = StoreAddress::new("mysql://u:s3cret@h".into()));
        assert!(secret.contains("***") && !secret.contains("s3cret"), "{secret}");
        let mirror = |store: &str| {
            with(&|config| config.mirror.store = Some(StoreAddress::new(store.into())))
        };
        assert_eq!(mirror("some/where") + &mirror("postgres://me@host/base"), "");
        assert!(
            mirror("mysql://x").contains("[mirror] `store` must be a directory or postgres://")
        );
        for url in ["owl.example", "https://owl.example", "wss://", "wss:///path", "wss://a b"] {
            let said = with(&|config| config.info.url = Some(url.into()));
            assert!(said.contains("`url` must be a URL with wss:// or ws://"), "{url}: {said}");
        }
        for url in ["not a url", "wss://owl.example", "/icon.png", "https://"] {
            let said = with(&|config| config.info.icon = Some(url.into()));
            assert!(said.contains("`icon` must be a URL with https://"), "{url}: {said}");
        }
        let good = with(&|config| {
            config.info.url = Some("WSS://owl.example/relay".into());
            config.info.other_urls = vec!["ws://abc.onion".into()];
            config.info.icon = Some("https://owl.example/i.png".into());
        });
        assert_eq!(good, "");
    }
}
