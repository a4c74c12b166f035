//! The frame of each page, and the parts that several pages have.

use std::sync::Arc;

use super::form::{FormFields, query};
use super::sessions::AdminSession;
use crate::admin::http::Operators;
use crate::moderation::{Ruling, SubjectSort};
use crate::nostr::Relay;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::managers::Permissions;
use crate::nostr::manage::method::ManageMethod;
use crate::nostr::manage::ruling_methods::listing_method;
use crate::nostr::nip11;

/// The choices of how long a ban or an allow lasts: the value of the field, and its name.
pub(super) const DURATIONS: [(&str, &str); 7] = [
    ("", "until it is lifted"),
    ("3600", "1 hour"),
    ("86400", "1 day"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("7776000", "90 days"),
    ("31536000", "1 year"),
];

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminPage {
    Overview,
    Clients,
    Rulings,
    Reports,
    Members,
    Roles,
    Log,
}

impl AdminPage {
    pub(super) const ALL: [Self; 7] = [
        Self::Overview,
        Self::Clients,
        Self::Rulings,
        Self::Reports,
        Self::Members,
        Self::Roles,
        Self::Log,
    ];

    /// The path below the path of the relay's URL.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Overview => "/admin",
            Self::Clients => "/admin/clients",
            Self::Rulings => "/admin/bans",
            Self::Reports => "/admin/reports",
            Self::Members => "/admin/members",
            Self::Roles => "/admin/roles",
            Self::Log => "/admin/log",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Clients => "Clients",
            Self::Rulings => "Bans and allows",
            Self::Reports => "Reports",
            Self::Members => "Members",
            Self::Roles => "Roles",
            Self::Log => "Audit log",
        }
    }

    /// Whether a manager sees the page. The audit log names subjects of every sort, so only those
    /// who may call every method see the log.
    pub(super) fn is_open(self, permissions: &Permissions) -> bool {
        use ManageMethod as M;
        let any = |methods: &[M]| methods.iter().any(|method| permissions.include(*method));
        match self {
            Self::Overview => true,
            Self::Clients => any(&[M::BlockIp]),
            Self::Rulings => any(&[
                M::ListBannedPubkeys,
                M::BanPubkey,
                M::UnbanPubkey,
                M::ListBannedEvents,
                M::BanEvent,
                M::AllowEvent,
                M::ListAllowedKinds,
                M::AllowKind,
                M::DisallowKind,
                M::ListBlockedIps,
                M::BlockIp,
                M::UnblockIp,
            ]),
            Self::Reports => any(&[M::ListEventsNeedingModeration]),
            Self::Members => any(&[M::ListAllowedPubkeys, M::AllowPubkey, M::UnallowPubkey]),
            Self::Roles => {
                any(&[M::CreateRole, M::EditRole, M::DeleteRole, M::AssignRole, M::UnassignRole])
            }
            Self::Log => *permissions == Permissions::All,
        }
    }
}

/// A request of a person who has logged in.
pub(super) struct AdminView<'a> {
    pub(super) relay: &'a Arc<Relay>,
    pub(super) operators: &'a Operators,
    pub(super) session: Arc<AdminSession>,
    pub(super) permissions: Permissions,
    /// The path of the relay's URL.
    pub(super) prefix: &'a str,
    /// The query of the URL.
    pub(super) query: &'a str,
    /// The fields of the query.
    pub(super) asked: FormFields,
}

