//! The pictures of the page, and the Content-Security-Policy that admits their origins.

use axum::http::HeaderValue;

use crate::nostr::html::{Html, html};

/// A picture, configured by the operator, that the page may show.
pub(super) struct Picture<'a> {
    url: &'a str,
    /// Scheme, host and port of `url`.
    origin: &'a str,
}

impl<'a> Picture<'a> {
    /// Returns the picture at `url`. `None` if a Content-Security-Policy cannot name the origin,
    /// for example because of a user name before the host, or non-ASCII letters in the host.
    pub(super) fn new(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let is_web = ["https", "http"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let host = rest.split(['/', '?', '#']).next()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        let is_named = is_web && !host.is_empty() && host.bytes().all(is_plain);
        is_named.then(|| Self { url, origin: &url[..scheme.len() + "://".len() + host.len()] })
    }

    /// The picture on its own line. Its alternative text is empty, because the page also shows the
    /// relay's name.
    pub(super) fn image(&self, class: &str) -> Html {
        html!("<img class=\"{}\" src=\"{}\" alt=\"\">\n", class, self.url)
    }
}

/// The Content-Security-Policy of a page with these pictures: nothing else is loaded from other
/// hosts, and only the scripts and styles of this relay apply.
pub(super) fn security(pictures: &[Option<Picture<'_>>]) -> HeaderValue {
    let origins = pictures.iter().flatten().map(|picture| format!(" {}", picture.origin));
    let policy = format!(
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src data:{}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        origins.collect::<String>()
    );
    // Does not fail, because origins are plain ASCII.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_loaded_from_their_own_hosts_and_from_no_others() {
        let images = |urls: &[&str]| {
            let pictures: Vec<_> = urls.iter().map(|url| Picture::new(url)).collect();
            let policy = security(&pictures).to_str().unwrap().to_owned();
            let (_, rest) = policy.split_once("img-src ").unwrap();
            rest.split_once(';').unwrap().0.to_owned()
        };
        assert_eq!(images(&[]), "data:");
        assert_eq!(images(&["https://a.example/i.png"]), "data: https://a.example");
        assert_eq!(
            images(&["HTTP://a.example:8080?i=1#x", "https://b-2.example"]),
            "data: HTTP://a.example:8080 https://b-2.example"
        );
        for url in [
            "https://a.example;script-src *//i",
            "https://*.example/i",
            "https://me@a.example/i",
            "https://a.example'/i",
            "https://\u{e4}.example/i",
            "https:///i",
            "data:image/png;base64,AA",
            "/icon.png",
        ] {
            assert_eq!(images(&[url]), "data:", "{url}");
        }
        let shown = Picture::new("https://a.example/\"onload=\"x").unwrap().image("icon");
        assert_eq!(
            shown.into_text(),
            "<img class=\"icon\" src=\"https://a.example/&quot;onload=&quot;x\" alt=\"\">\n"
        );
    }
}
