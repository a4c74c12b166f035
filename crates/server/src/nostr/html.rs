//! HTML whose texts are escaped by their types. Only literals of the program enter a page as they
//! are: `html!` escapes each value that is not [`Html`] already.

use std::fmt::{self, Display, Formatter, Write as _};

/// A piece of HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

/// Makes a piece of HTML from a literal and its values, like `format!`. The literal cannot name
/// variables, because a variable in the literal would not be escaped.
macro_rules! html {
    ($text:literal, $($name:ident = $value:expr),+ $(,)?) => {
        $crate::nostr::html::Html::from_literal(format_args!(
            concat!($text) $(, $name = $crate::nostr::html::HtmlValue(&$value))+
        ))
    };
    ($text:literal $(, $value:expr)* $(,)?) => {
        $crate::nostr::html::Html::from_literal(format_args!(
            concat!($text) $(, $crate::nostr::html::HtmlValue(&$value))*
        ))
    };
}

pub(crate) use html;

impl Html {
    /// The HTML of `html!`, whose literal is trusted and whose values write themselves.
    pub(crate) fn from_literal(text: fmt::Arguments<'_>) -> Self {
        Self(text.to_string())
    }

    /// The HTML as text.
    pub(crate) fn into_text(self) -> String {
        self.0
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<T: IntoIterator<Item = Self>>(pieces: T) -> Self {
        let mut all = Self::default();
        for piece in pieces {
            all.0.push_str(&piece.0);
        }
        all
    }
}

/// A value of a piece of HTML.
pub(crate) trait WriteHtml {
    /// Writes the value, escaped unless it is HTML.
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result;
}

/// A value that `format_args!` writes as HTML.
pub(crate) struct HtmlValue<'a, T: ?Sized>(pub(crate) &'a T);

impl<T: WriteHtml + ?Sized> Display for HtmlValue<'_, T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.write_html(out)
    }
}

impl WriteHtml for Html {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl WriteHtml for str {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for letter in self.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                // Characters that change the direction of the following text, such as the text of
                // the next column.
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    out.write_char('\u{fffd}')?;
                }
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

impl WriteHtml for String {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.as_str().write_html(out)
    }
}

impl WriteHtml for u64 {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, out)
    }
}

impl<T: WriteHtml + ?Sized> WriteHtml for &T {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        (**self).write_html(out)
    }
}

/// Nothing is written for `None`.
impl<T: WriteHtml> WriteHtml for Option<T> {
    fn write_html(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |value| value.write_html(out))
    }
}

/// Formats text as a link if the text is a URL of a page or a mail address.
pub(crate) fn link(text: &str) -> Html {
    let is_link = ["https://", "http://", "mailto:"].iter().any(|begin| text.starts_with(begin));
    if is_link {
        html!("<a href=\"{url}\" rel=\"nofollow noopener\">{url}</a>", url = text)
    } else {
        html!("{}", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_html_is_not() {
        let bold = html!("<b class=\"{}\">{}</b>", "a\"'", "<i>&{x}\u{202e}");
        let all =
            html!("<p>{bold}{none}{count}</p>", bold = bold, none = None::<Html>, count = 7_u64);
        assert_eq!(
            all.into_text(),
            "<p><b class=\"a&quot;&#39;\">&lt;i&gt;&amp;{x}\u{fffd}</b>7</p>"
        );
        let joined: Html = ["a", "<"].iter().map(|text| html!("{}", *text)).collect();
        assert_eq!(joined.into_text(), "a&lt;");
    }

    #[test]
    fn only_urls_of_pages_and_mail_addresses_become_links() {
        assert_eq!(link("javascript:x").into_text(), "javascript:x");
        let quoted = "<a href=\"https://x/&quot;\" rel=\"nofollow noopener\">https://x/&quot;</a>";
        assert_eq!(link("https://x/\"").into_text(), quoted);
    }
}