impl AdminView<'_> {
    /// Whether the person may call a method.
    pub(super) fn may(&self, method: ManageMethod) -> bool {
        self.permissions.include(method)
    }

    /// Whether the person may call every method.
    pub(super) fn may_all(&self) -> bool {
        self.permissions == Permissions::All
    }

    /// Whether the person may see the subjects of a sort with a ruling.
    pub(super) fn may_list(&self, sort: SubjectSort, ruling: Ruling) -> bool {
        listing_method(sort, ruling).map_or(self.may_all(), |method| self.may(method))
    }

    /// The URL of a page, with the fields of its query.
    pub(super) fn url(&self, page: AdminPage, fields: &[(&str, &str)]) -> String {
        [self.prefix, page.path(), &query(fields)].concat()
    }

    /// A form that carries out an act, and then shows `page` with the present query. `hidden` are
    /// fields that the person does not see.
    pub(super) fn form(
        &self,
        (page, act): (AdminPage, &str),
        hidden: &[(&str, &str)],
        inner: &Html,
    ) -> Html {
        let hidden: Html = [("act", act), ("token", self.session.form_token.as_str())]
            .iter()
            .chain(hidden)
            .map(|(name, value)| {
                html!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", *name, *value)
            })
            .collect();
        // The next page has the same query, unless the query fills the fields of a form.
        let has_query = !self.query.is_empty() && self.asked.filled("subject").is_none();
        let query = has_query.then(|| html!("?{}", self.query));
        html!(
            "<form method=\"post\" action=\"{}{}\">{}{}</form>\n",
            self.url(page, &[]),
            query,
            hidden,
            inner
        )
    }

    /// A form that is a single button. `about` completes the name of the button for people who do
    /// not see the table.
    pub(super) fn button(
        &self,
        of: (AdminPage, &str),
        hidden: &[(&str, &str)],
        (text, about): (&str, &str),
    ) -> Html {
        let button = html!(
            "<button aria-label=\"{text} {about}\">{text}</button>",
            text = text,
            about = about
        );
        self.form(of, hidden, &button)
    }

    /// The whole page.
    pub(super) fn page(&self, page: AdminPage, content: &Html) -> Html {
        let current = |it: AdminPage| (it == page).then(|| html!(" aria-current=\"page\""));
        let open = AdminPage::ALL.into_iter().filter(|it| it.is_open(&self.permissions));
        let links: Html = open
            .map(|it| {
                html!(
                    "<li><a href=\"{}\"{}>{}</a></li>\n",
                    self.url(it, &[]),
                    current(it),
                    it.title()
                )
            })
            .collect();
        let notice = self.session.notice.lock().take().map(|notice| {
            let class = if notice.is_failure { "notice failure" } else { "notice" };
            html!("<p class=\"{}\" role=\"status\">{}</p>\n", class, notice.text)
        });
        let token =
            html!("<input type=\"hidden\" name=\"token\" value=\"{}\">", self.session.form_token);
        let body = html!(
            "<a class=\"skip\" href=\"#content\">Skip to the content</a>\n\
             <header class=\"bar\">\n<p class=\"relay\"><a href=\"{prefix}/\">{name}</a></p>\n\
             <nav aria-label=\"Pages\"><ul>\n{links}</ul></nav>\n\
             <form class=\"person\" method=\"post\" action=\"{prefix}/admin/logout\">{token}\
             <span class=\"id\" title=\"{person}\">{short}</span> <button>Log out</button></form>\n</header>\n\
             <main id=\"content\">\n<h1>{title}</h1>\n{notice}{content}</main>\n",
            prefix = self.prefix,
            name = relay_name(self.relay),
            links = links,
            token = token,
            person = self.session.person.name(),
            short = shortened(&self.session.person.name()),
            title = page.title(),
            notice = notice,
            content = content,
        );
        document(self.relay, self.prefix, page.title(), &body)
    }
}

/// The name of the relay.
pub(super) fn relay_name(relay: &Relay) -> String {
    nip11::name(&relay.identity.current().info).to_owned()
}

/// A document with this title and body.
pub(super) fn document(relay: &Relay, prefix: &str, title: &str, body: &Html) -> Html {
    html!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"robots\" content=\"noindex\">\n<title>{title} · {name}</title>\n\
         <link rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
         viewBox='0 0 16 16'%3E%3Cpath d='M4 2v12M4 9q0-3 4-3t4 3v5' fill='none' stroke='%23b4582a' \
         stroke-width='2.4' stroke-linecap='round'/%3E%3C/svg%3E\">\n\
         <link rel=\"stylesheet\" href=\"{prefix}/page.css\">\n</head>\n\
         <body class=\"admin\">\n{body}</body>\n</html>\n",
        title = title,
        name = relay_name(relay),
        prefix = prefix,
        body = body,
    )
}

/// The beginning and the end of a long text without spaces, such as a key.
pub(super) fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= 34 || text.contains(' ') {
        return text.to_owned();
    }
    let begin: String = text.chars().take(12).collect();
    let end: String = text.chars().skip(count - 5).collect();
    format!("{begin}…{end}")
}

/// A long id: its beginning and its end, with the whole text as its title.
pub(super) fn long_id(text: &str) -> Html {
    html!("<code class=\"id\" title=\"{}\">{}</code>", text, shortened(text))
}

/// A cell of a table. On a narrow screen, the cell shows its heading.
pub(super) fn cell(heading: &str, content: &Html) -> Html {
    html!("<td data-heading=\"{}\"><div>{}</div></td>", heading, content)
}

/// A table, or `none` if there are no rows. `caption` is for people who do not see the
/// table.
pub(super) fn table(caption: &str, headings: &[&str], rows: &[Html], none: &str) -> Html {
    if rows.is_empty() {
        return html!("<p class=\"none\">{}</p>\n", none);
    }
    let headings: Html = headings
        .iter()
        .map(|heading| match *heading {
            "" => html!("<td></td>"),
            heading => html!("<th scope=\"col\">{}</th>", heading),
        })
        .collect();
    let rows: Html = rows.iter().map(|row| html!("<tr>{}</tr>\n", row)).collect();
    html!(
        "<table aria-label=\"{}\">\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n",
        caption,
        headings,
        rows
    )
}

/// The options of a `select`: the value and the text of each, and the value that is chosen.
pub(super) fn options(options: &[(&str, &str)], chosen: &str) -> Html {
    let option = |(value, text): &(&str, &str)| {
        let selected = (*value == chosen).then(|| html!(" selected"));
        html!("<option value=\"{}\"{}>{}</option>", *value, selected, *text)
    };
    options.iter().map(option).collect()
}

/// The link to the next page of a list.
pub(super) fn next_link(url: Option<String>) -> Option<Html> {
    url.map(|url| html!("<p class=\"next\"><a href=\"{}\" rel=\"next\">Next page</a></p>\n", url))
}
