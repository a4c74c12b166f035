//! The requests of the page: paths, cookies, forms, and the headers of the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::form::FormFields;
use super::request::AdminRequest;
use super::sessions::{AdminPerson, AdminSession, PageNotice, SESSION_MAX};
use super::view::{AdminPage, AdminView};
use super::{acts, audit, clients, login, members, overview, reports, roles, rulings};
use crate::nostr::Relay;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::door;
use crate::nostr::manage::fault::{ManageFault, ManageResult};
use crate::nostr::manage::managers::Permissions;
use crate::rate::RatedConnection;

/// The name of the session's cookie.
const COOKIE_NAME: &str = "hark-session";
/// The Content-Security-Policy: no script and no style within the page, nothing from other hosts,
/// and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; \
                      img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Whether a path belongs to the page.
pub(crate) fn is_path(path: &str) -> bool {
    path == "/admin" || path.starts_with("/admin/")
}

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminRoute {
    Page(AdminPage),
    Login,
    KeyLogin,
    Logout,
    Script,
}

impl AdminRoute {
    fn find(path: &str) -> Option<Self> {
        let page = AdminPage::ALL.into_iter().find(|page| page.path() == path);
        Some(match path {
            "/admin/" => Self::Page(AdminPage::Overview),
            "/admin/login" => Self::Login,
            "/admin/key" => Self::KeyLogin,
            "/admin/logout" => Self::Logout,
            "/admin/login.js" => Self::Script,
            _ => Self::Page(page?),
        })
    }
}

/// Answers a request.
pub(crate) async fn answer(asked: AdminRequest<'_>, request: Request) -> Response {
    let Some(route) = AdminRoute::find(asked.path) else {
        return text(StatusCode::NOT_FOUND, "nothing is here; the page is at /admin\n");
    };
    let relay = asked.relay;
    let rated =
        RatedConnection::new(&relay.rates, Arc::clone(asked.client.listed), asked.client.address);
    if *request.method() == Method::POST {
        let length = door::body_length(request.headers()).unwrap_or_default();
        let posted = match rated.publishes(length) {
            Err(rate) => Err(ManageFault::Rate(rate.words)),
            Ok(()) => post(&asked, route, request).await,
        };
        let refused = |fault: ManageFault| (refuse(&asked, route, &fault), fault.status().1);
        let (answer, result) = posted.unwrap_or_else(refused);
        relay.management.results.of(result).add(1);
        return answer;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let words = "the page is read with GET, and changed with POST\n";
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, words);
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        return answer;
    }
    if let Err(rate) = rated.speaks(0) {
        return refuse(&asked, route, &ManageFault::Rate(rate.words));
    }
    get(&asked, route, &request.into_parts().0).await
}

async fn get(asked: &AdminRequest<'_>, route: AdminRoute, head: &Parts) -> Response {
    let (relay, prefix) = (asked.relay, asked.prefix);
    let query = head.uri.query().unwrap_or_default();
    let fields = FormFields::parse(query);
    let page = match route {
        AdminRoute::Page(page) => page,
        AdminRoute::Login => {
            return match fields.filled("link") {
                Some(link) => show(StatusCode::OK, login::link_page(relay, prefix, link)),
                None => show(StatusCode::OK, login::page(relay, prefix, None)),
            };
        }
        AdminRoute::Script => {
            let mut answer = text(StatusCode::OK, login::SCRIPT);
            let javascript = HeaderValue::from_static("text/javascript");
            answer.headers_mut().insert(CONTENT_TYPE, javascript);
            return answer;
        }
        AdminRoute::KeyLogin | AdminRoute::Logout => {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "this path is for POST\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return answer;
        }
    };
    let Some((session, permissions)) = person(relay, &head.headers) else {
        let status =
            if page == AdminPage::Overview { StatusCode::OK } else { StatusCode::FORBIDDEN };
        return show(status, login::page(relay, prefix, None));
    };
    let operators = asked.operators;
    let view = AdminView { relay, operators, session, permissions, prefix, query, asked: fields };
    if !page.is_open(&view.permissions) {
        let fault = html!("<p class=\"none\">Your roles do not include this page.</p>\n");
        return show(StatusCode::FORBIDDEN, view.page(page, &fault));
    }
    let content = match page {
        AdminPage::Overview => overview::page(&view).await,
        AdminPage::Clients => clients::page(&view).await,
        AdminPage::Rulings => rulings::page(&view).await,
        AdminPage::Reports => reports::page(&view).await,
        AdminPage::Members => members::page(&view).await,
        AdminPage::Roles => roles::page(&view).await,
        AdminPage::Log => audit::page(&view).await,
    };
    match content {
        Ok(content) => show(StatusCode::OK, view.page(page, &content)),
        Err(fault) => {
            let notice = PageNotice { text: fault.to_string(), is_failure: true };
            *view.session.notice.lock() = Some(notice);
            show(fault.status().0, view.page(page, &Html::default()))
        }
    }
}

async fn post(
    asked: &AdminRequest<'_>,
    route: AdminRoute,
    request: Request,
) -> Result<(Response, ManageResult), ManageFault> {
    let (relay, prefix) = (asked.relay, asked.prefix);
    if !is_of_own_page(asked, request.headers()) {
        return Err(ManageFault::Origin);
    }
    let is_secure = asked.is_secure || has_secure_origin(request.headers());
    let patience = Duration::from_millis(relay.settings().limits.handshake_timeout_ms);
    let overview = [prefix, AdminPage::Overview.path()].concat();
    match route {
        AdminRoute::Login => {
            let body = door::read_body(request.into_body(), patience).await?;
            let fields = FormFields::parse(&String::from_utf8_lossy(&body));
            let secret = login::use_link(&relay.management.sessions, fields.get("link"))?;
            Ok((with_cookie(see(&overview), (prefix, is_secure), &secret), ManageResult::Done))
        }
        AdminRoute::KeyLogin => {
            let signature = login::key_signature(asked, request.headers())?;
            let body = door::read_body(request.into_body(), patience).await?;
            let secret = login::use_key(relay, &signature, &body)?;
            let answer = text(StatusCode::OK, "ok\n");
            Ok((with_cookie(answer, (prefix, is_secure), &secret), ManageResult::Done))
        }
        AdminRoute::Page(_) | AdminRoute::Logout => {
            let known = person(relay, request.headers());
            let (session, _) = known.ok_or(ManageFault::NoSession)?;
            let query = request.uri().query().map(|query| format!("?{query}"));
            let body = door::read_body(request.into_body(), patience).await?;
            let fields = FormFields::parse(&String::from_utf8_lossy(&body));
            if fields.get("token") != session.form_token {
                return Err(ManageFault::Token);
            }
            let AdminRoute::Page(page) = route else {
                relay.management.sessions.end(&session);
                return Ok((without_cookie(see(&overview), prefix), ManageResult::Done));
            };
            // The roles are read again, because the body may have arrived late.
            let permissions = permissions(relay, &session).ok_or(ManageFault::NotManager)?;
            let by = session.person.name();
            let (notice, result) = match acts::carry_out(relay, &permissions, &by, &fields).await {
                Ok(text) => (PageNotice { text, is_failure: false }, ManageResult::Done),
                Err(fault) => {
                    let notice = PageNotice { text: fault.to_string(), is_failure: true };
                    (notice, fault.status().1)
                }
            };
            *session.notice.lock() = Some(notice);
            let query = query.as_deref().unwrap_or_default();
            Ok((see(&[prefix, page.path(), query].concat()), result))
        }
        AdminRoute::Script => Err(ManageFault::NoForm),
    }
}

/// The answer to a request that is refused.
fn refuse(asked: &AdminRequest<'_>, route: AdminRoute, fault: &ManageFault) -> Response {
    let (status, result) = fault.status();
    let mut answer = match route {
        AdminRoute::KeyLogin => text(status, format!("{fault}\n")),
        _ => show(status, login::page(asked.relay, asked.prefix, Some(&fault.to_string()))),
    };
    if result == ManageResult::RateLimited {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
    }
    answer
}

/// The session of a request, and the present permissions of its person.
fn person(relay: &Relay, headers: &HeaderMap) -> Option<(Arc<AdminSession>, Permissions)> {
    let now = Instant::now();
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|list| list.split(';')).filter_map(|pair| pair.split_once('='));
    let secrets = pairs.filter(|(name, _)| name.trim() == COOKIE_NAME);
    let found = secrets.map(|(_, secret)| relay.management.sessions.find(secret.trim(), now));
    let session = found.flatten().next()?;
    let permissions = permissions(relay, &session)?;
    Some((session, permissions))
}

/// The present permissions of a session's person. `None` if its key is no longer a manager.
fn permissions(relay: &Relay, session: &AdminSession) -> Option<Permissions> {
    match &session.person {
        AdminPerson::LinkUser { .. } => Some(Permissions::All),
        AdminPerson::Manager(key) => door::permissions(relay, key).ok(),
    }
}

/// Whether a page of this relay has caused the request. Browsers name the origin of the page in
/// every POST.
fn is_of_own_page(asked: &AdminRequest<'_>, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else { return false };
    let Some((scheme, authority)) = origin.to_str().ok().and_then(|it| it.split_once("://")) else {
        return false;
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let is_web = ["http", "https"].contains(&scheme);
    // A proxy may pass another host on, so the configured URLs count as well.
    let url = format!("{scheme}://{authority}{}", asked.prefix);
    let is_host = host.is_some_and(|host| host.eq_ignore_ascii_case(authority));
    is_web && (is_host || door::is_own_url(asked.relay, asked.client.local, &url, None))
}

/// Whether the page that has caused the request was loaded over TLS.
fn has_secure_origin(headers: &HeaderMap) -> bool {
    headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

fn with_cookie(mut answer: Response, (prefix, is_secure): (&str, bool), secret: &str) -> Response {
    let secure = if is_secure { "; Secure" } else { "" };
    let age_s = SESSION_MAX.as_secs();
    let cookie = format!(
        "{COOKIE_NAME}={secret}; Path={prefix}/admin; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
    );
    // Fails only if the path of the configured URL is no text for a header.
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

fn without_cookie(mut answer: Response, prefix: &str) -> Response {
    let cookie =
        format!("{COOKIE_NAME}=; Path={prefix}/admin; Max-Age=0; HttpOnly; SameSite=Strict");
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

/// Sends the browser to a page.
fn see(url: &str) -> Response {
    let mut answer = text(StatusCode::SEE_OTHER, "");
    if let Ok(url) = HeaderValue::try_from(url) {
        answer.headers_mut().insert(LOCATION, url);
    }
    answer
}

fn show(status: StatusCode, page: Html) -> Response {
    respond(status, "text/html; charset=utf-8", page.into_text())
}

fn text(status: StatusCode, words: impl Into<String>) -> Response {
    respond(status, "text/plain; charset=utf-8", words.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, browsers would name no origin in a POST.
        (REFERRER_POLICY, "same-origin"),
    ];
    (status, headers, Body::from(body)).into_response()
}
